"""Verification of derivative datasets: whoever changes anything is found out, also where all hashes agree
again; what cannot be checked is said; and who made what from what."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from odf_engine.base.progress import Reporter
from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.normal_form import spark_engine_version
from odf_engine.data.digest import digest_file
from odf_engine.derive.verify.integrity import verify
from odf_engine.derive.verify.model import IntegrityReport
from odf_engine.derive.verify.replay import Replay
from odf_engine.derive.verify.report import dataset_origins
from odf_engine.engines.engine_router import EngineRouter
from odf_engine.errors import Cancelled
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.flatbuffers import encode_block
from odf_engine.metadata.model import DataSlice, MetadataBlock, OffsetInterval
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.derive.deriving import Deriving, earlier_rules

ROWS = "SELECT event_time, city, x * 10 AS y FROM input"
WINDOWS = """SELECT window.start AS event_time, city, count(*) AS n, sum(x) AS s FROM input
GROUP BY window(event_time, '2 days'), city"""
FIRST, SECOND, THIRD = 3, 4, 5  # numbers of the blocks with transactions


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, runtime: SparkRuntime) -> Deriving:
    """A root with three slices, and what a query row by row and one with windows make of it.

    The folder ``forger`` beside it has windows of other values from the second slice on.
    """
    folder = tmp_path_factory.mktemp("made")
    deriving = Deriving(Workspace.init(folder / "workspace"), runtime)
    deriving.root()
    deriving.derivative(ROWS, name="rows")
    deriving.derivative(WINDOWS, name="windows")
    increment(deriving, 1, 1, "rows", "windows")
    shutil.copytree(folder / "workspace", folder / "forger")
    forger = Deriving(Workspace(folder / "forger"), runtime)
    for day in (3, 5):
        increment(deriving, day, 1, "rows", "windows")
        increment(forger, day, 100, "windows")
    return deriving


def increment(deriving: Deriving, day: int, x: int, *names: str) -> None:
    root = deriving.workspace.resolve("input")
    deriving.rows(root, (day, "a", day), (day, "b", -day), (day + 1, "a", x))
    for name in names:
        deriving.run(deriving.workspace.resolve(name))


class Tampering:
    """A copy of the workspace, and what somebody who holds its files can do to a dataset."""

    def __init__(self, workspace: Workspace, name: str, forger: Path = Path()) -> None:
        self.workspace = workspace
        self.forger = forger
        self.entry = workspace.resolve(name)
        self.folder = self.entry.dataset.folder

    @property
    def blocks(self) -> list[MetadataBlock]:
        """Oldest first."""
        return [block.block for block in self.entry.dataset.blocks(newest_first=False)]

    def hash(self, number: int) -> Multihash:
        return self.entry.dataset.block(number).hash

    def event(self, number: int) -> Any:
        return self.entry.dataset.block(number).block.event

    def flip(self, kind: str, name: Multihash) -> None:
        """Another bit in the middle of a file."""
        path = self.folder / kind / str(name)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0x10
        path.write_bytes(data)

    def put(self, kind: str, data: bytes) -> Multihash:
        name = Multihash.sha3_256(data)
        (self.folder / kind / str(name)).write_bytes(data)
        return name

    def rewrite(self, changed: dict[int, MetadataBlock | None]) -> None:
        """Other blocks of these numbers, or none, and all that follow made to agree with them."""
        head, number = None, 0
        for old, block in enumerate(self.blocks):
            new = changed.get(old, block)
            if new is None:
                continue
            data = encode_block(replace(new, prev_block_hash=head, sequence_number=number))
            head, number = self.put("blocks", data), number + 1
        (self.folder / "refs" / "head").write_text(str(head))

    def change(self, number: int, **changes: Any) -> None:
        """Another event in a block, and a chain that agrees with it."""
        block = self.blocks[number]
        self.rewrite({number: replace(block, event=replace(block.event, **changes))})

    def values(self, number: int, column: str, edit: Callable[[list[Any]], list[Any]]) -> DataSlice:
        """A slice with other values, its hashes right."""
        old: DataSlice = self.event(number).new_data
        table = pq.read_table(self.entry.dataset.slice_path(old.physical_hash))
        at = table.schema.get_field_index(column)
        edited = pa.array(edit(table.column(at).to_pylist()), table.schema.field(at).type)
        path = self.folder / "data" / "edited"
        pq.write_table(table.set_column(at, table.schema.field(at), edited), path)
        found = digest_file(path)
        path.rename(path.with_name(str(found.physical_hash)))
        return DataSlice(found.logical_hash, found.physical_hash, old.offset_interval, found.size)


class Case(NamedTuple):
    """What is done to a dataset, and what verification has to say: kind and block of a finding."""

    what: str
    dataset: str
    do: Callable[[Tampering], None]
    kind: str
    block: int
    replay: bool = True  # whether it takes running transactions again
    first: int | None = None  # from where on, if not from this block


def one_value(t: Tampering) -> None:
    t.change(SECOND, new_data=t.values(SECOND, "y", lambda values: [values[0], 1, *values[2:]]))


def an_input(t: Tampering, **changes: Any) -> None:
    (item,) = t.event(THIRD).query_inputs
    t.change(THIRD, query_inputs=[replace(item, **changes)])


def another_query(t: Tampering) -> None:
    event = t.event(1)
    (step,) = event.transform.queries
    step = replace(step, query=step.query.replace("10", "11"))
    t.change(1, transform=replace(event.transform, queries=[step]))


def another_time(t: Tampering) -> None:
    block = t.blocks[THIRD]
    t.rewrite({THIRD: replace(block, system_time=Timestamp(block.system_time.ns + 60_000_000_000))})


def checkpoint_of_before(t: Tampering) -> None:
    """The second transaction is said to have left the state of the first one."""
    checkpoint = t.event(FIRST).new_checkpoint
    second, third = t.blocks[SECOND], t.blocks[THIRD]
    t.rewrite(
        {
            SECOND: replace(second, event=replace(second.event, new_checkpoint=checkpoint)),
            THIRD: replace(third, event=replace(third.event, prev_checkpoint=checkpoint.physical_hash)),
        }
    )


def another_state(t: Tampering) -> None:
    """The second transaction left another state than it should have, and the third one went on from it."""
    forged = Tampering(Workspace(t.forger), "windows")
    for kind in ("data", "checkpoints"):
        shutil.copytree(forged.folder / kind, t.folder / kind, dirs_exist_ok=True)
    second, third = t.blocks[SECOND], forged.blocks[THIRD]
    checkpoint = forged.event(SECOND).new_checkpoint
    t.rewrite(
        {
            SECOND: replace(second, event=replace(second.event, new_checkpoint=checkpoint)),
            THIRD: replace(third, event=replace(third.event, query_inputs=t.event(THIRD).query_inputs)),
        }
    )


def an_input_damaged(t: Tampering) -> None:
    slices = t.workspace.resolve("input").dataset.slices()
    Tampering(t.workspace, "input").flip("data", slices[1].physical_hash)


def other_offsets(t: Tampering) -> None:
    t.change(THIRD, new_data=replace(t.event(THIRD).new_data, offset_interval=OffsetInterval(7, 9)))


def other_block_of_input(t: Tampering) -> None:
    an_input(t, new_block_hash=t.workspace.resolve("input").dataset.block(1).hash)


LATER = Timestamp.parse("2030-01-01T00:00:00Z")
NOTHING = Multihash.sha3_256(b"")
CASES = [
    Case("a byte of a block", "rows", lambda t: t.flip("blocks", t.hash(SECOND)),
         "block-hash", SECOND, False),
    Case("a byte of a slice", "rows", lambda t: t.flip("data", t.event(SECOND).new_data.physical_hash),
         "slice-physical-hash", SECOND, False),
    Case("a byte of a checkpoint", "windows",
         lambda t: t.flip("checkpoints", t.event(SECOND).new_checkpoint.physical_hash),
         "checkpoint-physical-hash", SECOND, False),
    Case("the query", "rows", another_query, "transform-data", SECOND),
    Case("the offsets of a slice", "rows", other_offsets, "slice-offset", THIRD, False),
    Case("a watermark", "rows", lambda t: t.change(THIRD, new_watermark=LATER), "transform-watermark", THIRD),
    Case("the offset up to which an input was read", "rows", lambda t: an_input(t, new_offset=7),
         "input-interval", THIRD),
    Case("the block up to which an input was read", "rows", other_block_of_input, "input-interval", THIRD),
    Case("where an input was read from", "rows", lambda t: an_input(t, prev_offset=3),
         "transform-intervals", THIRD, False),
    Case("an input more", "rows", lambda t: t.change(THIRD, query_inputs=2 * t.event(THIRD).query_inputs),
         "input-interval", THIRD),
    Case("a value, written consistently", "rows", one_value, "transform-data", SECOND),
    Case("rows left out", "rows", lambda t: t.change(THIRD, new_data=None), "transform-data", THIRD),
    Case("the time of a block", "rows", another_time, "transform-data", THIRD),
    Case("a dropped block", "rows", lambda t: t.rewrite({SECOND: None}),
         "transform-intervals", SECOND, False),
    Case("a byte of an input's slice", "rows", an_input_damaged, "input-damaged", SECOND),
    Case("the checkpoint before", "windows", lambda t: t.change(THIRD, prev_checkpoint=NOTHING),
         "prev-checkpoint", THIRD, False),
    Case("a checkpoint left out", "windows", lambda t: t.change(THIRD, new_checkpoint=None),
         "transform-checkpoint", THIRD),
    Case("a checkpoint in another's place", "windows", checkpoint_of_before, "transform-checkpoint", SECOND),
    Case("the state, and rows made of it", "windows", another_state, "transform-data", THIRD, True, SECOND),
]  # fmt: skip


@pytest.fixture(params=CASES, ids=lambda case: case.what)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def tampering(made: Deriving, case: Case, tmp_path: Path) -> Tampering:
    folder = tmp_path / "workspace"
    shutil.copytree(made.workspace.folder, folder)
    return Tampering(Workspace(folder), case.dataset, made.workspace.folder.with_name("forger"))


def check(
    made: Deriving, workspace: Workspace, entry: DatasetEntry, first: int, replay: bool = True
) -> IntegrityReport:
    # Nothing that an index remembers.
    dataset = Dataset(entry.dataset.folder, BlockIndex(":memory:"))
    running = Replay(workspace, entry, made.engine, Reporter()) if replay else None
    return verify(dataset, Reporter(), first if replay else None, None, running)


def test_unchanged_derivatives_have_no_findings(made: Deriving, generated_code: None) -> None:
    # Compiled classes replay what interpreted expressions committed: the hashes are equal.
    for name in ("rows", "windows"):
        entry = made.workspace.resolve(name)
        report = check(made, made.workspace, entry, 0)
        assert (report.findings, report.unchecked, report.transforms) == ([], [], 3)
        (use,) = report.engines
        assert (use.engine, use.transactions) == ("spark", 3)
        assert use.records == entry.dataset.state().records and use.version == use.made_by


@pytest.mark.complete(after=4)
def test_tampering_is_found(made: Deriving, case: Case, tampering: Tampering) -> None:
    case.do(tampering)
    workspace = Workspace(tampering.workspace.folder)
    entry = workspace.resolve(case.dataset)
    report = check(made, workspace, entry, case.first or case.block, case.replay)
    assert not report.valid
    # What was written over says which block it was no more.
    block = "" if case.kind == "block-hash" else str(entry.dataset.block(case.block).hash)
    found = [(finding.kind, finding.block) for finding in report.findings]
    assert any(kind == case.kind and each.endswith(block) for kind, each in found), report.findings


@pytest.fixture
def copy(made: Deriving, tmp_path: Path) -> Workspace:
    shutil.copytree(made.workspace.folder, tmp_path / "workspace")
    return Workspace(tmp_path / "workspace")


def test_missing_input_leaves_transactions_unchecked(made: Deriving, copy: Workspace) -> None:
    root, rows = copy.resolve("input"), copy.resolve("rows")
    root.dataset.folder.rename(root.dataset.folder.with_name(".away"))
    report = check(made, copy, rows, 0)
    assert (report.valid, report.transforms, report.slices) == (True, 0, 3)
    assert [each.kind for each in report.unchecked] == ["input-missing"] * 3
    told, missing = dataset_origins(copy, rows)
    assert (told.name, told.records, missing.id, missing.name) == ("rows", 9, str(root.id), None)
    assert missing.problem == "not in this workspace"


def test_block_that_the_input_lacks_leaves_its_transaction_unchecked(made: Deriving, copy: Workspace) -> None:
    t = Tampering(copy, "rows")
    an_input(t, new_block_hash=t.hash(0))
    report = check(made, copy, t.entry, 0)
    assert (report.valid, report.transforms) == (True, 2)
    assert [each.kind for each in report.unchecked] == ["input-behind"]


def test_missing_engine_leaves_transactions_unchecked(made: Deriving, copy: Workspace) -> None:
    t = Tampering(copy, "rows")
    t.change(1, transform=replace(t.event(1).transform, engine="flink", version="1.2"))
    engines = EngineRouter(copy.config, {"spark": lambda: made.engine})
    replay = Replay(copy, t.entry, engines, Reporter())
    report = verify(Dataset(t.folder, BlockIndex(":memory:")), Reporter(), replay=replay)
    assert report.valid and [each.kind for each in report.unchecked] == ["engine-missing"] * 3
    assert "flink" in report.unchecked[0].message


def test_differing_rows_name_both_engine_versions(made: Deriving, copy: Workspace) -> None:
    t = Tampering(copy, "rows")
    one_value(t)
    t.change(1, transform=replace(t.event(1).transform, version="3.9.9+odf1"))
    report = check(made, copy, t.entry, 0)
    (finding,) = report.findings
    assert "y=1;" in finding.message and "y=-30" in finding.message
    assert finding.kind == "transform-version"
    replaying = spark_engine_version()
    assert f"(stored by 3.9.9+odf1, replayed by {replaying})" in finding.message
    assert finding.message.endswith("odf pull --rederive rows derives it by the present rules")
    assert [(use.made_by, use.version) for use in report.engines] == [("3.9.9+odf1", replaying)]


class Remembering:
    """Verifies datasets of a workspace with its index, as ``odf verify`` does."""

    def __init__(self, made: Deriving, workspace: Workspace) -> None:
        self.made, self.folder = made, workspace.folder

    def verify(self, name: str) -> IntegrityReport:
        workspace = Workspace(self.folder)  # nothing in memory
        entry, known = workspace.resolve(name), workspace.index
        replay = Replay(workspace, entry, self.made.engine, Reporter(), known)
        report = verify(entry.dataset, Reporter(), replay=replay, known=known)
        workspace.index.close()
        return report

    def counts(self, name: str) -> tuple[int, int]:
        """Return the numbers of replayed and known transactions of a valid dataset."""
        report = self.verify(name)
        assert (report.findings, report.unchecked) == ([], [])
        assert sum(use.transactions for use in report.engines) == report.transforms
        return report.transforms, report.transforms_known


@pytest.mark.parametrize("name", ["rows", "windows"])
def test_only_new_transactions_are_replayed(
    made: Deriving, copy: Workspace, runtime: SparkRuntime, name: str
) -> None:
    remembering = Remembering(made, copy)
    assert [remembering.counts(name) for _ in range(2)] == [(3, 0), (0, 3)]
    increment(Deriving(copy, runtime), 7, 1, name)
    assert [remembering.counts(name) for _ in range(2)] == [(1, 3), (0, 4)]


def test_transactions_are_replayed_again_for_another_user(
    made: Deriving, copy: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    remembering = Remembering(made, copy)
    assert [remembering.counts("rows") for _ in range(2)] == [(3, 0), (0, 3)]
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user"))
    assert [remembering.counts("rows") for _ in range(2)] == [(3, 0), (0, 3)]


def test_transactions_are_replayed_again_by_another_engine_or_without_the_index(
    made: Deriving, copy: Workspace
) -> None:
    remembering, index = Remembering(made, copy), copy.odf / "index.sqlite"
    copy.index.close()
    assert remembering.counts("rows") == (3, 0)
    with earlier_rules(5):
        assert [remembering.counts("rows") for _ in range(2)] == [(3, 0), (0, 3)]
    assert remembering.counts("rows") == (0, 3)
    index.write_bytes(b"SQLite format 3\0" + bytes(5000))
    assert [remembering.counts("rows") for _ in range(2)] == [(3, 0), (0, 3)]
    index.unlink()
    assert remembering.counts("rows") == (3, 0)
    copy.config.engines["spark"] = "grpc://127.0.0.1:1"
    entry = copy.resolve("rows")
    report = verify(
        entry.dataset, Reporter(), replay=Replay(copy, entry, made.engine, Reporter(), copy.index)
    )
    assert (report.transforms, report.transforms_known) == (3, 0)


def test_changed_files_are_found_after_a_verification(made: Deriving, copy: Workspace) -> None:
    remembering, t = Remembering(made, copy), Tampering(copy, "rows")
    second = t.event(SECOND).new_data.physical_hash
    an_input_damaged(t)
    for _ in range(2):  # a replay that follows a damaged input is not remembered
        report = remembering.verify("rows")
        assert [finding.kind for finding in report.findings] == ["input-damaged"]
        assert report.transforms + report.transforms_known == 3
    an_input_damaged(t)  # the bit is as it was
    assert [remembering.counts("rows") for _ in range(2)] == [(2, 1), (0, 3)]
    an_input_damaged(t)
    report = remembering.verify("rows")
    assert [finding.kind for finding in report.findings] == ["input-damaged"]
    assert (report.transforms, report.transforms_known) == (2, 1)
    an_input_damaged(t)
    t.flip("data", second)
    report = remembering.verify("rows")
    assert (report.findings[0].kind, report.transforms_known) == ("slice-physical-hash", 3)
    t.flip("data", second)
    one_value(t)  # other blocks, with hashes that agree
    report = remembering.verify("rows")
    assert [finding.kind for finding in report.findings] == ["transform-data"]
    assert (report.transforms, report.transforms_known) == (2, 1)


def test_cancelled_replay_leaves_no_files(made: Deriving, copy: Workspace) -> None:
    class Stopping(Reporter):
        replaying = False

        def phase(self, name: str) -> None:
            self.replaying = name == "replay"

        def set_amounts(self, **amounts: Any) -> None:
            if self.replaying and amounts.get("files") == 2:
                self.cancel()

    reporter = Stopping()
    entry = copy.resolve("windows")
    with pytest.raises(Cancelled):
        verify(entry.dataset, reporter, replay=Replay(copy, entry, made.engine, reporter))
    assert list((copy.odf / "cache").glob("replay-*")) == []


def test_dataset_origins_describe_query_and_inputs(made: Deriving, copy: Workspace) -> None:
    rows = copy.resolve("rows")
    (whole, root) = dataset_origins(copy, rows)
    assert (whole.name, whole.kind, whole.transactions, whole.records) == ("rows", "Derivative", 3, 9)
    assert (whole.engine, whole.version, whole.query) == ("spark", spark_engine_version(), [f"{ROWS}\n"])
    assert [(each.name, each.alias, each.offset) for each in whole.inputs] == [("input", "input", 8)]
    assert (root.name, root.kind, root.records) == ("input", "Root", 9)
    assert (root.first or "") < (root.last or "")
    # As it was after the second transaction.
    (early, root) = dataset_origins(copy, rows, last=SECOND)
    assert (early.transactions, early.records, root.records) == (2, 6, 6)


def test_an_invalid_changelog_is_not_reported_as_damage(tmp_path: Path, runtime: SparkRuntime) -> None:
    """A chain of an older version or of another program, whose query returned invalid operations."""
    deriving = Deriving(Workspace.init(tmp_path / "workspace"), runtime)
    deriving.rows(deriving.root(), (1, "a", 1), (2, "b", 2))
    query = "SELECT event_time, city, CAST(IF(x = 2, {}, 0) AS INT) AS op FROM input"
    expected = {3: ["slice-op"], 1: ["slice-retraction"]}
    for operation, kinds in expected.items():
        entry = deriving.derivative(query.format(operation), name=f"op{operation}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("odf_engine.derive.run.check_changelog", lambda *_: None)
            deriving.run(entry)
        replay = Replay(deriving.workspace, entry, deriving.engine, Reporter())
        report = verify(entry.dataset, Reporter(), replay=replay)
        assert [finding.kind for finding in report.findings] == kinds
        assert (report.valid, report.intact, report.transforms) == (False, True, 1)
