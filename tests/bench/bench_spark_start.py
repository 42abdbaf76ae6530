"""The second and later starts of Spark, from a new process to the first answer, against stock pyspark.

    python tests/bench/bench_spark_start.py [RUNS]

Both start a process of Python, start Spark with all tiers of Java's compiler, and collect `SELECT 1`. The
stock way is `SparkSession.builder.getOrCreate()` with no setting at all; it needs a Java of the machine. Runs
alternate, so that whatever else the machine does hurts both alike. The class-data archive is recorded first
where it is missing (half a minute).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from odf_engine.spark.runtime import archive_recorder, class_data_archive
from odf_engine.spark.runtime.jvm import find_java

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench.common import table, verdict

GOAL = 0.4
STOCK = """
from pyspark.sql import SparkSession
print(SparkSession.builder.getOrCreate().sql("SELECT 1").collect(), flush=True)
"""
OURS = """
import sys
from pathlib import Path
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions
runtime = SparkRuntime(SparkOptions(), Path(sys.argv[1]) / "spark.log", Path(sys.argv[1]))
runtime.start()
print(runtime.session().sql("SELECT 1").collect(), flush=True)
runtime.stop()
"""


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    java = find_java()
    if class_data_archive.find_archive(java) is None:
        print("recording the class-data archive …")
        archive_recorder.record_archive(java)
    root = str(Path(__file__).resolve().parents[2])
    with tempfile.TemporaryDirectory(prefix="odf-bench-") as folder:
        ways = {
            "stock": [sys.executable, "-c", STOCK],
            "without archive": ["env", "ODF_SPARK_ARCHIVE=0", sys.executable, "-c", OURS, folder],
            "with archive": [sys.executable, "-c", OURS, folder],
        }
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(runs):
            for way, command in ways.items():
                taken[way].append(first_answer(command, root))
    medians = {way: statistics.median(seconds) for way, seconds in taken.items()}
    stock = medians["stock"]
    table(
        f"Spark's start to the first answer, Java {java.full_version} ({java.origin}); median of {runs}",
        [
            (f"this engine, {way}", f"{medians[way]:.2f} s", f"{stock:.2f} s", judged(medians[way] / stock))
            for way, judged in (
                ("with archive", lambda ratio: verdict(ratio, GOAL)),
                ("without archive", lambda ratio: f"{ratio:.2f}x  (the first start of all)"),
            )
        ],
    )
    for way, seconds in taken.items():
        print(f"{way}:", ", ".join(f"{each:.2f} s" for each in seconds))


def first_answer(command: list[str], root: str) -> float:
    """Seconds from the start of a process to the first line that it prints."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root, text=True)
    assert process.stdout is not None
    answer = process.stdout.readline()
    seconds = time.perf_counter() - began
    _, problem = process.communicate()
    if "Row" not in answer:
        raise SystemExit(f"no answer: {problem}")
    return seconds


if __name__ == "__main__":
    main()
