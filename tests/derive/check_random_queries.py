"""Checks that the latest state of random stateful queries equals Spark's batch query.

    python -m tests.derive.check_random_queries CASES [SEED]

Runs CASES cases from SEED on (0 by default), and prints the seeds that fail; ``1 SEED`` runs one seed again.
Every tenth seed combines several cases in one dataset; the others have a single case of any shape.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from odf_engine.errors import OdfError
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions
from odf_engine.workspace.workspace import Workspace
from tests.derive.deriving import Deriving
from tests.derive.random_queries import COMBINED, compare_seed


def main() -> None:
    cases, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    started, run, failed = time.monotonic(), 0, list[int]()
    with tempfile.TemporaryDirectory() as top:
        options = SparkOptions(master="local[2]", driver_memory="1g")
        runtime = SparkRuntime(options, Path(top) / "spark.log", Path(top) / "cache")
        runtime.start()
        while run < cases:
            combined = 1 if seed % 10 else COMBINED
            with tempfile.TemporaryDirectory(dir=top) as folder:
                deriving = Deriving(Workspace.init(Path(folder) / "workspace"), runtime)
                try:
                    problems = compare_seed(deriving, runtime, seed, combined=combined)
                except (OdfError, AssertionError) as error:
                    problems = [f"seed {seed}: {type(error).__name__}: {error}"]
            run += combined
            if problems:
                failed.append(seed)
                print(*problems, sep="\n", flush=True)
            print(f"{run:,} cases, {time.monotonic() - started:.0f} s, seed {seed}", file=sys.stderr)
            seed += 1
        runtime.stop()
    print(f"{run:,} cases, seeds that failed: {', '.join(map(str, failed)) or 'none'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
