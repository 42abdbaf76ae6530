"""Previews: the rows that the next pull would commit, without a commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import odf_engine as odf
from odf_engine.errors import BadData, UsageError
from odf_engine.spark.runtime.session import SparkRuntime
from tests.api.conftest import on_runtime

DEFINITION = """
kind: DatasetSnapshot
version: 1
content:
  name: my.cities
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: FilesGlob, path: "data/*.csv"}
      read: {kind: Csv, header: true, schema: ["city STRING", "population BIGINT"]}
      merge: {kind: Snapshot, primaryKey: [city]}
"""


@pytest.fixture
def opened(tmp_path: Path, runtime: SparkRuntime) -> Iterator[odf.Workspace]:
    (tmp_path / "data").mkdir()
    with odf.init(tmp_path, in_process=True) as workspace:
        workspace.add(DEFINITION)
        yield on_runtime(workspace, runtime)


def put(workspace: odf.Workspace, name: str, *rows: str) -> None:
    (workspace.folder / "data" / name).write_text("\n".join(["city,population", *rows, ""]))


def files_of(dataset: odf.Dataset) -> set[Path]:
    return {path for path in dataset.folder.rglob("*") if path.is_file()}


def test_preview_shows_what_the_pull_commits(opened: odf.Workspace) -> None:
    cities = opened["my.cities"]
    put(opened, "a.csv", "Oslo,700000", "Rome,2800000")
    cities.pull()
    put(opened, "b.csv", "Oslo,710000", "Paris,1")
    before = files_of(cities)
    preview = cities.preview()
    assert preview is not None
    assert (files_of(cities), len(cities.blocks())) == (before, 4)
    shown = preview.select(["offset", "op", "city", "population"]).to_arrow().to_pylist()
    cities.pull()
    committed = cities.scan(["offset", "op", "city", "population"], offsets=(2, None))
    assert shown == committed.to_arrow().to_pylist()
    assert [row["op"] for row in shown] == [2, 3, 0, 1]


def test_preview_has_at_most_the_requested_rows_of_the_first_new_file(opened: odf.Workspace) -> None:
    put(opened, "a.csv", "Oslo,1", "Rome,2", "Paris,3")
    put(opened, "b.csv", "Berlin,4")
    preview = opened["my.cities"].preview(limit=2)
    assert preview is not None
    assert (len(preview), preview.title) == (2, "my.cities, from a.csv")


def test_without_new_rows_there_is_no_preview(opened: odf.Workspace) -> None:
    put(opened, "a.csv", "Oslo,1")
    opened["my.cities"].pull()
    assert opened["my.cities"].preview() is None


def test_preview_locates_invalid_values_as_a_pull_does(opened: odf.Workspace) -> None:
    put(opened, "a.csv", "Oslo,many")
    with pytest.raises(BadData, match="many") as raised:
        opened["my.cities"].preview()
    assert raised.value.where == 'a.csv: line 2, column "population"'


def test_dataset_that_is_pulled_from_a_remote_has_no_preview(opened: odf.Workspace) -> None:
    put(opened, "a.csv", "Oslo,1")
    cities = opened["my.cities"]
    opened.attach(cities.id, (opened.folder / "elsewhere").as_uri() + "/", "pull")
    with pytest.raises(UsageError, match=r"my\.cities is pulled from a remote"):
        cities.preview()


def test_derivative_datasets_have_no_preview(opened: odf.Workspace) -> None:
    content = {
        "name": "big.cities",
        "kind": "Derivative",
        "metadata": [
            {
                "kind": "SetTransform",
                "inputs": [{"datasetRef": "my.cities"}],
                "transform": {
                    "kind": "Sql",
                    "engine": "spark",
                    "query": "SELECT event_time, city FROM `my.cities`",
                },
            }
        ],
    }
    opened.add({"kind": "DatasetSnapshot", "version": 1, "content": content})
    with pytest.raises(UsageError, match=r"big\.cities is a derivative dataset"):
        opened["big.cities"].preview()
