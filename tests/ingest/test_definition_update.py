"""Datasets whose definition changes between pulls."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from odf_engine.base.progress import Reporter
from odf_engine.derive.verify.integrity import verify
from odf_engine.errors import Conflict, InvalidSchema
from odf_engine.ingest.polling_source import pull
from odf_engine.ingest.push_source import push
from odf_engine.metadata.yaml import read_manifests
from odf_engine.rows.row_window import RowWindowReader
from odf_engine.workspace.definitions.definition import PlannedUpdate, current_definition
from tests.ingest.pulling import MANIFEST, Pulled
from tests.ingest.test_real_world_files import assert_state_is

NYC = r"""
fetch:
  kind: FilesGlob
  path: in/*.csv
  eventTime: {kind: FromPath, pattern: '(\d+-\d+-\d+)\.csv'}
read:
  kind: Csv
  header: true
  schema:
    - MODIFIED_ZCTA INT NOT NULL
    - NEIGHBORHOOD_NAME STRING
    - BOROUGH_GROUP STRING
    - COVID_CASE_COUNT BIGINT
    - COVID_CASE_RATE DECIMAL(10, 2)
    - POP_DENOMINATOR DECIMAL(12, 2)
    - COVID_DEATH_COUNT BIGINT
    - COVID_DEATH_RATE DECIMAL(10, 2)
    - PERCENT_POSITIVE DOUBLE
    - TOTAL_COVID_TESTS BIGINT
merge: {kind: Snapshot, primaryKey: [MODIFIED_ZCTA]}
"""
MORE = ("label STRING", "lat DOUBLE", "lon DOUBLE")


def update(pulled: Pulled, source: str, more: str = "") -> PlannedUpdate:
    """The dataset gets another polling source."""
    indented = "\n".join("      " + line for line in source.strip("\n").splitlines())
    events = "\n".join("    " + line for line in more.strip("\n").splitlines())
    text = MANIFEST.format(name="data", source=indented) + events
    (changed,) = pulled.workspace.update(read_manifests(text, "test.yaml"))
    return changed


def take(pulled: Pulled, *days: Path) -> None:
    (pulled.workspace.folder / "in").mkdir(exist_ok=True)
    for day in days:
        (pulled.workspace.folder / "in" / day.name).symlink_to(day)


def test_new_columns_are_null_in_earlier_rows(pulled: Pulled, shared: Path) -> None:
    days = [shared / "data" / "nyc-modzcta" / f"2021-03-{day}.csv" for day in (11, 12)]
    pulled.add(NYC)
    take(pulled, days[0])
    assert pulled.pull().blocks == 2
    take(pulled, days[1])
    said = "read.schema declares 10; new: label, lat, lon"
    pulled.fails(InvalidSchema, "2021-03-12.csv", "13 columns", said, "odf add --update --infer data")
    before = pulled.dataset.state().last_offset
    assert before is not None
    grown = NYC.replace("    - BOROUGH_GROUP STRING\n", "    - BOROUGH_GROUP STRING\n" + "".join(
        f"    - {column}\n" for column in MORE
    ))  # fmt: skip
    changed = update(pulled, grown)
    assert [change.title for change in changed.changes] == ["SetDataSchema", "SetPollingSource"]
    assert [line for line in changed.changes[0].lines if line[0] == "+"] == [f"+ {column}" for column in MORE]
    assert pulled.pull().blocks == 1
    assert pulled.kinds()[-3:] == ["SetDataSchema", "SetPollingSource", "AddData"]
    assert_state_is(pulled, pulled.dataset.list_blocks(9, kinds={"AddData"})[1].hash, days[0])
    # The newest state; every row got the new columns on the day that they came.
    whole = RowWindowReader(pulled.dataset)
    table = whole.window(0, whole.row_count)
    assert table.column_names[-3:] == ["label", "lat", "lon"]
    old, new = table.slice(0, before + 1).to_pylist(), table.slice(before + 1).to_pylist()
    assert {(row["label"], row["lat"], row["lon"]) for row in old} == {(None, None, None)}
    state: dict[int, dict[str, Any]] = {}
    for row in [*old, *new]:
        if row["op"] in (0, 3):
            state[row["MODIFIED_ZCTA"]] = row
        elif row["op"] == 1:
            del state[row["MODIFIED_ZCTA"]]
    with days[1].open(newline="") as file:
        wanted = {int(row["MODIFIED_ZCTA"]): row for row in csv.DictReader(file)}
    assert state.keys() == wanted.keys()
    for key, row in state.items():
        assert (row["label"], row["lat"], row["lon"]) == (
            wanted[key]["label"], float(wanted[key]["lat"]), float(wanted[key]["lon"])
        )  # fmt: skip
        assert row["COVID_CASE_COUNT"] == int(wanted[key]["COVID_CASE_COUNT"])
    assert sum(row["op"] == 2 for row in new) >= 177  # a value where there was none is a correction
    report = verify(pulled.dataset, Reporter())
    assert report.valid, report.findings
    assert not pulled.workspace.update([current_definition(pulled.entry)])[0].events


QUERY = """
fetch: {kind: Url, url: a.csv}
read: {kind: Csv, header: true, schema: [id INT, city STRING, people BIGINT]}
preprocess: {kind: Sql, engine: spark, query: "%s"}
merge: {kind: Ledger, primaryKey: [id]}
"""


def test_new_query_column_requires_a_schema_update(pulled: Pulled) -> None:
    pulled.write("a.csv", "id,city,people\n1,Ghent,5\n")
    pulled.add(
        QUERY % "SELECT id, city FROM input", more="- kind: SetDataSchema\n  schema: [id INT, city STRING]"
    )
    pulled.pull()
    assert pulled.kinds() == ["Seed", "SetPollingSource", "SetDataSchema", "AddData"]
    more = QUERY % "SELECT people, id, city FROM input"
    with pytest.raises(InvalidSchema, match="new column people: the preprocess query returns it"):
        update(pulled, more)
    hidden = QUERY % "SELECT * FROM (SELECT people, id, city FROM input) LIMIT 9"
    with pytest.raises(InvalidSchema, match="new column people"):
        update(pulled, hidden)
    pulled.write("a.csv", "id,city,people\n1,Ghent,5\n2,Bruges,6\n")
    printed = current_definition(pulled.entry)
    assert printed.metadata[-1].ddl == ["id INT", "city STRING"]  # type: ignore[union-attr]
    changed = update(pulled, more, "- kind: SetDataSchema\n  schema: [people BIGINT, id INT, city STRING]")
    assert [change.title for change in changed.changes] == ["SetDataSchema", "SetPollingSource"]
    assert pulled.pull().records == 1
    table = RowWindowReader(pulled.dataset).window(0, 9)
    assert table.column_names[4:] == ["people", "id", "city"]
    assert table.select(["people", "id", "city"]).to_pylist() == [
        {"people": None, "id": 1, "city": "Ghent"},
        {"people": 6, "id": 2, "city": "Bruges"},
    ]
    assert verify(pulled.dataset, Reporter()).valid


ROWS = "fetch: {kind: Url, url: %s}\nread: {kind: Csv, schema: [id INT, x STRING]}\nmerge: {kind: Append}"


def test_changed_url_is_fetched_again_but_changed_query_is_not(pulled: Pulled) -> None:
    """Rows are taken twice by Append: a changed query must not bring that about, a changed URL has to."""
    pulled.write("a.csv", "1,a\n")
    pulled.write("b.csv", "2,b\n")
    pulled.add(ROWS % "a.csv")
    pulled.pull()
    query = "\npreprocess: {kind: Sql, engine: spark, query: 'SELECT id, upper(x) AS x FROM input'}"
    assert update(pulled, ROWS % "a.csv" + query).events
    assert pulled.pull().status == "up-to-date"
    update(pulled, ROWS % "b.csv" + query)
    assert pulled.pull().records == 1
    assert pulled.rows("id", "x") == [(1, "a"), (2, "B")]


def test_an_update_during_a_pull_stops_the_pull(pulled: Pulled, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the old definition made of the rows is not committed after the new one."""
    from odf_engine.spark.executors.slice_writer import ExecutorWriter

    pulled.write("a.csv", "1,a\n")
    pulled.add(ROWS % "a.csv")
    real = ExecutorWriter.write_batches

    def late(*args: Any, **kwargs: Any) -> Any:
        update(pulled, ROWS % "a.csv", "- kind: SetInfo\n  description: new")
        return real(*args, **kwargs)

    monkeypatch.setattr(ExecutorWriter, "write_batches", late)
    with pytest.raises(Conflict):
        pulled.pull()
    assert pulled.kinds() == ["Seed", "SetPollingSource", "SetInfo"]
    monkeypatch.undo()
    assert pulled.pull().records == 1


def test_an_update_between_two_files_stops_the_pull(pulled: Pulled) -> None:
    """The second file was fetched for a source that is no more; the next pull takes it."""
    files = (ROWS % "x").replace("{kind: Url, url: x}", "{kind: FilesGlob, path: in/*}")
    query = "\npreprocess: {kind: Sql, engine: spark, query: 'SELECT id, upper(x) AS x FROM input'}"
    for name in "ab":
        pulled.write(f"in/{name}.csv", f"1,{name}\n")
    pulled.add(files)

    def on_file(text: str) -> None:
        if text.startswith("file ") and "b.csv" in text:
            update(pulled, files + query)

    pulled.reporter.on_line = on_file
    with pytest.raises(Conflict):
        pull(pulled.workspace, pulled.entry, pulled.runtime, pulled.reporter)
    assert pulled.rows("x") == [("a",)]
    assert pulled.pull().records == 1
    assert pulled.rows("x") == [("a",), ("B",)]


def test_an_update_between_two_pushed_files_stops_the_push(pulled: Pulled) -> None:
    pushed = """
kind: DatasetSnapshot
version: 1
content:
  name: data
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: Csv, schema: [id INT, x STRING]}
      merge: {kind: %s}
"""
    (pulled.entry,) = pulled.workspace.add(read_manifests(pushed % "Append", "test.yaml"))
    files = [pulled.write(f"{name}.csv", f"1,{name}\n") for name in "ab"]

    def on_line(text: str) -> None:
        if text.startswith("a.csv: committed block "):
            pulled.workspace.update(read_manifests(pushed % "Ledger, primaryKey: [id]", "test.yaml"))

    pulled.reporter.on_line = on_line
    with pytest.raises(Conflict, match="push source 'default' changed") as caught:
        push(pulled.workspace, pulled.entry, pulled.runtime, pulled.reporter, files=files)
    assert "already committed: a.csv" in (caught.value.hint or "")
    assert pulled.rows("x") == [("a",)]
