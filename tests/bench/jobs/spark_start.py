"""A start of Spark, from a new process to the first answer, compared with stock PySpark.

Both start a Python process, start Spark, and collect ``SELECT 1``. Stock PySpark is
``SparkSession.builder.getOrCreate()`` without any setting, with the Java of the machine. Runs alternate. The
class-data archive is recorded first if it is missing, which takes half a minute.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from odf_engine.spark.runtime import archive_recorder, class_data_archive
from odf_engine.spark.runtime.jvm import find_java
from tests.bench.measure import Figure, Metric, Size, require

STOCK = """
from pyspark.sql import SparkSession
print(SparkSession.builder.getOrCreate().sql("SELECT 1").collect(), flush=True)
"""
ENGINE = """
import sys
from pathlib import Path
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions
runtime = SparkRuntime(SparkOptions(), Path(sys.argv[1]) / "spark.log", Path(sys.argv[1]))
runtime.start()
print(runtime.session().sql("SELECT 1").collect(), flush=True)
runtime.stop()
"""
METRICS = {
    "archive": Metric("start with the class-data archive", "stock PySpark", "<= 0.4x"),
    "plain": Metric("start without the archive", "stock PySpark"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    require("java")
    java = find_java()
    if class_data_archive.find_archive(java) is None:
        archive_recorder.record_archive(java)
    programs = {"stock": (STOCK, "1"), "plain": (ENGINE, "0"), "archive": (ENGINE, "1")}
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(size.pick(5, 1)):
        for name, (program, archive) in programs.items():
            times[name].append(start(program, folder, archive))
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    return [metric.figure(medians[name], medians["stock"]) for name, metric in METRICS.items()]


def start(program: str, folder: Path, archive: str) -> float:
    """Return the seconds from the start of a process to the first line that it prints."""
    environment = {**os.environ, "ODF_SPARK_ARCHIVE": archive}
    command, pipe = [sys.executable, "-c", program, str(folder)], subprocess.PIPE
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment, text=True)
    assert process.stdout is not None
    answer = process.stdout.readline()
    seconds = time.perf_counter() - began
    _, errors = process.communicate()
    assert "Row" in answer, errors
    return seconds
