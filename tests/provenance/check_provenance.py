"""Checks the provenance of random rows for all shapes of queries.

    python -m tests.provenance.check_provenance [SEEDS] [ROWS] [SHAPE]

Creates a workspace with datasets of all shapes (tests/provenance/shapes.py) for each of SEEDS seeds (3 by
default), traces ROWS rows of each dataset (4 by default), and replays the transactions with only the input
rows of the answer, and without them. Prints the claims that do not hold, and the number of exact answers.
Exits with 1 if a claim does not hold.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions
from odf_engine.workspace.workspace import Workspace
from tests.derive.deriving import Deriving
from tests.provenance.shapes import SHAPES, Shapes


def main() -> int:
    seeds, rows = (int(number) for number in [*sys.argv[1:3], *("3", "4")[len(sys.argv[1:3]) :]])
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
    print(f"{failed} claims do not hold" if failed else "all claims hold")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
