"""Spark in the process of a benchmark, and derivative datasets that it runs."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from odf_engine.base.progress import Reporter
from odf_engine.derive.run import transform
from odf_engine.engines.spark_engine import SparkEngine
from odf_engine.metadata.yaml import read_manifests
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.bench.common import make_empty
from tests.manifests import DERIVATIVE


@contextlib.contextmanager
def start_spark(folder: Path) -> Iterator[SparkRuntime]:
    """Start Spark with the settings of the engine, and stop it at the end."""
    runtime = SparkRuntime(SparkOptions(), folder / "spark.log", folder / "cache")
    runtime.start()
    try:
        yield runtime
    finally:
        runtime.stop()


class Derivations:
    """A workspace whose derivative datasets run in the same Java as bare Spark."""

    def __init__(self, folder: Path, runtime: SparkRuntime) -> None:
        self.folder = folder
        self.workspace = Workspace.init(folder / "ws")
        self.runtime = runtime
        self.engine = SparkEngine(runtime)

    def source(self, name: str) -> DatasetEntry:
        """Create a root dataset without rows."""
        return make_empty(self.workspace, name)

    def derivative(self, name: str, query: str, *sources: str) -> DatasetEntry:
        """Create a derivative dataset; a single input has the alias ``input``."""
        aliases = sources if len(sources) > 1 else ("input",)
        pairs = zip(sources, aliases, strict=True)
        inputs = ", ".join(f"{{datasetRef: {source}, alias: {alias}}}" for source, alias in pairs)
        text = DERIVATIVE.format(name=name, inputs=inputs, query=query)
        return self.workspace.add(read_manifests(text, name))[0]

    def run(self, entry: DatasetEntry) -> None:
        """Bring a derivative dataset up to date."""
        transform(self.workspace, entry, self.engine, Reporter())


def copy_newest_slice(source: DatasetEntry, path: Path) -> None:
    """Copy the newest slice to a file that Spark reads as Parquet by its name."""
    shutil.copyfile(source.dataset.slice_path(source.dataset.slices()[-1]), path)
