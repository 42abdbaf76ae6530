"""Damaged workspaces: the error and a hint are shown for the damaged dataset, the rest works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest

from odf_engine.api import Query
from odf_engine.api.model import BlockFilter
from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.automation.alerts.store import AlertStore
from odf_engine.automation.flows.definition import Flow
from odf_engine.automation.flows.store import FlowStore
from odf_engine.errors import OdfError, Unsupported
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.flatbuffers import decode_block, encode_block
from odf_engine.metadata.model import (
    AddData,
    DatasetKind,
    DataSlice,
    MetadataBlock,
    MetadataEvent,
    OffsetInterval,
    SetInfo,
)
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.documents.store import Documents
from odf_engine.workspace.workspace import Workspace
from odf_tui.app import Workstation
from odf_tui.panes.datasets.view import CardJobs, DatasetCard
from odf_tui.panes.jobs.controller import JobsController
from odf_tui.panes.jobs.view import JobsPane
from odf_tui.state.job_book import JobBook, dataset_healths
from odf_tui.text.job_text import JobRates
from tests.tui.conftest import Driven, driven
from tests.tui.context import Fakes
from tests.tui.scripted_worker import Scenario
from tests.tui.test_workspace_reads import LonelySource, add_rows
from tests.tui.widget_app import shown

Damage = Callable[[DatasetEntry], None]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Return a workspace with two datasets of three slices each; tests damage ``wrecks``."""
    made = Workspace.init(tmp_path / "harbour")
    for name in ("boats", "wrecks"):
        add_rows(made.create_dataset(DatasetAlias.parse(name), DatasetKind.Root), 3, 300)
    return made


@asynccontextmanager
async def opened(
    workspace: Workspace, size: tuple[int, int] = (120, 36), source: type[OpenWorkspace] = LonelySource
) -> AsyncIterator[Driven]:
    """Open the workstation on a workspace."""
    app = Workstation(source(Workspace(workspace.folder)))
    async with app.run_test(size=size) as pilot:
        drive = Driven(app, pilot, None)  # type: ignore[arg-type]
        await drive.settle()
        yield drive


def words(drive: Driven) -> str:
    """Return the text of the screen without borders. Wrapped sentences are joined."""
    lines = drive.text().splitlines()
    middle = max(line.find("││") for line in lines)
    columns = [line[:middle] for line in lines] + [line[middle:] for line in lines]
    return " ".join(" ".join(columns).translate(str.maketrans("│╭╮╰╯─", "      ")).split())


def forget_index(workspace: Workspace) -> None:
    """Delete the index, which was made before the damage."""
    workspace.index.close()
    for path in workspace.odf.glob("index.sqlite*"):
        path.unlink()


def block_file(entry: DatasetEntry, number: int) -> Path:
    """Return the file of a block."""
    return entry.dataset.folder / "blocks" / str(entry.dataset.block(number).hash)


def _turned_bytes(entry: DatasetEntry) -> None:
    path = block_file(entry, 4)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def _cut_block(entry: DatasetEntry) -> None:
    path = block_file(entry, 4)
    path.write_bytes(path.read_bytes()[:40])


def _missing_block(entry: DatasetEntry) -> None:
    block_file(entry, 2).unlink()


def _head_to_nothing(entry: DatasetEntry) -> None:
    path = entry.dataset.folder / "refs" / "head"
    path.write_text(str(Multihash.sha3_256(b"nothing")))


def _garbage_head(entry: DatasetEntry) -> None:
    (entry.dataset.folder / "refs" / "head").write_bytes(b"\xff\x00\x1b[31mjunk\n")


def _no_head(entry: DatasetEntry) -> None:
    (entry.dataset.folder / "refs" / "head").unlink()


def _put_head(entry: DatasetEntry, data: bytes) -> None:
    """Store bytes as the newest block."""
    block_hash = Multihash.sha3_256(data)
    (entry.dataset.folder / "blocks" / str(block_hash)).write_bytes(data)
    (entry.dataset.folder / "refs" / "head").write_text(str(block_hash))


def _next_block(entry: DatasetEntry, event: MetadataEvent) -> bytes:
    state = entry.dataset.state()
    block = MetadataBlock(
        system_time=state.system_time,
        prev_block_hash=state.head,
        sequence_number=state.sequence_number + 1,
        event=event,
    )
    return encode_block(block)


def _records_to(entry: DatasetEntry, end: int) -> None:
    """Append a slice whose block claims offsets up to ``end``."""
    state, known = entry.dataset.state(), entry.dataset.slices()[0]
    assert state.last_offset is not None
    interval = OffsetInterval(state.last_offset + 1, end)
    data = DataSlice(known.logical_hash, known.physical_hash, interval, known.size)
    event = AddData(prev_offset=state.last_offset, new_data=data, new_watermark=state.watermark)
    _put_head(entry, _next_block(entry, event))


def _large_offsets(entry: DatasetEntry) -> None:
    _records_to(entry, 2**64 - 1)


def _unknown_version(entry: DatasetEntry) -> None:
    _put_head(
        entry,
        _changed(_next_block(entry, SetInfo("of a newer time")), "version: unsupported block version 99"),
    )


def _changed(data: bytes, problem: str) -> bytes:
    """Set one byte to 99, such that the decoder reports a problem that starts with ``problem``."""
    for place in range(len(data)):
        changed = data[:place] + bytes([99]) + data[place + 1 :]
        try:
            message = " ".join(decode_block(changed).unknown)
        except OdfError as error:
            message = str(error)
        if message.startswith(problem):
            return changed
    raise AssertionError(f"no byte leads to '{problem}'")


def _unknown_event(entry: DatasetEntry) -> None:
    _put_head(entry, _changed(_next_block(entry, SetInfo("of a newer time")), "event: member 99"))


BROKEN: dict[str, tuple[Damage, str, str]] = {
    "changed": (_turned_bytes, "the block is damaged", "restore it from a copy of the dataset"),
    "cut": (_cut_block, "the block is damaged", "restore it from a copy of the dataset"),
    "missing": (_missing_block, "the block is missing", "restore it from a copy of the dataset"),
    "nowhere": (_head_to_nothing, "the block is missing", "restore it from a copy of the dataset"),
    "garbage": (_garbage_head, "refs/head does not contain the hash of a block", "restore it from a copy"),
    "headless": (
        _no_head,
        "refs/head, the reference to the newest block, is missing",
        "restore it from a copy",
    ),
    "numbers": (_large_offsets, "is larger than 2^63 - 1", "delete the dataset, and pull it again"),
    "newer": (_unknown_version, "unsupported block version 99", "use a newer version of odf"),
}


def _missing_slice(entry: DatasetEntry) -> None:
    entry.dataset.slice_path(entry.dataset.slices()[1]).unlink()


def _cut_slice(entry: DatasetEntry) -> None:
    path = entry.dataset.slice_path(entry.dataset.slices()[1])
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_chain_is_a_problem_of_its_dataset_only(workspace: Workspace, name: str) -> None:
    damage, why, remedy = BROKEN[name]
    damage(workspace.resolve("wrecks"))
    forget_index(workspace)
    source = OpenWorkspace(Workspace(workspace.folder))
    boats, wrecks = source.datasets()
    assert (boats.problem, wrecks.name) == (None, "wrecks")
    assert why in (wrecks.problem or "")
    assert remedy in (wrecks.problem or "").partition(" – ")[2]
    card = DatasetCard()
    card.load(wrecks, dataset_healths([wrecks], JobBook())[wrecks.id], None, CardJobs())
    text = " ".join("".join(text for text, _ in card.spans(at)).strip() for at in range(card.count()))
    assert "! damaged" in text
    assert f"try {remedy}" in " ".join(text.split())
    assert why in " ".join(text.split())
    assert "\x1b" not in text
    reads: list[Callable[[str], object]] = [
        source.detail,
        source.rows,
        source.definition,
        source.block_kinds,
        source.primary_key,
        source.timeline,
        lambda dataset: source.blocks(dataset, None, 20, BlockFilter()),
        lambda dataset: source.block(dataset, 1),
        lambda dataset: source.block_bytes(dataset, 1),
        lambda dataset: source.column_statistics(dataset, None),
    ]
    for read in reads:
        assert read(boats.id) is not None
        with suppress(OdfError):
            read(wrecks.id)
    rows = source.rows(boats.id)
    assert rows is not None
    assert rows.window(899, 1)["name"].to_pylist() == ["boat 899"]


BROKEN_SLICES: dict[str, tuple[Damage, str]] = {
    "lost-slice": (_missing_slice, "slice is missing"),
    "cut-slice": (_cut_slice, "slice cannot be read"),
}


def _more_rows(entry: DatasetEntry) -> None:
    _records_to(entry, 2**63 - 2)


@pytest.mark.app
@pytest.mark.complete
async def test_damage_is_shown_where_it_is_and_everything_else_works(workspace: Workspace) -> None:
    """Open a workspace with one dataset for each kind of damage, and select each of them."""
    for name in (*BROKEN, *BROKEN_SLICES, "newer-event", "more-rows", "no-name", "no-folder"):
        add_rows(workspace.create_dataset(DatasetAlias.parse(name), DatasetKind.Root), 3, 300)
    for name, (damage, *_) in (*BROKEN.items(), *BROKEN_SLICES.items()):
        damage(workspace.resolve(name))
    _unknown_event(workspace.resolve("newer-event"))
    _more_rows(workspace.resolve("more-rows"))
    nameless = workspace.resolve("no-name").dataset.folder
    (nameless / "info" / "alias").write_bytes(b"\xff\xfe")
    replaced = workspace.resolve("no-folder").dataset.folder
    shutil.rmtree(replaced)
    replaced.write_text("in the way")
    workspace.config_path.write_text("ui:\n  theme: paper\n bad: [\n")
    forget_index(workspace)

    async with opened(workspace, (160, 50)) as drive:

        async def go_to(name: str) -> None:
            await drive.press("1")
            drive.graph.select(next(row.id for row in drive.rows if row.name == name))
            await drive.settle()
            assert drive.graph.row is not None
            assert drive.graph.row.name == name

        await drive.until(lambda: "config.yaml:3:" in drive.hint())
        assert "the settings are not valid YAML" in drive.hint()
        assert drive.app.theme != "paper"
        names = [row.name for row in drive.rows]
        assert {nameless.name, replaced.name} <= {*names}
        for name, (_, why, remedy) in BROKEN.items():
            await go_to(name)
            shown = words(drive)
            assert "! damaged" in shown
            assert why in shown
            assert remedy in shown
            assert "\x1b" not in drive.text()
            if name in ("cut", "headless", "numbers"):  # damage of blocks, head and offsets
                for key in ("p", "enter", "escape", "2", "enter", "escape", "3", "enter", "y", "4"):
                    await drive.press(key)
        for name, (_, why) in BROKEN_SLICES.items():
            await go_to(name)
            await drive.press("3")
            assert "boat 3" in drive.text()  # the other slices are shown
            for _ in range(40):
                if drive.data_pane.view.cursor < 320:
                    await drive.press("pagedown")
            assert why in words(drive)
            assert "block 3" in words(drive)
            assert "cannot be read: press v to verify the dataset" in drive.text()
            await drive.press("G")
            assert "boat 899" in drive.text()
            await drive.press("2")
            assert "AddData" in drive.text()
        await go_to("newer-event")
        assert "event from a newer" in words(drive)
        await drive.press("3", "G")
        assert "row 900 of 900" in drive.text()
        await go_to("more-rows")
        await drive.press("2", "3", "g", "G")
        assert "slice has 300 rows, but its block declares 9223372036854774907" in drive.text()
        await go_to(replaced.name)
        assert "! damaged" in drive.text()
        assert "the dataset is empty" in words(drive)

        home = workspace.odf / "datasets"
        home.rename(workspace.odf / "away")
        home.write_text("in the way")
        await drive.press("r")
        assert "the datasets cannot be read: Not a directory" in drive.hint()
        home.unlink()
        (workspace.odf / "away").rename(home)
        await drive.press("r")
        await go_to("boats")
        await drive.press("3", "G")
        assert "row 900 of 900" in drive.text()


@pytest.mark.parametrize(("text", "message"), [("2\n", "version 2"), ("two", "version 'two'")])
def test_a_workspace_of_a_newer_version_is_refused(workspace: Workspace, text: str, message: str) -> None:
    (workspace.odf / "version").write_text(text)
    before = {path: path.stat().st_mtime_ns for path in workspace.odf.rglob("*")}
    with pytest.raises(Unsupported, match=message) as refused:
        Workspace.find(workspace.folder)
    assert "newer version of odf" in str(refused.value.hint)
    done = odf(workspace, "list")
    assert done.returncode == 1
    assert f"unsupported workspace {message}" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in workspace.odf.rglob("*")} == before


def test_a_workspace_without_a_version_can_be_opened(workspace: Workspace) -> None:
    assert (workspace.odf / "version").read_text() == "1\n"
    (workspace.odf / "version").unlink()
    assert Workspace.find(workspace.folder).datasets()


def test_invalid_settings_are_reported_and_defaults_are_used(workspace: Workspace) -> None:
    workspace.config_path.write_text("ui:\n  theme: paper\n bad: [\n")
    source = OpenWorkspace(Workspace(workspace.folder))
    assert "config.yaml:3:" in source.settings_problem
    assert "the settings are not valid YAML" in source.settings_problem
    assert source.ui.theme != "paper"
    assert source.complete_query(Query("SELECT 1", engine="")).engine == "spark"


def test_corrupt_journal_is_reported_and_datasets_are_still_listed(workspace: Workspace) -> None:
    (workspace.odf / "jobs.sqlite").write_bytes(b"this is no database" * 100)
    source = OpenWorkspace(Workspace(workspace.folder))
    with pytest.raises(OdfError, match="the job log cannot be read"):
        source.jobs()
    assert [row.records for row in source.datasets()] == [900, 900]


async def test_a_journal_that_cannot_be_read_is_a_notice(
    source: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OdfError("the job log cannot be read", hint="restore it")

    pane = JobsPane("jobs", JobBook(), JobRates())
    async with shown(pane):
        fakes = Fakes(source, widgets={JobsPane: pane})
        JobsController(fakes.context)
        monkeypatch.setattr(source, "jobs", fail)
        fakes.state.jobs_outdated.send(None)
    assert fakes.host.notices == [("the job log cannot be read – restore it", "bad")]


def test_datasets_path_that_is_a_file_is_reported(workspace: Workspace) -> None:
    home = workspace.odf / "datasets"
    home.rename(workspace.odf / "away")
    home.write_text("in the way")
    source = OpenWorkspace(Workspace(workspace.folder))
    with pytest.raises(OdfError, match="the datasets cannot be read: Not a directory"):
        source.datasets()
    home.unlink()
    (workspace.odf / "away").rename(home)
    assert [row.name for row in source.datasets()] == ["boats", "wrecks"]


READ_ONLY = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"
"""


def can_mount() -> bool:
    """Return whether a folder can be mounted read-only for one process."""
    if shutil.which("unshare") is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        command = ["unshare", "-rm", "sh", "-c", READ_ONLY, "sh", folder, "true"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def odf(workspace: Workspace, *words: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a command."""
    program = [*before, sys.executable, "-m", "odf_tui", "-w", str(workspace.folder), *words]
    path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), *sys.path])
    environ = os.environ | {"PYTHONPATH": path}
    return subprocess.run(program, env=environ, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.app
@pytest.mark.skipif(not can_mount(), reason="needs to mount")
@pytest.mark.complete
def test_a_read_only_disk_can_be_read(workspace: Workspace) -> None:
    forget_index(workspace)
    before = ("unshare", "-rm", "sh", "-c", READ_ONLY, "sh", str(workspace.folder))
    listed = odf(workspace, "list", before=before)
    assert listed.returncode == 0
    assert "wrecks" in listed.stdout
    assert odf(workspace, "flow", "list", before=before).returncode == 0
    assert odf(workspace, "alert", "list", before=before).returncode == 0
    flow = workspace.folder / "nightly.yaml"
    flow.write_text("headers: {name: nightly}\nspec: {target: boats, tasks: [{kind: Pull}]}\n")
    Documents(workspace.odf, Flow).write(flow.read_bytes(), flow.name)
    with closing(FlowStore(workspace.odf)) as store:
        store.change("nightly", 1e9, paused=True, pause_reason="by hand")
    with closing(AlertStore(workspace.odf)) as alerts:
        alerts.enqueue([], 1e9)
    for words in (["flow", "list"], ["flow", "history"], ["alert", "history"], ["metrics"]):
        ran = odf(workspace, *words, before=before)
        assert ran.returncode == 0, ran.stderr
    paused = odf(workspace, "flow", "pause", "nightly", before=before)
    assert paused.returncode == 1 and "cannot be read or written" in paused.stderr
    for verb in (["config", "set", "ui.theme", "paper"], ["rename", "boats", "ships"]):
        refused = odf(workspace, *verb, before=before)
        assert refused.returncode == 1
        assert "cannot be written: Read-only file system" in refused.stderr
        assert "hint: free disk space, or check the permissions" in refused.stderr
        assert "Traceback" not in refused.stderr
    script = textwrap.dedent(
        f"""
        import asyncio
        from pathlib import Path
        from odf_engine.workspace.workspace import Workspace
        from tests.tui.test_damaged_workspaces import opened

        async def read():
            async with opened(Workspace(Path({str(workspace.folder)!r})), (160, 36)) as drive:
                await drive.press("3", "G")
                print(drive.text())

        asyncio.run(read())
        """
    )
    path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), *sys.path])
    shown = subprocess.run(
        [*before, sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "row 900 of 900" in shown.stdout, shown.stderr
    assert not list(workspace.odf.glob("index.sqlite*"))


async def test_deleted_workspace_is_not_shown_as_empty(source: Scenario) -> None:
    async with driven(source, (120, 36)) as drive:
        shutil.rmtree(source.folder)
        source.link.die()
        await drive.until(lambda: "workspace deleted" in drive.status())
        await drive.until(
            lambda: drive.text().count("the workspace folder was deleted") == 3
        )  # also a notice
        assert "No datasets yet" not in drive.text()
