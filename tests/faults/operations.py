"""Operations that change a workspace, and the checks of a workspace in which one of them was interrupted.

Used by :mod:`tests.faults.system_calls` and :mod:`tests.faults.crash_states`. No operation needs Spark: the
rows are already read, and the commits are those of the program.
"""

from __future__ import annotations

import os
import re
import sqlite3
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

import pytest

import odf_tui.main
from odf_engine.base.files import translate_os_errors
from odf_engine.base.progress import Reporter
from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.compaction import CompactionPolicy, compact
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.references import create_branch
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.parquet.slice_rows import SliceProperties
from odf_engine.data.parquet.slices import read_batches, write_slice
from odf_engine.derive.run import reset_dataset, transform
from odf_engine.derive.verify.integrity import verify
from odf_engine.engines.contract import TransactionResult
from odf_engine.errors import OdfError
from odf_engine.identity.did import generate_key
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    Checkpoint,
    DatasetKind,
    Ledger,
    SetDataSchema,
    SetTransform,
    Sql,
    SqlQueryStep,
    TransformInput,
)
from odf_engine.metadata.yaml import read_manifests
from odf_engine.net.credentials import Credentials, Login, RemoteAccess
from odf_engine.storage.scratch import job_scratch_folder
from odf_engine.sync.pull import clone_dataset, pull_dataset
from odf_engine.sync.push import push
from odf_engine.sync.remotes.folder_remote import FolderRemote
from odf_engine.sync.remotes.transports import open_remote
from odf_engine.workspace.dataset_folders import DatasetFolders
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.fsck import check_workspace
from odf_engine.workspace.tokens import Tokens
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import call_odf
from tests.ingest import arrow_merge
from tests.ingest.arrow_merge import ArrowMerge, Row
from tests.manifests import ROOT_WITH_INFO
from tests.sync import builders
from tests.sync.in_process_server import served
from tests.sync.push_helpers import read_whole

_DERIVATIVE: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: c
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: a, alias: a}, {datasetRef: b, alias: b}]
      transform: {kind: Sql, engine: spark, query: "SELECT * FROM a UNION ALL SELECT * FROM b"}
"""
_POLLING: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: foreign
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: Url, url: "https://example.org/x.csv"}
      read: {kind: Csv, schema: [x STRING]}
      merge: {kind: Append}
"""
_LEDGER: Final = Ledger(primary_key=["id"])
_PULLED: Final = DatasetAlias(None, "pulled")
_CONTENT_FILES: Final = ("config.yaml", "repositories.json")
_VARIABLE: Final = re.compile(r"[0-9a-f]{7,}|\d{3,}|(?<=-)[a-z0-9_]{8}(?=/|$)")


class CommandFailed(Exception):
    """A command ended with an error; the text is what it printed."""


class Operation(NamedTuple):
    """A change of the workspace in a folder.

    Attributes:
        make: makes the workspace in a folder, which exists and is empty.
        run: makes the change.
        repeatable: a second run of the completed change changes nothing.
    """

    make: Callable[[Path], object]
    run: Callable[[Path], object]
    repeatable: bool = False


def command(folder: Path, *arguments: str) -> None:
    """Run a command in this process.

    Raises:
        CommandFailed: it failed; findings are not a failure.
        OSError: it failed with an error that the engine has not translated.
    """

    def raise_it(error: OSError) -> None:
        raise error

    with mock.patch.object(odf_tui.main, "_print_os_error", raise_it):
        ran = call_odf(*arguments, cwd=folder)
    if ran.code not in (0, 3):
        raise CommandFailed(ran.err)


def _command(*arguments: str) -> Callable[[Path], None]:
    return lambda folder: command(folder, *arguments)


@contextmanager
def _workspace(folder: Path) -> Iterator[Workspace]:
    workspace = Workspace.find(explicit=folder)
    try:
        yield workspace
    finally:
        workspace.index.close()


def _write_manifests(folder: Path, text: str = "made") -> None:
    for name in "ab":
        (folder / f"{name}.yaml").write_text(ROOT_WITH_INFO.format(name=name, text=text))
    (folder / "c.yaml").write_text(_DERIVATIVE)


def _make_empty(folder: Path) -> None:
    Workspace.init(folder)
    _write_manifests(folder)


def _make_added(folder: Path) -> None:
    _make_empty(folder)
    command(folder, "add", "a.yaml", "b.yaml", "c.yaml")


def _make_updatable(folder: Path) -> None:
    _make_added(folder)
    _write_manifests(folder, "changed")


def _make_publishing(folder: Path) -> None:
    """An ``odf add`` that was killed after it had published its datasets."""
    _make_empty(folder)
    with mock.patch.object(DatasetFolders, "_end_publishing", lambda _: os._exit(0)):
        if (pid := os.fork()) == 0:
            command(folder, "add", "c.yaml", "b.yaml", "a.yaml")
        os.waitpid(pid, 0)


def _make_numbers(folder: Path) -> None:
    workspace = Workspace.init(folder)
    builders.make_root(workspace, slices=2)
    workspace.index.close()


def _make_rows(folder: Path) -> None:
    workspace = Workspace.init(folder)
    schema = SetDataSchema(encode_schema(arrow_merge.SCHEMA))
    workspace.create_dataset(DatasetAlias.parse("rows"), DatasetKind.Root, [schema], builders.START)
    workspace.index.close()
    _ingest(range(4))(folder)


def _make_derivative(folder: Path) -> None:
    """A derivative with one transaction, and new rows in its input."""
    with closing(Workspace.init(folder).index):
        workspace = Workspace.find(explicit=folder)
        source = builders.make_root(workspace, slices=1)
        query = Sql("spark", queries=[SqlQueryStep(query="SELECT * FROM source")])
        events = [
            SetTransform([TransformInput(str(source.id), "source")], query),
            SetDataSchema(encode_schema(builders.SCHEMA)),
        ]
        workspace.create_dataset(
            DatasetAlias.parse("derived"), DatasetKind.Derivative, events, builders.START
        )
        workspace.index.close()
    _transform(folder)
    with _workspace(folder) as workspace:
        builders.add_slices(workspace.resolve("numbers"))


def _make_damaged(folder: Path) -> None:
    """A workspace with all kinds of leftovers, and a wrong index."""
    _make_derivative(folder)
    with _workspace(folder) as workspace:
        entry = workspace.resolve("numbers")
        builders.put(entry.dataset, "blocks", b"an orphan")
        builders.put(entry.dataset, "data", b"another orphan")
        builders.describe(entry, "not indexed")
        files = [entry.dataset.folder / each for each in ("refs/.pending-1", "info/.new-1")]
        files += [entry.dataset.folder / "info" / "arriving" / "blocks" / "f1"]
        odf = workspace.odf
        unfinished = odf / "datasets" / f".new-{generate_key()[0].multibase}"
        files += [unfinished / "refs" / "head", odf / "datasets" / ".gone-f1" / "refs" / "head"]
        files += [odf / "incoming" / "f1" / "blocks" / "f1", odf / "cache" / "pull-1000000-x" / "rows"]
        files += [odf / "cache" / "statistics" / "f1.json", odf / "trust" / f"{unfinished.name[5:]}.json"]
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("left over")
    with closing(sqlite3.connect(folder / ".odf" / "index.sqlite")) as index:
        index.execute("UPDATE blocks SET rows = rows + 1")
        index.commit()


def _ingest(keys: Sequence[int], slice_rows: int = 1 << 20) -> Callable[[Path], None]:
    """Merge rows with these keys into a ledger, whose key index has the keys of earlier rows.

    A slice has at most ``slice_rows`` rows.
    """

    def run(folder: Path) -> None:
        with (
            _workspace(folder) as workspace,
            translate_os_errors(workspace.odf),
            job_scratch_folder(workspace.odf / "cache") as scratch,
            pytest.MonkeyPatch.context() as patch,
        ):
            merging = ArrowMerge(scratch, patch, workspace.resolve("rows").dataset)
            merging.merge(_LEDGER, [Row(key, key, 1) for key in keys], slice_rows=slice_rows)

    return run


class _CopyEngine:
    """Copies the new rows of all inputs; the state is the number of copied rows."""

    def run(self, operation: str, request: Any, declared: Any, reporter: Reporter) -> TransactionResult:
        paths = [Path(path) for each in request.query_inputs for path in each.data_paths]
        columns = ["event_time", "city", "people"]
        written = write_slice(
            (batch.select(columns) for path in paths for batch in read_batches(path)),
            SliceProperties(
                schema=builders.SCHEMA,
                vocab=DEFAULT_VOCABULARY,
                first_offset=request.next_offset,
                system_time=request.system_time,
                fallback_event_time=request.system_time,
            ),
            path=Path(request.new_data_path),
            reporter=reporter,
        )
        assert written is not None
        state = f"{written.offset_interval.end} rows".encode()
        Path(request.new_checkpoint_path).write_bytes(state)
        return TransactionResult(written, builders.SCHEMA, Checkpoint(Multihash.sha3_256(state), len(state)))


def _transform(folder: Path) -> None:
    engine: Any = _CopyEngine()
    with _workspace(folder) as workspace:
        transform(workspace, workspace.resolve("derived"), engine, Reporter())


def _reset(folder: Path) -> None:
    with _workspace(folder) as workspace:
        reset_dataset(workspace, workspace.resolve("derived"))


def _reindex(folder: Path) -> None:
    with _workspace(folder) as workspace, translate_os_errors(workspace.odf):
        workspace.index.reset()
        for entry in workspace.datasets():
            entry.dataset.state()


def _source(folder: Path) -> FolderRemote:
    with _workspace(folder / "there") as there:
        return FolderRemote(f"file://{there.resolve('numbers').dataset.folder}/")


def _make_source(folder: Path) -> None:
    Workspace.init(folder).index.close()
    (folder / "there").mkdir()
    _make_derivative(folder / "there")
    command(folder / "there", "keys", "prove", "numbers")


def _clone(folder: Path) -> None:
    with _workspace(folder) as workspace:
        if workspace.datasets():
            pull_dataset(workspace.datasets()[0], _source(folder), Reporter(), force=False, parallel=1)
        else:
            clone_dataset(workspace, _PULLED, _source(folder), Reporter(), parallel=1)


def _make_cloned(folder: Path, new_slices: int = 2) -> None:
    """A pulled dataset, and new blocks at its source."""
    _make_source(folder)
    _clone(folder)
    with _workspace(folder / "there") as there:
        builders.add_slices(there.resolve("numbers"), new_slices, city="Basel")


def _make_many_new_slices(folder: Path) -> None:
    """So many that one sync of the file system replaces a sync of each file."""
    _make_cloned(folder, 20)


def _make_diverged(folder: Path) -> None:
    _make_cloned(folder)
    with _workspace(folder) as workspace:
        builders.add_slices(workspace.resolve("pulled"), 1, city="Chur")


def _pull(force: bool) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        with _workspace(folder) as workspace:
            pull_dataset(workspace.resolve("pulled"), _source(folder), Reporter(), force=force, parallel=1)

    return run


def _push(force: bool = False) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        with _workspace(folder) as workspace:
            remote = FolderRemote(f"file://{folder}/usb/")
            push(workspace.resolve("numbers"), remote, Reporter(), force=force, parallel=1)

    return run


def _make_pushed(folder: Path) -> None:
    _make_numbers(folder)
    _push()(folder)
    with _workspace(folder) as workspace:
        builders.add_slices(workspace.resolve("numbers"), 2, city="Basel")


def _make_push_diverged(folder: Path) -> None:
    _make_numbers(folder)
    with _workspace(folder) as workspace:
        old = workspace.resolve("numbers").dataset.head()
        builders.add_slices(workspace.resolve("numbers"), 1, city="Chur")
    _push()(folder)
    with _workspace(folder) as workspace:
        dataset = workspace.resolve("numbers").dataset
        builders.set_head(dataset.folder, str(old))
        builders.add_slices(workspace.resolve("numbers"), 2, city="Basel")


def _make_receiver(folder: Path) -> None:
    """An empty workspace whose server a dataset of the other workspace is pushed to."""
    Workspace.init(folder).index.close()
    (folder / "token").write_text(Tokens(folder / ".odf").create("laptop")[1])
    (folder / "there").mkdir()
    _make_numbers(folder / "there")


def _receive(folder: Path) -> None:
    with (
        _workspace(folder) as here,
        _workspace(folder / "there") as there,
        served(here, allow_push=True) as running,
    ):
        access = RemoteAccess(there.config, Credentials(there.odf), Reporter())
        access.credentials.set(running.url, Login(token=(folder / "token").read_text()))
        with closing(open_remote(f"odf+{running.url}pulled/", access)) as remote:
            push(there.resolve("numbers"), remote, Reporter(), force=False, parallel=1)


def _make_received(folder: Path) -> None:
    _make_receiver(folder)
    _receive(folder)
    with _workspace(folder / "there") as there:
        builders.add_slices(there.resolve("numbers"), 2, city="Basel")


def _make_foreign(folder: Path) -> None:
    """A dataset by another author."""
    with closing(Workspace.init(folder).index), _workspace(folder) as workspace:
        workspace.add(read_manifests(_POLLING, "test"), {"foreign": "https://example.org/"})


def _make_trusted(folder: Path) -> None:
    _make_foreign(folder)
    command(folder, "trust", "foreign", "--yes")


def _make_key(folder: Path) -> None:
    Workspace.init(folder)
    (folder / "key.pem").write_text(generate_key()[1])


def _make_read_numbers(folder: Path) -> None:
    """A root dataset with a derivative that has read one of its slices."""
    _make_derivative(folder)
    with _workspace(folder) as workspace:
        builders.add_slices(workspace.resolve("numbers"), 3)


def _compact(folder: Path) -> None:
    with _workspace(folder) as workspace:
        compact(workspace.resolve("numbers").dataset, CompactionPolicy(), Reporter())


def _make_garbage(folder: Path) -> None:
    """A compacted dataset whose old head has expired, and a derivative that has read it."""
    _make_read_numbers(folder)
    _compact(folder)
    command(folder, "config", "set", "compaction.keepDays", "0")


def _make_branch(folder: Path) -> None:
    """A dataset, and a branch with more blocks."""
    _make_numbers(folder)
    with _workspace(folder) as workspace:
        entry = workspace.resolve("numbers")
        create_branch(entry.dataset, "staging", entry.dataset.state().head)
        builders.add_slices(entry.on_branch("staging"), 2)
        workspace.close()


OPERATIONS: Final[dict[str, Operation]] = {
    "add": Operation(_make_empty, _command("add", "c.yaml", "b.yaml", "a.yaml")),
    "add-one": Operation(_make_empty, _command("add", "a.yaml")),
    "recover": Operation(_make_publishing, _command("list"), repeatable=True),
    "update": Operation(_make_updatable, _command("add", "--update", "a.yaml"), repeatable=True),
    "rename": Operation(_make_added, _command("rename", "a", "d")),
    "delete": Operation(_make_derivative, _command("delete", "derived", "--yes")),
    "ingest": Operation(_make_rows, _ingest(range(2, 5)), repeatable=True),
    "ingest-slices": Operation(_make_rows, _ingest(range(2, 9), slice_rows=2), repeatable=True),
    "compact": Operation(_make_rows, _ingest(range(2, 40)), repeatable=True),
    "compact-chain": Operation(_make_read_numbers, _compact, repeatable=True),
    "gc": Operation(_make_garbage, _command("gc", "--now", "--yes"), repeatable=True),
    "promote": Operation(
        _make_branch, _command("branch", "numbers", "--promote", "staging"), repeatable=True
    ),
    "transform": Operation(_make_derivative, _transform, repeatable=True),
    "reset": Operation(_make_derivative, _reset),
    "clone": Operation(_make_source, _clone, repeatable=True),
    "pull": Operation(_make_cloned, _pull(force=False), repeatable=True),
    "pull-many": Operation(_make_many_new_slices, _pull(force=False), repeatable=True),
    "pull-force": Operation(_make_diverged, _pull(force=True), repeatable=True),
    "push-new": Operation(_make_numbers, _push(), repeatable=True),
    "push": Operation(_make_pushed, _push(), repeatable=True),
    "push-force": Operation(_make_push_diverged, _push(force=True), repeatable=True),
    "receive-new": Operation(_make_receiver, _receive, repeatable=True),
    "receive": Operation(_make_received, _receive, repeatable=True),
    "index": Operation(_make_derivative, _reindex, repeatable=True),
    "fsck": Operation(_make_damaged, _command("fsck", "--repair", "--now"), repeatable=True),
    "import-key": Operation(_make_key, _command("keys", "import", "key.pem")),
    "prove": Operation(_make_added, _command("keys", "prove", "a"), repeatable=True),
    "trust": Operation(_make_foreign, _command("trust", "foreign", "--yes"), repeatable=True),
    "untrust": Operation(_make_trusted, _command("untrust", "foreign"), repeatable=True),
    "configure": Operation(_make_added, _command("config", "set", "ui.theme", "night"), repeatable=True),
    "show": Operation(_make_derivative, _command("show", "derived"), repeatable=True),
    "log": Operation(_make_derivative, _command("log", "derived"), repeatable=True),
    "export-key": Operation(_make_added, _command("keys", "export", "a"), repeatable=True),
    "check": Operation(_make_derivative, _command("fsck"), repeatable=True),
    "add-repository": Operation(_make_empty, _command("repo", "add", "usb", "file:///usb/")),
}


def describe_outcome(run: Callable[[], object]) -> str:
    """Run a change; return the text of its error, which is empty without one."""
    try:
        run()
    except OdfError as error:
        return f"{error.message}" + (f"\n  hint: {error.hint}" if error.hint else "")
    except CommandFailed as error:
        return str(error)
    except BaseException:
        return f"untyped: {traceback.format_exc()}"
    return ""


State = tuple[object, ...]


def read_state(folder: Path) -> State:
    """Return what the workspace has, without what is random: datasets with their blocks, and settings."""
    with _workspace(folder) as workspace:
        datasets = sorted((str(entry.alias), *_summarize(entry.dataset)) for entry in workspace.datasets())
        odf, ids = workspace.odf, {entry.id for entry in workspace.datasets()}
        unfinished = DatasetFolders(odf / "datasets").find_uncreated_ids()
        lone_keys = len(set(workspace.keys.ids()) - ids - set(unfinished))
    pushed = folder / "usb"
    if (pushed / "refs" / "head").exists():
        datasets.append(("usb", *_summarize(Dataset(pushed, BlockIndex(":memory:")))))
    files = [zlib.crc32(path.read_bytes()) for name in _CONTENT_FILES if (path := odf / name).exists()]
    grants = sum((odf / "trust" / f"{each.multibase}.json").exists() for each in ids)
    # A pull that cannot store the proof is complete.
    own = [
        path
        for path in odf.glob("datasets/*/proofs/[!.]*")
        if not (path.parents[1] / "info" / "origin").exists()
    ]
    return (*datasets, lone_keys, grants, len(own), *files)


def _summarize(dataset: Dataset) -> tuple[object, ...]:
    if dataset.head() is None:
        return ("empty",)
    kinds = [type(block.block.event).__name__ for block in dataset.blocks()]
    state = dataset.state()
    return (*kinds, state.last_offset, state.info and state.info.description)


def check(operation: Operation, folder: Path, old: State, new: State, number: int) -> State:
    """Check a workspace in which the operation was interrupted; return the state that it was found in.

    Either the next operations run first and the repair later, or the other way round.

    Args:
        operation: the operation.
        folder: the folder of the workspace.
        old: the state before the operation.
        new: the state after it.
        number: of the try; it decides about the order.
    """
    with mock.patch("os.fsync", lambda _: None):
        found = read_state(folder)
        assert found in (old, new), f"neither the old nor the new state, but {found}"
        _verify(folder)
        if number % 2:
            repair(folder)
        if found == old != new or operation.repeatable:
            operation.run(folder)
        else:
            _commit_everywhere(folder)
        if found == old or operation.repeatable:
            again = read_state(folder)
            assert again == new, f"the next operation led to {again}"
        repair(folder)
        _verify(folder)
    return found


def _commit_everywhere(folder: Path) -> None:
    with _workspace(folder) as workspace:
        for entry in workspace.datasets():
            builders.describe(entry, "committed after the fault")


def _verify(folder: Path) -> None:
    """Check that all datasets are valid, as read with the index and without it."""
    with _workspace(folder) as workspace:
        for entry in workspace.datasets():
            for dataset in (entry.dataset, Dataset(entry.dataset.folder, BlockIndex(":memory:"))):
                report = verify(dataset, Reporter())
                assert report.valid, f"{entry.alias}: {report.findings}"
            assert workspace.keys.has_key(entry.id) or _is_pulled(entry), f"{entry.alias} has no key"
    if (folder / "usb").exists():
        read_whole(FolderRemote(f"file://{folder}/usb/"))


def _is_pulled(entry: DatasetEntry) -> bool:
    return (entry.dataset.folder / "info" / "origin").exists()


def repair(folder: Path) -> None:
    """Check that one repair repairs everything, and that the next one finds nothing."""
    with _workspace(folder) as workspace:
        report = check_workspace(workspace, Reporter(), repair=True, now=True)
        assert not report.left, f"not repaired: {report.left}"
        report = check_workspace(workspace, Reporter(), repair=True, now=True)
        assert not report.findings, f"found by the second repair: {report.findings}"


def list_files(folder: Path) -> set[str]:
    """Return the paths of all files of a workspace, without what is random in them."""
    paths = (path for path in (folder / ".odf").rglob("*") if path.is_file() and ".sqlite-" not in path.name)
    return {_normal(path, folder) for path in paths}


def _normal(path: Path, folder: Path) -> str:
    return _VARIABLE.sub("*", str(path.relative_to(folder)))
