"""`odf new`, `odf add --update` and `odf show --manifest`: definitions written and read back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from odf_engine import open as open_workspace
from odf_engine.api.readers.block_reader import compare_events
from odf_engine.api.readers.dataset_detail import read_dataset_detail
from odf_engine.api.samples import ROOT
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.normal_form import spark_engine_version
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.errors import Conflict, InvalidManifest, OdfError, UsageError
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    AttachmentEmbedded,
    Embedded,
    ExecuteTransform,
    ExecuteTransformInput,
    SetAttachments,
    SetDataSchema,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.shared.root import odf as odf_group
from tests.cli.conftest import Odf
from tests.sync.builders import forge


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.init(tmp_path)


def run(workspace: Workspace, *arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(odf_group, ["-w", str(workspace.folder), *arguments], input=input)


def add_all(workspace: Workspace, *options: str) -> Result:
    return run(workspace, "add", "-r", str(workspace.folder / "m"), "--update", *options)


def test_templates_are_valid_and_come_back_from_the_dataset(workspace: Workspace) -> None:
    folder = workspace.folder / "m"
    folder.mkdir()
    for name, options in (
        ("polled", ["--root"]),
        ("pushed", ["--root", "--push"]),
        ("also.pushed", ["--push"]),
        ("made", ["--derivative"]),
    ):
        printed = run(workspace, "new", name, *options).stdout
        (folder / f"{name}.yaml").write_text(printed.replace("com.example.input", "polled"))
    said = add_all(workspace, "--dry-run")
    assert said.stdout.count(": new\n") == 4
    assert workspace.datasets() == []
    assert add_all(workspace).stderr.count("added ") == 4
    again = add_all(workspace)
    assert (again.stdout, again.stderr.count(": unchanged\n")) == ("", 4)
    for name in ("polled", "pushed", "also.pushed", "made"):
        shown = run(workspace, "show", name, "--manifest").stdout
        assert "datasetRef: polled" in shown or name != "made"
        (folder / f"{name}.yaml").write_text(shown)
    assert add_all(workspace).stderr.count(": unchanged\n") == 4
    for options in ([], ["--push", "--derivative"]):
        assert isinstance(run(workspace, "new", "x", *options).exception, UsageError)


def test_manifest_of_a_published_file_is_inferred(workspace: Workspace) -> None:
    path = workspace.folder / "cases.csv"
    path.write_text("Report of 2024;\n\nday;cases\n2024-01-01;5\n2024-01-02;7\n\nSource: register\n")
    printed = run(workspace, "new", "my.cases", "--from", str(path)).stdout
    assert "url: file:cases.csv\n" in printed
    assert 'command: [odf, filter, "csv", "--separator", ";", "--skip", "2", "--stop-at-blank"]' in printed
    assert "- cases BIGINT\n" in printed
    assert run(workspace, "add", "-", input=printed).stderr.startswith("added my.cases")
    wrong = run(workspace, "new", "x", "--push", "--from", str(path))
    assert isinstance(wrong.exception, UsageError)


def test_commented_template_alternatives_are_valid() -> None:
    """Each alternative in the place of what it is an alternative to."""
    text = ROOT.replace("NAME", "x")
    fetches = re.findall(r"^      # (fetch:\n(?:      # .*\n)+?)(?=      # or|      #\n)", text, re.MULTILINE)
    reads = re.findall(r"^      # (read: \{.*?\})", text, re.MULTILINE)
    assert (len(fetches), len(reads)) == (4, 5)
    whole_fetch = re.search(r"^      fetch:\n(?:        .*\n)+", text, re.MULTILINE)
    whole_read = re.search(r"^      read:\n(?:        .*\n)+", text, re.MULTILINE)
    assert whole_fetch and whole_read
    for fetch in fetches:
        other = "".join(f"      {line}\n" for line in re.sub(r"(?m)^      # ", "", fetch).splitlines())
        read_manifests(text.replace(whole_fetch[0], other), "template")
    for read in reads:
        read_manifests(text.replace(whole_read[0], f"      {read}\n"), "template")
    for name in ("prepare", "preprocess", "SetDataSchema", "SetLicense", "SetAttachments"):
        block = re.search(rf"^ +# (?:- kind: )?{name}:?\n((?: +#  +.*\n)+)", text, re.MULTILINE)
        assert block, name
        bare = re.sub(r"(?m)^( +)# ", r"\1", block[0])
        read_manifests(text.replace(block[0], bare), "template")


def test_changes_are_shown_and_appended(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(workspace, "new", "cases", "--root").stdout
    assert json.loads(run(workspace, "add", "-", "--json", input=first).stdout) == [
        {"name": "cases", "status": "added"}
    ]
    entry = workspace.resolve("cases")
    head = entry.dataset.head()
    second = first.replace("        path: data/*.csv\n", "        path: in/*.csv\n")
    shown = run(workspace, "add", "-", "--update", "--dry-run", input=second)
    assert "cases:\n  SetPollingSource\n" in shown.stdout
    assert "\n    -   path: data/*.csv\n    +   path: in/*.csv\n" in shown.stdout
    assert shown.stderr == "cases: would append 1 event\n"
    assert entry.dataset.head() == head
    (document,) = json.loads(run(workspace, "add", "-", "--update", "--json", input=second).stdout)
    assert (document["status"], document["head"]) == ("updated", str(entry.dataset.head()))
    assert document["events"][0]["fetch"]["path"] == "in/*.csv"
    (document,) = json.loads(run(workspace, "add", "-", "--update", "--json", input=second).stdout)
    assert (document["status"], document["events"]) == ("unchanged", [])

    wrong = run(workspace, "add", "-", "--update", input=second.replace("kind: Root", "kind: Derivative"))
    assert isinstance(wrong.exception, InvalidManifest)
    assert isinstance(run(workspace, "add", "-", "--dry-run", input=second).exception, UsageError)
    # Somebody else commits between what is shown and what is appended.
    real = Workspace.update

    def late(self: Workspace, *arguments: object, shown: object = None, **named: object) -> object:
        if shown is not None:
            real(self, read_manifests(first.replace("example]", "other]"), "x"))
        return real(self, *arguments, shown=shown, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Workspace, "update", late)
    third = run(workspace, "add", "-", "--update", input=first)
    assert isinstance(third.exception, Conflict)


MANIFEST = """\
kind: DatasetSnapshot
version: 1
content: {{name: {name}, kind: {kind}, metadata: [{{kind: SetInfo, description: {text}}}{more}]}}
"""
QUERY = (
    ", {{kind: SetTransform, inputs: [{{datasetRef: a}}],"
    " transform: {{kind: Sql, engine: spark, query: {}}}}}"
)


def manifest(name: str, text: str, query: str = "") -> str:
    kind, more = ("Derivative", QUERY.format(query)) if query else ("Root", "")
    return MANIFEST.format(name=name, kind=kind, text=text, more=more)


@pytest.mark.parametrize(
    "last",
    [
        manifest("c", "new", "'SELECT event_time, rand() AS x FROM a'"),  # not deterministic
        manifest("c", "new", "'SELECT event_time FROM missing'").replace("datasetRef: a", "datasetRef: zzz"),
        manifest("b", "again"),  # two definitions of one dataset
        "kind: DatasetSnapshot\nversion: 1\ncontent: {name: c",  # malformed YAML
        manifest("c", "new").replace("SetInfo", "SetInformation"),
    ],
)
@pytest.mark.parametrize("option", [[], ["--update"]])
def test_all_definitions_are_checked_before_a_dataset_changes(
    workspace: Workspace, last: str, option: list[str]
) -> None:
    if option:
        for name in "ab":
            assert run(workspace, "add", "-", input=manifest(name, "old")).exit_code == 0
    before = [(str(dataset.alias), dataset.dataset.head()) for dataset in workspace.datasets()]
    (workspace.folder / "1.yaml").write_text(manifest("a", "new") + "---\n" + manifest("b", "new"))
    (workspace.folder / "2.yaml").write_text(last)
    files = [str(workspace.folder / name) for name in ("1.yaml", "2.yaml")]
    ran = run(workspace, "add", *files, *option)
    assert isinstance(ran.exception, OdfError), ran.output
    assert [(str(dataset.alias), dataset.dataset.head()) for dataset in workspace.datasets()] == before


def test_an_error_names_the_queries_that_did_not_change(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker changes queries after all other definitions."""
    old = [manifest("a", "old"), manifest("b", "old"), manifest("q", "old", "'SELECT event_time FROM a'")]
    assert run(workspace, "add", "-", input="---\n".join(old)).exit_code == 0
    query, root, now = workspace.resolve("q").dataset, workspace.resolve("a"), Timestamp.now()
    reads = ExecuteTransformInput(root.id, new_block_hash=root.dataset.head())
    event = ExecuteTransform([reads], new_watermark=now)
    query.commit([event], system_time=now, expected_head=query.head())
    real = Dataset.commit

    def commit(self: Dataset, *arguments: Any, **named: Any) -> Any:
        if self.folder == workspace.resolve("b").dataset.folder:
            raise OdfError("the disk is full", hint="free space")
        return real(self, *arguments, **named)

    monkeypatch.setattr(Dataset, "commit", commit)
    new = [
        manifest("a", "new"),
        manifest("b", "new"),
        manifest("q", "new", "'SELECT event_time, 1 AS x FROM a'"),
    ]
    ran = run(workspace, "add", "-", "--update", input="---\n".join(new))
    assert str(ran.exception) == (
        "dataset b: the disk is full (changed before the error: a; not changed: b; run the same command again"
        " to change them) (queries not changed: q)"
    )


def test_show_lists_active_and_disabled_sources(workspace: Workspace) -> None:
    polled = run(workspace, "new", "cases", "--root").stdout
    run(workspace, "add", "-", input=polled)
    pushed = run(workspace, "new", "cases", "--push").stdout
    run(workspace, "add", "-", "--update", input=pushed)
    big = "- kind: SetAttachments\n      attachments:\n        kind: Embedded\n        items:\n"
    big += f"          - {{path: a, content: {'x' * 9000}}}\n    - kind: SetInfo"
    run(workspace, "add", "-", "--update", input=pushed.replace("- kind: SetInfo", big))
    shown = json.loads(run(workspace, "show", "cases", "--json").stdout)
    active, disabled = shown["sources"]
    assert (active["kind"], active["sourceName"], active["active"]) == ("AddPushSource", "default", True)
    assert (disabled["kind"], disabled["active"], disabled["block"]) == ("SetPollingSource", False, 3)
    assert len(shown["attachments"]["items"][0]["content"]) == 9000
    text = run(workspace, "show", "cases").stdout
    assert "7,000 more characters" in text and len(text) < 5000
    assert "x" * 9000 in run(workspace, "show", "cases", "--manifest").stdout
    as_json = run(workspace, "show", "cases", "--manifest", "--json").stdout
    assert json.loads(as_json)["content"]["name"] == "cases"
    assert "unchanged" in run(workspace, "add", "-", "--update", input=as_json).stderr


def test_a_change_that_breaks_readers_names_its_rule(fresh: Odf, tmp_path: Path) -> None:
    schema = "    - kind: SetDataSchema\n      schema: [id INT, %s]\n"
    manifest = "kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: x\n  kind: Root\n  metadata:\n" + schema
    assert fresh("add", "-", input=manifest % "a INT").code == 0
    ran = fresh("add", "-", "--update", input=manifest % "a DATE")
    assert ran.code == 1
    assert "dataset x, block 2: " in ran.err and "(rule schema-evolution)" in ran.err
    assert "hint: keep 'a' as INT" in ran.err


@pytest.mark.complete
def test_changed_stateful_query_requires_flush_or_rebuild(odf: Odf) -> None:
    """In the demo's workspace, whose worker runs already."""
    manifest = odf("show", "port-haven.air-by-day", "--manifest").out
    assert "version: 4" not in manifest  # of the engine: written down with each transform
    manifest = manifest.replace("port-haven.air-by-day", "port-haven.changing")
    try:
        assert odf("add", "-", input=manifest).code == 0
        assert odf("pull", "port-haven.changing").code == 0
        weekly = manifest.replace("'1 day'", "'7 days'").replace("count(*)", "count(*) AS hours, count(*)")
        checked = odf("add", "--check", "-", input=weekly).out
        assert "query valid; incompatible with the state of the old query" in checked
        assert "  hours BIGINT\n" in checked and checked.endswith("  new columns: hours\n")
        wrong = odf("add", "--check", "-", input=manifest.replace("avg(pm25)", "avg(pm52)"))
        assert wrong.code == 1 and "pm52" in wrong.err
        # Its columns are listed in the manifest: one more has to be meant.
        listed = odf("add", "--update", "-", input=weekly)
        assert listed.code == 1 and "missing in the definition's SetDataSchema: hours" in listed.err
        refused = odf("add", "--update", "--accept-columns", "-", input=weekly)
        assert refused.code == 2 and "cannot continue from the state of the old one" in refused.err
        assert "--flush" in refused.err and "--rebuild" in refused.err
        (done,) = odf("add", "--update", "--flush", "--accept-columns", "--json", "-", input=weekly).json
        assert (done["status"], done["state"]) == ("updated", "flushed")
        assert [change["title"] for change in done["changes"]] == ["SetDataSchema", "SetTransform"]
        assert "state flushed" in odf("log", "port-haven.changing").out
        transform = odf("show", "port-haven.changing", "--json").json["transform"]["transform"]
        assert transform["version"] == spark_engine_version()
    finally:
        odf("delete", "port-haven.changing", "-y")


CITIES = """\
# The cities of the harbour.
kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: FilesGlob, path: in/*.csv}
      read:
        kind: Csv
        header: true
        schema:
          - id INT
          - city STRING  # as it is spelled
      preprocess:
        kind: Sql
        engine: spark
        query: |
          SELECT id, upper(city) AS city FROM input
      merge: {kind: Ledger, primaryKey: [id]}
"""


def test_a_new_column_of_a_file_is_added_by_one_command(fresh: Odf, tmp_path: Path) -> None:
    manifest, folder = tmp_path / "cities.yaml", tmp_path / "in"
    manifest.write_text(CITIES)
    folder.mkdir()
    (folder / "a.csv").write_text("id,city\n1,Ghent\n")
    assert fresh("add", "cities.yaml").code == 0
    assert fresh("pull", "cities").code == 0

    (folder / "b.csv").write_text("id,city,people\n2,Bruges,7\n")
    failed = fresh("pull", "cities")
    assert failed.code == 1 and "read.schema declares 2; new: people" in failed.err
    assert "hint: to add them to the dataset, run odf add --update --infer cities\n" in failed.err
    command = "odf add --update --accept-columns cities.yaml"

    head = fresh("show", "cities", "--json").json["head"]
    preview = fresh(*command.split()[1:], "--dry-run")
    assert preview.code == 0 and preview.err.endswith("cities: would append 2 events\n")
    assert [line for line in preview.out.splitlines() if re.match(r"  (\w|  [-+])", line)] == [
        "  SetDataSchema",
        "    + people BIGINT",
        "  SetPollingSource",
        "    +     - people BIGINT",
        "    -     SELECT id, upper(city) AS city FROM input",
        "    +     SELECT id, upper(city) AS city, people FROM input",
    ]
    assert fresh("show", "cities", "--json").json["head"] == head
    assert manifest.read_text() == CITIES

    updated = fresh(*command.split()[1:])
    assert (updated.code, updated.out) == (0, preview.out)
    assert updated.err.endswith("updated cities: 2 blocks\nwrote the changes to cities.yaml\n")
    wanted = CITIES.replace("# as it is spelled\n", "# as it is spelled\n          - people BIGINT\n")
    wanted = wanted.replace("AS city FROM", "AS city, people FROM")
    assert manifest.read_text() == wanted
    assert fresh("pull", "cities").code == 0
    assert [(row["id"], row["people"]) for row in fresh("tail", "cities", "--json").json] == [
        (1, None),
        (2, 7),
    ]
    (again,) = fresh(*command.split()[1:], "--json").json
    assert (again["status"], again["message"]) == (
        "unchanged",
        "the sources and their queries have no new columns",
    )


def test_a_changed_file_is_adapted_by_one_command(fresh: Odf, tmp_path: Path) -> None:
    manifest, file = tmp_path / "cities.yaml", tmp_path / "a.csv"
    definition = CITIES.replace("{kind: FilesGlob, path: in/*.csv}", "{kind: Url, url: a.csv}")
    manifest.write_text(definition)
    file.write_text("id,city\n1,Ghent\n2,Mons\n")
    assert fresh("add", "cities.yaml").code == 0
    assert fresh("pull", "cities").code == 0
    command = ("add", "--update", "--infer", "cities")
    unchanged = fresh(*command)
    assert (unchanged.code, unchanged.err) == (0, "cities: unchanged\n")

    file.write_text("id;city;people\n2;Mons;4\n3;Bruges;7\n")
    failed = fresh("pull", "cities")
    assert failed.code == 1 and "run odf add --update --infer cities\n" in failed.err
    head = fresh("show", "cities", "--json").json["head"]
    for arguments, code in ((("--dry-run",), 0), ((), 2)):
        preview = fresh(*command, *arguments)
        assert preview.code == code
        assert preview.err.startswith("cities: separator: ',' is now ';'\ncities: new columns: people\n")
        assert [line for line in preview.out.splitlines() if re.match(r"  (\w|  [-+])", line)] == [
            "  SetDataSchema",
            "    + people BIGINT",
            "  SetPollingSource",
            "    +     - people BIGINT",
            "    +   separator: ;",
            "    -     SELECT id, upper(city) AS city FROM input",
            "    +     SELECT id, upper(city) AS city, people FROM input",
        ]
    assert "changing cities requires confirmation" in preview.err
    assert fresh("show", "cities", "--json").json["head"] == head
    assert manifest.read_text() == definition

    done = fresh(*command, "-y")
    assert done.code == 0 and "updated cities: 2 blocks\n" in done.err
    text = manifest.read_text()
    assert "- city STRING  # as it is spelled\n          - people BIGINT\n" in text
    assert "        kind: Csv\n        separator: ;\n        header: true\n" in text
    assert fresh("add", "--update", "--dry-run", "cities.yaml").err == "cities: unchanged\n"
    assert fresh("pull", "cities").code == 0
    assert [(row["id"], row["people"]) for row in fresh("tail", "cities", "--json").json] == [
        (1, None), (2, None), (3, 7),
    ]  # fmt: skip

    file.write_text("The cities of the region\n\nid;city;people\n4;Liege;9\n")
    assert fresh(*command, "-y").err.endswith("/cities.yaml\n")
    adapted = manifest.read_text()
    assert adapted.startswith("# The cities") and "# as it is spelled" in adapted
    assert "separator" not in adapted.replace("--separator", "") and "- --skip\n" in adapted
    assert fresh("pull", "cities").code == 0
    file.write_text("id;city;people\n4;Liege;9\n5;Namur;1\n")
    assert fresh(*command, "-y").code == 0
    assert manifest.read_text() == text

    file.write_text("id;people\n4;9\n")
    refused = fresh(*command, "-y")
    assert refused.code == 1 and "columns that disappeared from the file: city" in refused.err
    manifest.write_text(text.replace("SELECT id", "SELECT -id AS id"))
    drifted = fresh(*command, "-y")
    assert drifted.code == 1 and "first run odf add --update" in drifted.err
    misuse = fresh("add", "--infer", "cities")
    assert misuse.code == 2 and "--infer requires --update" in misuse.err
    assert fresh("add").code == 2
    assert fresh(*command, "cities.yaml").code == 2


def test_a_new_column_of_a_query_names_the_missing_parts(workspace: Workspace) -> None:
    """Without an engine, before the update is committed."""
    entry = workspace.add(read_manifests(CITIES, "cities"))[0]
    schema = SetDataSchema(
        encode_schema(
            slice_schema(pa.schema([("id", pa.int32()), ("city", pa.string())]), DEFAULT_VOCABULARY)
        )
    )
    dataset = entry.dataset
    dataset.commit([schema], system_time=Timestamp.now(), expected_head=dataset.head())
    read = CITIES.replace("- id INT\n", "- id INT\n          - people INT\n")
    head = dataset.head()
    for text, parts in (
        (
            read.replace("SELECT id", "SELECT id, people"),
            "read.schema declares and the preprocess query returns",
        ),
        (read.replace("SELECT id, upper(city) AS city", "SELECT *"), "read.schema declares and"),
        (CITIES.replace("SELECT id", "SELECT id, -id AS people"), "people: the preprocess query returns it"),
    ):
        for options in ([], ["--dry-run"]):
            refused = run(workspace, "add", "--update", "-", *options, input=text)
            assert refused.exit_code == 1 and isinstance(refused.exception, OdfError)
            assert parts in refused.exception.message
            assert refused.exception.message.endswith("it, but SetDataSchema lacks it")
            assert "run odf add --update --accept-columns MANIFEST" in str(refused.exception.hint)
    assert dataset.head() == head
    listed = "    - kind: SetDataSchema\n      schema: [id INT, city STRING, people INT]\n"
    assert run(workspace, "add", "--update", "-", "--dry-run", input=read + listed).exit_code == 0
    # A query may leave out columns.
    unused = run(workspace, "add", "--update", "-", input=read)
    assert unused.exit_code == 0 and dataset.head() != head
    assert "cities: people in read.schema, but not in the preprocess query and SetDataSchema" in unused.stderr


def test_invalid_query_is_rejected_without_starting_an_engine(fresh: Odf) -> None:
    root = "kind: DatasetSnapshot\nversion: 1\ncontent: {name: a, kind: Root, metadata: []}\n---\n"
    query = "SELECT event_time,\n            now() AS t FROM a"
    text = (
        "kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: b\n  kind: Derivative\n  metadata:\n"
        "    - kind: SetTransform\n      inputs: [{datasetRef: a}]\n      transform:\n"
        f"        kind: Sql\n        engine: ENGINE\n        query: |\n          {query}\n"
    )
    ran = fresh("add", "-", input=root + text.replace("ENGINE", "spark"))
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(
        "error: stdin:18:13: dataset b, query, line 2, column 3: now() is not deterministic, so the result"
        " cannot be verified\n  2 |   now() AS t FROM a\n    |   ^\n  hint: use system_time()"
    )
    ran = fresh("add", "-", input=root + text.replace("ENGINE", "flink"))
    assert (ran.code, "for the engine 'flink', which is not configured" in ran.err) == (1, True)
    assert "odf config set engines.flink grpc://HOST:PORT" in ran.err
    assert fresh("list", "--json").json == []


DESCRIBED = """
kind: DatasetSnapshot
version: 1
content:
  name: described
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: all
      read: {kind: NdJson, schema: ["note STRING COMMENT 'it''s a note'"]}
      merge: {kind: Append}
    - kind: SetDataSchema
      schema:
        fields:
          - {name: id, type: int64, extra: {opendatafabric.org/description: "Number, of a thing"}}
          - {name: note, type: {kind: option, inner: string}}
"""


def test_column_descriptions_appear_in_schema_and_api(workspace: Workspace) -> None:
    (workspace.folder / "m").mkdir()
    (workspace.folder / "m" / "described.yaml").write_text(DESCRIBED)
    assert add_all(workspace).exit_code == 0
    lines = run(workspace, "schema", "described").stdout.splitlines()
    assert lines[4:] == [
        "id BIGINT NOT NULL COMMENT 'Number, of a thing',",
        "note STRING COMMENT 'it''s a note'",
    ]
    fields = json.loads(run(workspace, "schema", "described", "--format", "json").stdout)["fields"]
    assert fields[4] == {
        "name": "id", "type": "int64", "nullable": False, "description": "Number, of a thing",
    }  # fmt: skip
    assert fields[0] == {"name": "offset", "type": "uint64", "nullable": False}
    printed = run(workspace, "schema", "described", "--format", "odf").stdout
    assert printed.startswith("fields:\n  - name: offset\n    type:\n      kind: UInt64\n")
    assert "opendatafabric.org/description: Number, of a thing" in printed
    entry = workspace.resolve("described")
    detail = read_dataset_detail(workspace, entry, workspace.datasets())
    facts = [fact for section in detail.sections for fact in section.facts]
    assert ("id", "int64, not null · Number, of a thing") in facts
    with open_workspace(workspace.folder) as api:
        described = api["described"].column_descriptions
    assert described == {"id": "Number, of a thing", "note": "it's a note"}
    declared = next(iter(entry.dataset.blocks())).block.event
    assert any("BIGINT NOT NULL  Number, of a thing" in line for line in compare_events(declared, None, {}))


ATTACHED = """kind: DatasetSnapshot
version: 1
content:
  name: attached
  kind: Root
  metadata:
    - kind: SetAttachments
      attachments:
        kind: Embedded
        items: [{path: README.md, content: "# Ä\\n"}, {path: docs/b.md, content: b}]
"""


def test_attachments_are_written_to_files(fresh: Odf, tmp_path: Path) -> None:
    fresh("add", "-", input=ATTACHED)
    ran = fresh("show", "attached", "--attachments", "-o", "out", "--json")
    assert ran.json == ["out/README.md", "out/docs/b.md"]
    assert (tmp_path / "out" / "README.md").read_text() == "# Ä\n"
    assert (tmp_path / "out" / "docs" / "b.md").read_text() == "b"
    assert fresh("show", "attached", "--attachments", "-o", "out").out == "out/README.md\nout/docs/b.md\n"
    (tmp_path / "out" / "README.md").write_text("mine")
    (tmp_path / "out" / "docs" / "b.md").unlink()
    ran = fresh("show", "attached", "--attachments", "-o", "out")
    assert (ran.code, "README.md: the file exists" in ran.err) == (1, True)
    assert not (tmp_path / "out" / "docs" / "b.md").exists()
    (tmp_path / "outside").mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "docs").symlink_to(tmp_path / "outside")
    assert (
        "a link in the folder leads out of it"
        in fresh("show", "attached", "--attachments", "-o", "linked").err
    )
    assert not list((tmp_path / "outside").iterdir())
    fresh(
        "add",
        "-",
        input="kind: DatasetSnapshot\nversion: 1\ncontent: {name: bare, kind: Root, metadata: []}\n",
    )
    assert "bare has no attachments" in fresh("show", "bare", "--attachments").err


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "", ".", "a\\\\b", "a\\n"])
def test_attachments_that_leave_the_folder_are_refused(fresh: Odf, tmp_path: Path, path: str) -> None:
    ran = fresh("add", "-", input=ATTACHED.replace("README.md", f'"{path}"'))
    assert (ran.code, "path of an attachment" in ran.err) == (1, True)
    # A chain of other software can have such a path.
    fresh("add", "-", input=ATTACHED)
    entry = Workspace(tmp_path).resolve("attached")
    items = [AttachmentEmbedded("fine.md", "x"), AttachmentEmbedded(json.loads(f'"{path}"'), "x")]
    forge(entry.dataset, SetAttachments(Embedded(items)))
    ran = fresh("show", "attached", "--attachments", "-o", "out")
    assert (ran.code, "path of an attachment" in ran.err) == (1, True)
    assert not (tmp_path / "out").exists()


def test_attachments_with_the_same_path_are_refused(fresh: Odf) -> None:
    assert "two attachments" in fresh("add", "-", input=ATTACHED.replace("docs/b.md", "./README.md")).err
    assert "is the folder of" in fresh("add", "-", input=ATTACHED.replace("docs/b.md", "README.md/b")).err
