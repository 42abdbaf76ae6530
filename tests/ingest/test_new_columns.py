"""New columns of the sources of root datasets, which read.schema, the query and the schema get together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import odf_engine as odf
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import InvalidQuery, InvalidSchema, NewColumns
from odf_engine.jobs.definition import Update, UpdateResult, Validate
from odf_engine.metadata.yaml import read_manifests
from odf_engine.spark.runtime.session import SparkRuntime
from tests.api.conftest import on_runtime

DEFINITION = """
kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: FilesGlob, path: in/*}
      read: {READ}
      merge: {kind: Ledger, primaryKey: [id]}
"""
CSV = "kind: Csv, header: true, schema: [id INT, city STRING]"
QUERY = "      preprocess: {kind: Sql, engine: %s, query: '%s'}\n"


def with_query(query: str, read: str = CSV, engine: str = "spark") -> str:
    return DEFINITION.replace("READ", read) + QUERY % (engine, query)


class Cities:
    """A dataset whose source is a folder of files."""

    def __init__(self, workspace: odf.Workspace) -> None:
        self.workspace = workspace
        (workspace.folder / "in").mkdir()

    def add(self, definition: str) -> None:
        """Add the dataset and pull its first file."""
        self.workspace.add(definition)
        self.write("a.csv", "id,city\n1,Ghent\n")
        assert self.dataset.pull().records == 1

    @property
    def dataset(self) -> odf.Dataset:
        return self.workspace["cities"]

    def write(self, name: str, text: str) -> None:
        (self.workspace.folder / "in" / name).write_text(text)

    def accept(self, definition: str) -> UpdateResult:
        request = Update(dataset=self.dataset.id, manifest=definition, accept_columns=True)
        return self.workspace._runner.run(request, "cities")

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        table = self.dataset.scan(["offset", *columns]).to_arrow().sort_by("offset").select(list(columns))
        return [tuple(row.values()) for row in table.to_pylist()]


@pytest.fixture
def cities(tmp_path: Path, runtime: SparkRuntime) -> Iterator[Cities]:
    with odf.init(tmp_path, in_process=True) as workspace:
        yield Cities(on_runtime(workspace, runtime))


@pytest.mark.parametrize(
    ("definition", "titles", "edited"),
    [
        (DEFINITION.replace("READ", CSV), ["SetDataSchema", "SetPollingSource"], ""),
        (with_query("SELECT * FROM input"), ["SetDataSchema", "SetPollingSource"], "SELECT * FROM input"),
        (
            with_query("SELECT id, upper(city) AS city FROM input"),
            ["SetDataSchema", "SetPollingSource"],
            "SELECT id, upper(city) AS city, people, `Big one` FROM input",
        ),
        (
            with_query("SELECT id, city FROM input", engine="datafusion"),
            ["SetDataSchema", "SetPollingSource"],
            'SELECT id, city, people, "Big one" FROM input',
        ),
        (
            DEFINITION.replace("READ", "kind: Csv, header: true, inferSchema: true"),
            ["SetDataSchema"],
            "",
        ),
    ],
    ids=["no-query", "star", "named", "datafusion", "inferred"],
)
def test_columns_of_a_file_are_added_in_one_commit(
    cities: Cities, definition: str, titles: list[str], edited: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cities.add(definition)
    cities.write("b.csv", "id,people,city,Big one\n2,7,Bruges,1.5\n")
    with pytest.raises(NewColumns, match="people") as caught:
        cities.dataset.pull()
    accept = "odf show --manifest cities | odf add --update --accept-columns -"
    command = accept if "inferSchema" in definition else "odf add --update --infer cities"
    assert command in str(caught.value.hint)

    commits: list[Any] = []
    commit = Dataset.commit
    monkeypatch.setattr(
        Dataset, "commit", lambda *given, **named: (commits.append(given), commit(*given, **named))[1]
    )
    result = cities.accept(definition)
    assert len(commits) == 1
    assert ([change.title for change in result.changes], result.status) == (titles, "updated")
    added = [line for line in result.changes[0].lines if line[:1] == "+"]
    assert added == ["+ people BIGINT", "+ `Big one` DOUBLE"]
    assert result.definition is not None and edited in result.definition.replace("''", "'")
    if len(titles) == 2:  # columns are matched by their position
        source = read_manifests(result.definition, "x")[0].metadata[0]
        columns = ["id INT", "people BIGINT", "city STRING", "`Big one` DOUBLE"]
        assert source.read.schema == columns  # type: ignore[union-attr]

    assert cities.dataset.pull().records == 1
    assert cities.rows("id", "people", "Big one") == [(1, None, None), (2, 7, 1.5)]
    # The definition is complete: nothing is left to change.
    assert cities.accept(result.definition).status == "unchanged"


def test_query_that_cannot_be_extended_is_edited_by_hand(cities: Cities) -> None:
    definition = with_query("SELECT id, max(city) AS city FROM input GROUP BY id")
    cities.add(definition)
    cities.write("b.csv", "id,city,people\n2,Bruges,7\n")
    head = cities.dataset.head
    with pytest.raises(InvalidQuery, match="automatically: it has GROUP BY") as caught:
        cities.accept(definition)
    assert "preprocess, query, line 1, column 29" in str(caught.value.where)
    assert cities.dataset.head == head
    by_hand = definition.replace("AS city FROM", "AS city, sum(people) AS total FROM")
    result = cities.accept(by_hand)
    assert [change.title for change in result.changes] == ["SetDataSchema", "SetPollingSource"]
    assert cities.dataset.pull().records == 1
    assert cities.rows("id", "total") == [(1, None), (2, 7)]


def test_missing_columns_and_other_types_are_refused(cities: Cities) -> None:
    definition = with_query("SELECT id, city FROM input")
    cities.add(definition)
    cities.write("b.csv", "id,people,area\n2,7,1\n")
    head = cities.dataset.head
    with pytest.raises(InvalidSchema, match="the file has 3 columns") as caught:
        cities.accept(definition)
    assert not isinstance(caught.value, NewColumns)
    cities.write("b.csv", "id,city,people\n2,Bruges,7\n")
    with pytest.raises(InvalidSchema, match="column 'id' was INT, is STRING"):
        cities.accept(definition.replace("SELECT id,", "SELECT CAST(id AS STRING) AS id,"))
    assert cities.dataset.head == head


def test_columns_that_the_query_left_out_are_added_later(cities: Cities) -> None:
    definition = with_query("SELECT id, city FROM input")
    cities.add(definition)
    cities.write("b.csv", "id,city,people\n2,Bruges,7\n")
    more = definition.replace("city STRING", "city STRING, people INT")
    (update,) = cities.workspace._workspace.update(read_manifests(more, "x"))
    assert update.unused == ["people"]
    assert cities.dataset.pull().records == 1  # the file is ingested, and is read again as a sample
    result = cities.accept(more)
    assert [change.title for change in result.changes] == ["SetDataSchema", "SetPollingSource"]
    assert result.definition is not None and "SELECT id, city, people FROM input" in result.definition


def test_other_changes_of_the_manifest_are_kept(cities: Cities) -> None:
    """The schema in the manifest has its own order and columns."""
    definition = with_query("SELECT id, city FROM input")
    cities.add(definition)
    listed = "    - {kind: SetDataSchema, schema: [id INT, people INT, city STRING, note STRING]}\n"
    info = "    - {kind: SetInfo, description: Cities}\n"
    changed = definition.replace("city STRING]", "city STRING, people INT, area INT]") + listed + info
    with pytest.raises(InvalidSchema, match="column 'note' is missing"):
        cities.accept(changed)
    changed = changed.replace(", note STRING", "")
    result = cities.accept(changed)
    assert [change.title for change in result.changes] == ["SetDataSchema", "SetPollingSource", "SetInfo"]
    assert cities.dataset.schema is not None
    assert cities.dataset.schema.names[4:] == ["id", "people", "city", "area"]
    assert result.definition is not None
    metadata: Any = read_manifests(result.definition, "x")[0].metadata
    assert metadata[0].preprocess.query == "SELECT id, city, people, area FROM input"
    assert metadata[1].ddl == ["id INT", "people INT", "city STRING", "area INT"]
    assert not cities.workspace._workspace.update(read_manifests(result.definition, "x"))[0].events


def test_columns_of_a_manifest_without_query_are_reported(cities: Cities) -> None:
    definition = DEFINITION.replace("READ", CSV)
    cities.add(definition)
    plan = Validate(
        manifest=definition.replace("city STRING", "city STRING, people INT"), dataset=cities.dataset.id
    )
    assert cities.workspace._runner.run(plan, "cities").new == ["people"]


def test_new_keys_of_inferred_json_are_added(cities: Cities) -> None:
    definition = DEFINITION.replace("READ", "kind: NdJson")
    cities.workspace.add(definition)
    cities.write("a.json", '{"id": 1, "at": {"x": 1}}\n')
    cities.dataset.pull()
    cities.write("b.json", '{"id": 2, "at": {"x": 2}, "on": {"y": true}}\n')
    with pytest.raises(NewColumns, match="column 'on' is new"):
        cities.dataset.pull()
    assert cities.accept(definition).changes[0].lines[-1] == "+ on STRUCT<y: BOOLEAN>"
    cities.dataset.pull()
    assert cities.rows("id", "on") == [(1, None), (2, {"y": True})]


def test_columns_of_a_push_source_come_from_the_manifest(cities: Cities) -> None:
    definition = with_query(
        "SELECT id, at.x AS x FROM input", 'kind: NdJson, schema: [id INT, "at STRUCT<x: INT>"]'
    )
    definition = definition.replace("SetPollingSource", "AddPushSource").replace(
        "fetch: {kind: FilesGlob, path: in/*}", "sourceName: default"
    )
    definition += "    - kind: SetDataSchema\n      schema: [id INT, x INT]\n"
    cities.workspace.add(definition)
    cities.write("a.json", '{"id": 1, "at": {"x": 1}}\n')
    file = cities.workspace.folder / "in" / "a.json"
    cities.dataset.ingest(file)
    cities.write("a.json", '{"id": 2, "at": {"x": 2}, "on": "y"}\n')
    with pytest.raises(InvalidSchema, match="unknown columns: on") as caught:
        cities.dataset.ingest(file)
    assert "add them to read.schema" in str(caught.value.hint)
    more = definition.replace('[id INT, "at', '[id INT, on STRING, "at')
    plan = cities.workspace._runner.run(Validate(manifest=more, dataset=cities.dataset.id), "cities")
    assert (plan.new, [change.title for change in plan.changes]) == (
        ["on"],
        ["SetDataSchema", "AddPushSource 'default'"],
    )
    result = cities.accept(more)
    assert result.changes == plan.changes
    assert result.definition is not None
    assert read_manifests(result.definition, "x")[0].metadata[1].ddl == ["id INT", "x INT", "on STRING"]  # type: ignore[union-attr]
    cities.dataset.ingest(file)
    assert cities.rows("id", "x", "on") == [(1, 1, None), (2, 2, "y")]
