"""A small workspace for the Python API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import odf_engine as odf

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
def spark_workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[odf.Workspace]:
    """A workspace whose jobs run in this process; Spark runs for the session."""
    with odf.init(tmp_path_factory.mktemp("api") / "ws", in_process=True) as workspace:
        yield workspace


def fill(workspace: odf.Workspace) -> odf.Workspace:
    """Leave one dataset of three rows in the workspace."""
    for dataset in reversed(list(workspace)):
        workspace._workspace.delete(dataset._entry)
    (dataset,) = workspace.add(POPULATION)
    assert dataset.ingest(ROWS).records == 3
    return workspace


@pytest.fixture
def workspace(spark_workspace: odf.Workspace) -> odf.Workspace:
    """The workspace with one dataset of three rows."""
    return fill(spark_workspace)
