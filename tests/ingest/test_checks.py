"""Checks: definitions, and pulls and transforms whose new rows are examined before the commit."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.checks import key_rules
from odf_engine.checks.definition import CheckDefinition
from odf_engine.checks.gate import DatasetChecks, load_checks
from odf_engine.checks.reports import list_rejected, read_report, report_path
from odf_engine.data.parquet.slice_rows import SliceProperties
from odf_engine.data.parquet.slices import read_batches, slice_schema, write_slice
from odf_engine.derive.query_migration import migrate_query
from odf_engine.derive.run import transform
from odf_engine.engines.spark_engine import SparkEngine
from odf_engine.errors import BadData, CheckFailed, InvalidManifest, InvalidQuery, NotTrusted
from odf_engine.metadata.model import DEFAULT_VOCABULARY
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.documents.document import read_document
from odf_engine.workspace.documents.store import Documents
from tests.ingest.pulling import Pulled

SOURCE = """
fetch: {kind: FilesGlob, path: "in/*.ndjson", order: ByName}
read: {kind: NdJson, schema: ["id INT", "name STRING", "value DOUBLE", "day DATE"]}
merge: {kind: Append}
"""
RULES = """
- {kind: NotNull, columns: [id, name]}
- {kind: Unique, columns: [id]}
- {kind: Range, column: value, min: 0, max: 100}
- {kind: Range, column: day, min: "2020-01-01", name: recent}
- {kind: Pattern, column: name, pattern: "^[a-z]+$", onFailure: warn}
- {kind: Set, column: name, values: [a, b, c, D]}
- {kind: RowCount, min: 1, maxRatio: 2.0}
- {kind: Freshness, maxAge: 1d}
- {kind: Reference, columns: [name], dataset: names, keys: [key]}
- {kind: Sql, name: no13, query: "SELECT id FROM new_rows WHERE id = 13"}
"""
DERIVED = """
kind: DatasetSnapshot
version: 1
content:
  name: derived
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: data}]
      transform: {kind: Sql, engine: spark, query: "SELECT event_time, id, value FROM data"}
"""


def definition(name: str, target: str, rules: str) -> bytes:
    indented = "\n".join("    " + line for line in rules.strip().splitlines())
    return f"headers: {{name: {name}}}\nspec:\n  target: {target}\n  rules:\n{indented}\n".encode()


def add(pulled: Pulled, name: str, target: str, rules: str) -> None:
    odf = pulled.workspace.odf
    checks = Documents(odf, CheckDefinition)
    checks.accept(checks.write(definition(name, target, rules), name, replace=True))


def rows(*values: tuple[int | None, str | None, float, str]) -> str:
    names = ("id", "name", "value", "day")
    return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in values)


@pytest.mark.parametrize(
    ("rules", "where", "problem"),
    [
        ("- {kind: NotNull}", "5:7", "required field `columns`"),
        ("- {kind: Range, column: a}", "5:7", "range requires min or max"),
        ('- {kind: Pattern, column: a, pattern: "("}', "5:7", "invalid regular expression"),
        ("- {kind: Nothing, column: a}", "5:14", "invalid value"),
        ("- {kind: Set, column: a, values: [1], vlaues: 2}", "5:43", "unknown field `vlaues`"),
        ("- {kind: Set, column: a, column: b, values: [1]}", "5:30", "duplicate field 'column'"),
        ("- {kind: Retractions}", "5:7", "retractions requires max or maxRatio"),
        ("- {kind: RowCount, min: x}", "5:29", "expected `int"),
        ("- {kind: Freshness, maxAge: soon}", "5:33", "is not a duration"),
        (
            '- {kind: Sql, query: "SELECT FROM WHERE"}',
            "5:26",
            "invalid SQL at line 1, column 17 of the query",
        ),
        ('- {kind: Sql, query: "DELETE FROM a"}', "5:26", "must be one SELECT"),
        ("- {kind: RowCount, min: 1}\n- {kind: RowCount, max: 1}", "6:7", "two rules are named 'RowCount'"),
    ],
)
def test_invalid_check_definition_is_rejected_with_location(rules: str, where: str, problem: str) -> None:
    with pytest.raises(InvalidManifest) as caught:
        read_document(definition("c", "data", rules), "c.yaml", CheckDefinition)
    assert "Token" not in caught.value.message
    assert (caught.value.where, problem in caught.value.message) == (f"c.yaml:{where}", True), caught.value


@pytest.mark.parametrize(
    ("stored", "new", "failing"),
    [
        ([], [1, 2, None, 5], 0),
        ([[1, 2], [3, 4]], [5, 9], 0),
        ([[1, 2], [3, 9]], [5, 6, 8], 0),  # not greater, but distinct
        ([[1, 2], [3, 4]], [5, 9, 9], 2),
        ([[1, 2], [3, 4]], [4, 5], 1),
        ([], [3, 1, 2, 1], 2),
    ],
)
def test_duplicate_keys_are_counted_across_slices(
    stored: list[list[int]], new: list[int | None], failing: int, tmp_path: Path
) -> None:
    schema = slice_schema(pa.schema([("id", pa.int64())]), DEFAULT_VOCABULARY)
    paths: list[Path] = []
    for values in [*stored, new]:
        time = Timestamp.parse("2024-05-01T00:00:00Z")
        batch = pa.record_batch([pa.array(values, pa.int64())], ["id"])
        written = write_slice(
            [batch],
            SliceProperties(
                schema=schema,
                vocab=DEFAULT_VOCABULARY,
                first_offset=10 * len(paths),
                system_time=time,
                fallback_event_time=time,
            ),
            path=tmp_path / f"{len(paths)}.parquet",
            reporter=Reporter(),
        )
        assert written is not None
        paths.append(written.path)
    rows = key_rules.KeyedRows(paths[-1:], ["id"], DEFAULT_VOCABULARY)
    found = key_rules.find_repeated_keys(rows, paths[:-1], tmp_path, Reporter(), within_slice=False)
    assert (found.failing if found else 0) == failing


@pytest.mark.spark
def test_failed_check_blocks_commit_of_pull_and_transform(
    pulled: Pulled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    pulled.add(
        "fetch: {kind: Url, url: names.csv}\n"
        'read: {kind: Csv, schema: ["key STRING"]}\nmerge: {kind: Append}',
        name="names",
    )
    pulled.write("names.csv", "a\nb\nc\n")
    pulled.pull()
    entry = pulled.add(SOURCE)
    pulled.write("in/1.ndjson", rows((1, "a", 1.5, "2024-01-01"), (2, "b", 0, "2024-01-01")))
    add(pulled, "good", "da%", RULES)
    pulled.pull()
    (first,) = entry.dataset.slices()
    stored = read_report(entry.dataset.folder, entry.id, first.physical_hash)
    assert stored is not None
    assert stored.signed
    outcomes = {
        result.rule: (result.outcome, result.examined, result.failing) for result in stored.report.results
    }
    assert set(outcomes.values()) == {("passed", 2, 0)}
    assert len(outcomes) == 10

    # A violated rule: nothing is committed, and the rows are stored.
    bad = rows(
        (1, "a", 1.5, "2024-01-01"),
        (13, "D", -2.5, "2014-01-01"),
        (4, None, 101, "2024-01-01"),
        (4, "c", 10, "2024-01-01"),
        (None, "c", float("nan"), "2024-01-01"),
    ).replace("NaN", "null")
    pulled.write("in/2.ndjson", bad)
    head = entry.dataset.head()
    with pytest.raises(CheckFailed, match=r"check good: NotNull\(id, name\): 2 rows with null") as caught:
        pulled.pull()
    assert "offset=4, id=4, name=None" in caught.value.message
    assert entry.dataset.head() == head
    (rejected,) = list_rejected(pulled.workspace.odf, [entry.id])
    failing = {result.rule: result.failing for result in rejected.report.results if result.failing}
    assert failing == {
        "NotNull(id, name)": 2, "Unique(id)": 3, "Range(value)": 2, "recent": 1, "Pattern(name)": 1,
        "RowCount": 1, "Reference(name)": 1, "no13": 1,
    }  # fmt: skip
    assert sum(batch.num_rows for batch in read_batches(rejected.path)) == rejected.rows == 5
    unique = next(result for result in rejected.report.results if result.rule == "Unique(id)")
    assert unique.sample == [{"offset": "2", "id": "1"}, {"offset": "4", "id": "4"}]

    # With a warning the rows are committed.
    warn = "- {kind: Unique, columns: [name, day], onFailure: warn}\n"
    add(pulled, "good", "data", warn + "- {kind: Unique, columns: [id], within: slice}")
    pulled.write("in/2.ndjson", rows((1, "a", 5, "2024-01-01"), (2, "a", 5, "2024-01-02")))
    pulled.pull()
    assert [warning for warning in pulled.reporter.warnings if "Unique" in warning] == [
        "check good: Unique(name, day): 1 row with a repeated value of name, day"
    ]
    path = report_path(entry.dataset.folder, entry.dataset.slices()[-1].physical_hash)
    path.write_bytes(path.read_bytes().replace(b"1 row", b"0 row"))
    with pytest.raises(BadData, match="not signed with the key"):
        read_report(entry.dataset.folder, entry.id, entry.dataset.slices()[-1].physical_hash)

    # Refused before anything runs, with line and column.
    pulled.write("in/3.ndjson", rows((5, "a", 5, "2024-01-01")))
    for rules, kind, text in (
        ("- {kind: NotNull, columns: [id, nmae]}", InvalidManifest, r"good.yaml:5:37: unknown column 'nmae'"),
        ("- {kind: Range, column: id, min: x}", InvalidManifest, r"good.yaml:5:38: 'x' is not a value of"),
        ("- {kind: Pattern, column: id, pattern: x}", InvalidManifest, "5:31: .* requires STRING"),
        ("- {kind: Reference, columns: [id], dataset: no}", InvalidManifest, "5:49: dataset 'no' not found"),
        ("- {kind: Sql, query: SELECT idd FROM new_rows}", InvalidQuery, "5:26: .*`idd` not found"),
        ("- {kind: Sql, query: SELECT id FROM no}", InvalidQuery, "5:26: .*dataset 'no' not found"),
    ):
        add(pulled, "good", "data", rules)
        with pytest.raises(kind, match=text):
            pulled.pull()
        assert "fetch" not in pulled.reporter.phases
    Documents(pulled.workspace.odf, CheckDefinition).withdraw("good")
    with pytest.raises(NotTrusted, match="has queries and is new"):
        pulled.pull()

    # All stored rows; a transform.
    add(pulled, "good", "data", "- {kind: Unique, columns: [id]}\n- {kind: RowCount, max: 1}")
    found = DatasetChecks(pulled.workspace, entry, None).check_stored(pulled.reporter)
    assert [(each.examined, each.failing) for each in found] == [(4, 4), (2, 1)]
    trial = "headers: {name: trial}\nspec: {target: x, rules: [{kind: Sql, query: SELECT id FROM new_rows}]}"
    checks = load_checks(pulled.workspace, entry, pulled.runtime.session, trial)
    assert checks is not None
    (tried,) = checks.check_stored(pulled.reporter)
    assert (tried.check, tried.failing > 0) == ("trial", True)
    add(pulled, "good", "derived", "- {kind: Range, column: value, max: 1}")
    from odf_engine.metadata.yaml import read_manifests

    (derived,) = pulled.workspace.add(read_manifests(DERIVED, "derived.yaml"))
    head = derived.dataset.head()
    with pytest.raises(CheckFailed, match=r"3 rows above 1 \(first: offset=0, value=1.5\)"):
        transform(pulled.workspace, derived, SparkEngine(pulled.runtime), pulled.reporter)
    assert derived.dataset.head() == head

    # A query whose rows are blocked can be repaired: its rows stay uncommitted, and the new ones are checked.
    add(pulled, "good", "derived", "- {kind: Range, column: value, max: 1000}")
    transform(pulled.workspace, derived, SparkEngine(pulled.runtime), pulled.reporter)
    add(pulled, "good", "derived", "- {kind: Range, column: value, max: 1}")
    pulled.pull()
    for column, is_valid in (("value + 1", False), ("least(value, 1)", True)):
        (repaired,) = read_manifests(DERIVED.replace("value FROM", f"{column} AS value FROM"), "derived.yaml")
        migrate_query(pulled.workspace, derived, repaired, SparkEngine(pulled.runtime), pulled.reporter)
        assert "rows of the old query are not committed: derived: check good" in pulled.reporter.warnings[-1]
        assert derived.dataset.state().records == 4
        with nullcontext() if is_valid else pytest.raises(CheckFailed):
            transform(pulled.workspace, derived, SparkEngine(pulled.runtime), pulled.reporter)
    assert derived.dataset.state().records == 5


@pytest.mark.spark
def test_missing_keys_of_a_snapshot_violate_retractions(pulled: Pulled) -> None:
    entry = pulled.add(
        "fetch: {kind: FilesGlob, path: 'in/*.csv', order: ByName}\n"
        "read: {kind: Csv, header: true, schema: [week STRING NOT NULL, county STRING NOT NULL, n BIGINT]}\n"
        "merge: {kind: Snapshot, primaryKey: [week, county]}"
    )
    header = "week,county,n\n"
    pulled.write("in/1.csv", header + "1,A,1\n1,B,2\n1,C,3\n1,D,4\n")
    add(pulled, "none", "data", "- {kind: Retractions, max: 0}")
    pulled.pull()  # the first rows retract nothing
    pulled.write("in/2.csv", header + "1,A,7\n1,D,4\n2,A,5\n")
    with pytest.raises(CheckFailed, match="none: Retractions: 2 rows retracted: more than 0") as caught:
        pulled.pull()
    assert "(first: offset=6, week=1, county=B)" in caught.value.message
    for rule, problem in (
        ("{kind: Retractions, maxRatio: 0.4}", "2 rows retracted: more than 0.4 times the 4 rows"),
        ("{kind: Retractions, max: 1, maxRatio: 0.5}", "2 rows retracted: more than 1"),
        ("{kind: Retractions, max: 2, maxRatio: 0.5}", None),  # the correction of 1,A is none
    ):
        add(pulled, "none", "data", f"- {rule}")
        with nullcontext() if problem is None else pytest.raises(CheckFailed, match=problem):
            pulled.pull()
    # Stored rows: the newest commit is examined, relative to the state before it.
    add(
        pulled, "none", "data", "- {kind: Retractions, max: 1}\n- {kind: Retractions, name: b, maxRatio: 0.5}"
    )
    found = DatasetChecks(pulled.workspace, entry, None).check_stored(pulled.reporter)
    assert [(each.examined, each.failing) for each in found] == [(5, 2), (5, 0)]
    pulled.write("in/3.csv", header + "1,A,7\n1,D,4\n2,A,5\n2,B,6\n")
    pulled.pull()  # the limits are per commit
    assert DatasetChecks(pulled.workspace, entry, None).check_stored(pulled.reporter)[0].failing == 0
