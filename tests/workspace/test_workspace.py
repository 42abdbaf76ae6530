"""Workspaces: made, found, and their datasets added, named, listed and removed."""

from __future__ import annotations

import errno
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from odf_engine.chain.normal_form import spark_engine_version
from odf_engine.errors import (
    AlreadyExists,
    ChainRuleViolated,
    InvalidIdentity,
    InvalidManifest,
    InvalidSchema,
    NotFound,
    NotSynced,
    OdfError,
    UsageError,
)
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata import model
from odf_engine.metadata.model import DatasetKind, DatasetSnapshot
from odf_engine.workspace.remotes import Remotes
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace
from tests.call_count import max_calls


def root(name: str, **changes: Any) -> DatasetSnapshot:
    parts: dict[str, Any] = {
        "fetch": model.Url("file:cases.csv"),
        "read": model.Csv(schema=["id INT", "city STRING"], header=True),
        "merge": model.Ledger(["id"]),
    }
    source = model.SetPollingSource(**{**parts, **changes})
    return DatasetSnapshot(name, DatasetKind.Root, [source])


def derivative(name: str, *inputs: str | model.TransformInput) -> DatasetSnapshot:
    transform = model.SetTransform(
        inputs=[
            each if isinstance(each, model.TransformInput) else model.TransformInput(each) for each in inputs
        ],
        transform=model.Sql(engine="spark", query="SELECT 1"),
    )
    return DatasetSnapshot(name, DatasetKind.Derivative, [transform])


def test_a_new_workspace_is_private_and_has_settings(tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path / "new" / "place")
    assert workspace.odf.stat().st_mode & 0o777 == 0o700
    assert workspace.config.block_version == 3
    assert "blockVersion" in workspace.config_path.read_text()
    assert workspace.datasets() == [] and workspace.summaries() == []
    with pytest.raises(AlreadyExists, match="is already a workspace"):
        Workspace.init(tmp_path / "new" / "place")


def test_new_folders_and_removals_are_synced_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power failure neither removes a new folder nor restores a removed file."""
    synced: list[Path] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    workspace = Workspace.init(tmp_path / "a" / "b")
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b"} <= set(synced)
    (entry,) = workspace.add([root("cities")])
    remotes = Remotes(workspace.odf)
    for number in range(2):
        synced.clear()
        remotes.attach(entry.id, "https://h.org/cities/", "pull")
        Trust(workspace).grant(entry)
        assert synced.count(workspace.odf) == (0 if number else 2)  # the two folders are new
        synced.clear()
        remotes.forget(entry.id)
        assert synced == [workspace.odf / "remotes"]


def test_workspace_is_found_from_subfolder_path_or_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ODF_WORKSPACE", raising=False)
    one, two = Workspace.init(tmp_path / "one"), Workspace.init(tmp_path / "two")
    below = one.folder / "a" / "b"
    below.mkdir(parents=True)
    assert Workspace.find(below).folder == one.folder
    monkeypatch.setenv("ODF_WORKSPACE", str(two.folder))
    assert Workspace.find(below).folder == two.folder
    assert Workspace.find(below, one.folder).folder == one.folder
    monkeypatch.setenv("ODF_WORKSPACE", str(tmp_path))
    with pytest.raises(NotFound, match="from \\$ODF_WORKSPACE"):
        Workspace.find(below)


def test_without_a_workspace_the_error_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ODF_WORKSPACE", raising=False)
    with pytest.raises(NotFound) as caught:
        Workspace.find(tmp_path)
    assert caught.value.hint == "create one: odf init"
    with pytest.raises(NotFound) as caught:
        Workspace.find(tmp_path, tmp_path / "x")
    assert caught.value.hint == f"create one: odf init {tmp_path / 'x'}"


def test_a_workspace_cannot_be_made_where_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError):
        Workspace.init(tmp_path / "file")


def test_paths_of_sources_start_at_the_workspace(workspace: Workspace) -> None:
    inside = workspace.folder / "data" / "x y.csv"
    for text in (
        "data/x y.csv",
        "file:data/x%20y.csv",
        "file://data/x%20y.csv",
        inside.as_uri(),
        str(inside),
    ):
        assert workspace.resolve_path(text) == inside
    assert workspace.resolve_path("file://localhost/etc/hosts") == Path("/etc/hosts")
    assert workspace.resolve_path("~/x") == Path.home() / "x"


def test_an_added_dataset_has_its_seed_its_events_and_one_system_time(workspace: Workspace) -> None:
    (entry,) = workspace.add([root("Cases", preprocess=model.Sql("spark", query="SELECT * FROM input"))])
    blocks = list(entry.dataset.blocks(newest_first=False))
    assert [model.kind_of(block.block.event) for block in blocks] == ["Seed", "SetPollingSource"]
    assert blocks[0].block.event == model.Seed(entry.id, DatasetKind.Root)
    assert blocks[0].block.system_time == blocks[1].block.system_time
    preprocess = blocks[1].block.event.preprocess  # type: ignore[union-attr]
    steps = [model.SqlQueryStep(query="SELECT * FROM input")]
    assert preprocess == model.Sql("spark", version=spark_engine_version(), queries=steps)
    assert {block.version for block in blocks} == {3}
    assert "PRIVATE KEY" in workspace.keys.private_key_pem(entry.id)
    assert entry.dataset.folder.name == entry.id.multibase
    assert (entry.dataset.folder / "refs" / "head").read_text() == str(blocks[1].hash)


def test_the_block_version_is_that_of_the_settings(workspace: Workspace) -> None:
    workspace.config_path.write_text("blockVersion: 2\n")
    (entry,) = workspace.add([root("cases")])
    assert {block.version for block in entry.dataset.blocks()} == {2}


def test_datasets_of_one_request_may_name_each_other_in_any_order(workspace: Workspace) -> None:
    (old,) = workspace.add([root("acc/old")])
    by_id = model.TransformInput(str(old.id), alias="ancient")
    added = workspace.add([derivative("c", "B", by_id), derivative("b", "a", "ACC/Old"), root("a")])
    assert [str(entry.alias) for entry in added] == ["a", "b", "c"]
    transform = workspace.resolve("c").dataset.state().transform
    assert transform is not None
    b = workspace.resolve("b")
    assert [(each.dataset_ref, each.alias) for each in transform.inputs] == [
        (str(b.id), "B"),
        (str(old.id), "ancient"),
    ]
    assert [step.query for step in transform.transform.queries or []] == ["SELECT 1"]
    summaries = {summary.name: summary for summary in workspace.summaries()}
    assert summaries["b"].inputs == [workspace.resolve("a").id, old.id]


def test_all_missing_inputs_are_named_and_nothing_is_made(workspace: Workspace) -> None:
    workspace.add([root("weather.hourly")])
    with pytest.raises(NotFound) as caught:
        workspace.add([root("a"), derivative("b", "a", "weather.hourl"), derivative("c", "nowhere")])
    assert "'weather.hourl' (input of b)" in caught.value.message
    assert "'nowhere' (input of c)" in caught.value.message
    assert caught.value.hint == "did you mean 'weather.hourly'?"
    assert [str(entry.alias) for entry in workspace.datasets()] == ["weather.hourly"]
    assert_no_trace(workspace, 1)


def test_cyclic_inputs_are_refused(workspace: Workspace) -> None:
    with pytest.raises(InvalidManifest, match="form a cycle: "):
        workspace.add([derivative("a", "b"), derivative("b", "a")])
    with pytest.raises(InvalidManifest, match="a → a"):
        workspace.add([derivative("a", "a")])
    assert_no_trace(workspace, 0)


def test_duplicate_name_is_refused_in_any_case(workspace: Workspace) -> None:
    workspace.add([root("cases")])
    with pytest.raises(AlreadyExists, match="dataset Cases already exists"):
        workspace.add([root("Cases")])
    with pytest.raises(AlreadyExists, match="defined twice"):
        workspace.add([root("new"), root("NEW")])
    workspace.add([root("acc/cases")])
    assert_no_trace(workspace, 2)


@pytest.mark.parametrize(
    ("snapshot", "error", "said"),
    [
        (root("in_valid"), InvalidIdentity, "in_valid"),
        (root("a", read=model.Csv(schema=["id INTT"])), InvalidSchema, "dataset a, read.schema"),
        (root("a", merge=model.Ledger(["ids"])), InvalidSchema, "'ids' is not in the schema"),
        (root("a", merge=model.Snapshot(["id"], ["nope"])), InvalidSchema, "'nope'"),
        (root("a", merge=model.Snapshot(["id"], [])), InvalidManifest, "the list of columns is empty"),
        (root("a", merge=model.Ledger([])), InvalidManifest, "primary key"),
        (root("a", read=model.Csv(schema=["offset INT", "id INT"])), InvalidSchema, "system column"),
        (root("a", read=model.Csv(schema=["id INT", "event_time INT"])), InvalidSchema, "event time"),
        (root("a", fetch=model.FilesGlob(" ")), InvalidManifest, "empty"),
        (root("a", fetch=model.FilesGlob("*", model.FromPath("(")), ), InvalidManifest, "regular expression"),
        (root("a", fetch=model.FilesGlob("*", model.FromPath("x"))), InvalidManifest, "no group"),
        (root("a", fetch=model.FilesGlob("*", model.FromPath("(x)", "uuuu-MM"))), InvalidManifest, "weekday"),
        (root("a", fetch=model.FilesGlob("*", model.FromPath("(x)", "%Y-%Q"))), InvalidManifest, "directive"),
        (root("a", read=model.Csv(timestamp_format="YYYY-MM-dd")), InvalidManifest, "read.timestampFormat"),
        (root("a", read=model.NdJson(date_format="E dd")), InvalidManifest, "read.dateFormat"),
        (root("a", preprocess=model.Sql("spark")), OdfError, "dataset a"),
        (derivative("a"), OdfError, ""),
        (DatasetSnapshot("a", DatasetKind.Derivative, root("a").metadata), OdfError, "a: "),
        (DatasetSnapshot("a", DatasetKind.Root, [model.AddData()]), OdfError, "a: "),
        (DatasetSnapshot("a", DatasetKind.Root, [model.SetDataSchema(b"x")]), OdfError, "dataset a"),
    ],
)  # fmt: skip
def test_a_wrong_definition_is_refused_and_leaves_nothing(
    workspace: Workspace, snapshot: DatasetSnapshot, error: type[OdfError], said: str
) -> None:
    with pytest.raises(error) as caught:
        workspace.add([root("fine"), snapshot])
    assert said in str(caught.value)
    assert_no_trace(workspace, 0)


def test_a_renamed_system_column_frees_its_name(workspace: Workspace) -> None:
    snapshot = root("a", read=model.Csv(schema=["offset INT", "id INT"]))
    vocab = model.SetVocab(offset_column="row")
    (entry,) = workspace.add([DatasetSnapshot("a", DatasetKind.Root, [vocab, *snapshot.metadata])])
    assert entry.dataset.state().vocabulary.offset_column == "row"


def test_a_preprocess_query_decides_the_columns(workspace: Workspace) -> None:
    query = model.Sql("spark", query="SELECT offset AS row, id AS key FROM input")
    read = model.Csv(schema=["offset INT", "id INT"])
    (entry,) = workspace.add([root("a", read=read, preprocess=query, merge=model.Ledger(["key"]))])
    assert entry.dataset.state().polling_source is not None


def test_a_failure_while_writing_leaves_nothing(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename
    calls: list[Path] = []

    def failing(self: Path, target: Any) -> Path:
        if self.name.startswith(".new-fed01"):  # the folder of the dataset, not a file with a random name
            calls.append(self)
            if len(calls) == 2:
                raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OdfError, match="the disk is full"):
        workspace.add([root("a"), root("b")])
    assert_no_trace(workspace, 0)


def test_leftovers_of_a_killed_process_are_hidden_and_removed(workspace: Workspace) -> None:
    script = f"""
import os
from pathlib import Path
from odf_engine.metadata import model
from odf_engine.workspace.workspace import Workspace
def rename(path, target):
    return os._exit(9) if path.name.startswith(".new-fed01") else os.rename(path, target)
Path.rename = rename
Workspace(Path({str(workspace.folder)!r})).create_dataset(
    __import__("odf_engine.identity.names").identity.names.DatasetAlias(None, "dead"), model.DatasetKind.Root
)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    left = list((workspace.odf / "datasets").iterdir())
    assert len(left) == 1 and left[0].name.startswith(".new-")
    assert workspace.datasets() == [] and workspace.summaries() == []
    workspace.add([root("alive")])
    assert_no_trace(workspace, 1)


def _add(folder: Path, name: str, answers: Any) -> None:
    try:
        Workspace(folder).add([root(name)])
        answers.put("added")
    except AlreadyExists:
        answers.put("taken")


def test_two_processes_adding_one_name_have_one_winner(workspace: Workspace) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    both = [context.Process(target=_add, args=(workspace.folder, name, answers)) for name in ("x", "X")]
    for process in both:
        process.start()
    assert sorted(answers.get(timeout=30) for _ in both) == ["added", "taken"]
    for process in both:
        process.join()
    assert_no_trace(workspace, 1)


def test_dataset_can_be_created_from_events(workspace: Workspace) -> None:
    alias = DatasetAlias.parse("plain")
    entry = workspace.create_dataset(alias, DatasetKind.Root, [model.SetInfo("text", ["a"])])
    assert entry.dataset.state().info == model.SetInfo("text", ["a"])
    with pytest.raises(AlreadyExists):
        workspace.create_dataset(alias, DatasetKind.Root)
    transform = model.SetTransform([], model.Sql("spark"))
    with pytest.raises(ChainRuleViolated):
        workspace.create_dataset(DatasetAlias.parse("bad"), DatasetKind.Root, [transform])
    assert_no_trace(workspace, 1)


def assert_no_trace(workspace: Workspace, datasets: int) -> None:
    """There are so many datasets, and nothing else: no folders, no keys."""
    assert len(workspace.datasets()) == datasets
    folders = sorted(folder.name for folder in (workspace.odf / "datasets").iterdir())
    assert folders == sorted(entry.id.multibase for entry in workspace.datasets())
    keys = (
        [path.stem for path in workspace.keys.folder.glob("*.pem")] if workspace.keys.folder.exists() else []
    )
    assert sorted(keys) == folders


def test_datasets_are_found_by_id_and_by_name_in_any_case(workspace: Workspace) -> None:
    added = workspace.add([root("Com.Example.Cases"), root("acc/cases")])
    by_name = {str(entry.alias): entry for entry in added}
    for text in ("com.example.cases", "COM.EXAMPLE.CASES", str(by_name["Com.Example.Cases"].id)):
        assert workspace.resolve(text).id == by_name["Com.Example.Cases"].id
    assert workspace.resolve("acc/Cases").id == by_name["acc/cases"].id
    assert [str(entry.alias) for entry in workspace.datasets()] == ["acc/cases", "Com.Example.Cases"]


def test_unknown_name_gets_a_suggestion(workspace: Workspace) -> None:
    workspace.add([root("com.example.cases")])
    with pytest.raises(NotFound) as caught:
        workspace.resolve("com.exmaple.cases")
    assert caught.value.hint == "did you mean 'com.example.cases'?"
    with pytest.raises(NotFound) as caught:
        workspace.resolve("something-else")
    assert caught.value.hint == "list all datasets: odf list"
    with pytest.raises(InvalidIdentity):
        workspace.resolve("no such thing")


def test_patterns_choose_each_dataset_once(workspace: Workspace) -> None:
    workspace.add([root("a.one"), root("a.two"), root("b.one"), root("acc/a.one")])
    assert [str(e.alias) for e in workspace.match(["b.%", "%.one"])] == ["b.one", "a.one", "acc/a.one"]
    assert [str(e.alias) for e in workspace.match(["acc/%", "A.TWO"])] == ["acc/a.one", "a.two"]
    with pytest.raises(NotFound, match=r"'c.%'"):
        workspace.match(["a.%", "c.%"])


def test_renaming_keeps_id_and_readers(workspace: Workspace) -> None:
    old, reader = workspace.add([root("old"), derivative("reader", "old")])
    with pytest.raises(AlreadyExists):
        workspace.rename(old, DatasetAlias.parse("READER"))
    renamed = workspace.rename(old, DatasetAlias.parse("acc/New"))
    assert renamed.id == old.id and str(workspace.resolve("ACC/new").alias) == "acc/New"
    assert workspace.rename(renamed, DatasetAlias.parse("acc/NEW")).id == old.id
    with pytest.raises(NotFound):
        workspace.resolve("old")
    assert [summary.inputs for summary in workspace.summaries() if summary.id == reader.id] == [[old.id]]


def test_deleting_is_refused_while_another_dataset_reads_it(workspace: Workspace) -> None:
    source, one, two = workspace.add(
        [root("source"), derivative("one", "source"), derivative("two", "source")]
    )
    with pytest.raises(OdfError, match="source has downstream datasets: one, two"):
        workspace.delete(source)
    head = source.dataset.head()
    assert head and workspace.index.state(head)
    for entry in (one, two, source):
        workspace.delete(entry)
    assert workspace.index.state(head) is None
    assert {*workspace.keys.ids()} == {source.id, one.id, two.id}
    for entry in (one, two, source):
        workspace.delete_key(entry.id)
    assert_no_trace(workspace, 0)
    with pytest.raises(NotFound):
        workspace.delete(source)
    with pytest.raises(NotFound):
        workspace.delete_key(source.id)
    with pytest.raises(NotFound):
        workspace.rename(source, DatasetAlias.parse("other"))


def test_disk_error_after_deletion_keeps_the_dataset_deleted(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = workspace.add([root("first"), root("second")])

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", fail)
        workspace.delete(first)
    with monkeypatch.context() as patched, pytest.raises(NotSynced, match="the dataset was deleted, but"):
        patched.setattr(os, "fsync", fail)
        workspace.delete(second)
    assert workspace.datasets() == []


def test_summary_counts_blocks_rows_and_size(workspace: Workspace, append: Any) -> None:
    (entry,) = workspace.add([root("cases")])
    (before,) = workspace.summaries()
    assert (before.blocks, before.records, before.size, before.last_pulled) == (2, 0, 0, None)
    append(entry.dataset, pa.table({"id": [1, 2, 3]}))
    append(entry.dataset, pa.table({"id": [4]}))
    (after,) = workspace.summaries()
    assert Workspace(workspace.folder).summaries() == [after] == workspace.summaries()
    workspace.rename(entry, DatasetAlias.parse("other"))
    assert [summary.name for summary in workspace.summaries()] == ["other"]
    assert (after.name, after.kind, after.blocks, after.records) == ("cases", DatasetKind.Root, 5, 4)
    assert after.head == entry.dataset.head() and after.problem is None
    assert after.size == sum(row.size for row in entry.dataset.slices())
    assert after.last_pulled is not None and after.watermark is not None
    assert after.folder == entry.dataset.folder


@pytest.mark.parametrize(
    "function", ["odf_engine.chain.block_index.apply_block", "odf_engine.chain.block_index.summarize_block"]
)
def test_unexpected_content_is_a_problem_of_its_dataset(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    def fail(*arguments: Any) -> None:
        raise KeyError("surprise")

    [made] = workspace.add([root("cases")])
    workspace.index.reset()
    monkeypatch.setattr(function, fail)
    [summary] = Workspace(workspace.folder).summaries()
    assert summary.problem is not None
    assert "block content cannot be processed: KeyError: 'surprise'" in summary.problem
    workspace.delete(made)
    assert workspace.datasets() == []


def test_a_damaged_dataset_is_listed_with_its_problem(workspace: Workspace) -> None:
    workspace.add([root("good"), root("lost"), root("bad"), root("nameless")])
    (workspace.resolve("lost").dataset.folder / "refs" / "head").unlink()
    (workspace.resolve("bad").dataset.folder / "refs" / "head").write_text("garbage")
    nameless = workspace.resolve("nameless")
    (nameless.dataset.folder / "info" / "alias").write_text("n_a_m_e")
    found = {summary.name: summary for summary in workspace.summaries()}
    assert found["good"].problem is None
    for name in ("lost", "bad"):
        assert found[name].problem and found[name].head is None and found[name].blocks == 0
    assert found[nameless.id.multibase].blocks == 2
    workspace.rename(workspace.resolve(nameless.id.multibase), DatasetAlias.parse("named"))
    assert workspace.resolve("named").id == nameless.id


def test_stray_files_are_not_listed_as_datasets(workspace: Workspace) -> None:
    workspace.add([root("a")])
    (workspace.odf / "datasets" / "stray").mkdir()
    (workspace.odf / "datasets" / "file").write_text("")
    assert [summary.name for summary in workspace.summaries()] == ["a"]


def test_hundred_datasets_are_listed_quickly(workspace: Workspace) -> None:
    workspace.add([root(f"dataset-{number}") for number in range(100)])
    with max_calls(80_000):  # typically 40,000; a walk of every chain takes 160,000
        assert len(Workspace(workspace.folder).summaries()) == 100


def test_listing_loads_neither_arrow_nor_yaml_nor_spark(workspace: Workspace) -> None:
    workspace.add([root("a")])
    script = (
        "import sys; from odf_engine.workspace.workspace import Workspace; "
        "w = Workspace.find(); w.config; w.summaries(); "
        "print([m for m in ('pyarrow', 'yaml', 'pyspark', 'Crypto', 'difflib') if m in sys.modules])"
    )
    environment = {**os.environ, "ODF_WORKSPACE": str(workspace.folder)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
