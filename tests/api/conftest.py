"""A small workspace for the Python API."""

from __future__ import annotations

import pytest

import odf_engine as odf
from odf_engine.spark.runtime.session import SparkRuntime

POPULATION = """
kind: DatasetSnapshot
version: 1
content:
  name: city.population
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read:
        kind: NdJson
        schema: [event_time TIMESTAMP, city STRING, population INT]
      merge:
        kind: Ledger
        primaryKey: [event_time, city]
"""
ROWS = [
    {"event_time": "2024-01-01T00:00:00Z", "city": "Oslo", "population": 700000},
    {"event_time": "2024-02-01T00:00:00Z", "city": "Rome", "population": 2800000},
    {"event_time": "2024-02-15T00:00:00Z", "city": "Oslo", "population": 710000},
]


@pytest.fixture(scope="session")
def spark_workspace(tmp_path_factory: pytest.TempPathFactory, runtime: SparkRuntime) -> odf.Workspace:
    """A workspace whose jobs run in this process, on the Spark of all tests."""
    return on_runtime(odf.init(tmp_path_factory.mktemp("api") / "ws", in_process=True), runtime)


def on_runtime(workspace: odf.Workspace, runtime: SparkRuntime) -> odf.Workspace:
    """Let the jobs of a workspace run on the Spark of all tests."""
    workspace._runner._runtime = runtime
    workspace.close = lambda: None  # type: ignore[method-assign]  # it must not stop that
    return workspace


def fill(workspace: odf.Workspace) -> odf.Workspace:
    """Leave one dataset of three rows in the workspace."""
    for dataset in sorted(workspace, key=lambda each: each.kind):  # derivative before root
        workspace._workspace.delete(dataset._entry)
    (dataset,) = workspace.add(POPULATION)
    assert dataset.ingest(ROWS).records == 3
    return workspace


@pytest.fixture
def workspace(spark_workspace: odf.Workspace) -> odf.Workspace:
    """The workspace with one dataset of three rows."""
    return fill(spark_workspace)
