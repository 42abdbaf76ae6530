"""Where rows come from, checked over random rows and all shapes of queries, as long as one likes.

    python tests/bench/check_provenance.py [SEEDS] [ROWS] [SHAPE]

Makes for each seed a workspace with datasets of all shapes (tests/provenance/shapes.py), traces some rows of
each, and runs the transactions again with the rows of the answers alone and without them. Prints what does
not hold, and of how many rows the answer was exact. Ends with 1 when something does not hold.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions
from odf_engine.workspace.workspace import Workspace
from tests.provenance.shapes import SHAPES, Shapes
from tests.transform.deriving import Deriving


def main() -> int:
    seeds, rows = (int(each) for each in [*sys.argv[1:3], *("3", "4")[len(sys.argv[1:3]) :]])
    chosen = [shape for shape in SHAPES if len(sys.argv) < 4 or shape.name == sys.argv[3]]
    exact: Counter[str] = Counter()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="odf-provenance-") as folder:
        root = Path(folder)
        runtime = SparkRuntime(SparkOptions(driver_memory="768m"), root / "spark.log", root / "cache")
        runtime.start()
        try:
            for seed in range(1, seeds + 1):
                deriving = Deriving(Workspace.init(root / str(seed)), runtime)
                shapes = Shapes(deriving, seed, chosen)
                for name, entry in shapes.made.items():
                    wrong, told = shapes.wrong(entry, runtime, rows)
                    exact[name] += told
                    failed += len(wrong)
                    print(f"seed {seed}: {name}: {told} of {rows} exact", *wrong, sep="\n  ", flush=True)
        finally:
            runtime.stop()
    print("\n".join(f"{name:18} {exact[name]:4} exact" for name in exact))
    print(f"{failed} things do not hold" if failed else "everything that was said holds")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
