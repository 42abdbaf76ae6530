"""Reads and shows blocks, jumps between them, shows findings of verifications, signs blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from textual.message import Message

from odf_engine.api import Job, JobChanged, JobState, LazyModule, Verify
from odf_engine.api.model import (
    BlockBytes,
    BlockDocument,
    BlockLine,
    BlockLines,
    BlockLink,
    BlockRef,
    CheckpointFacts,
    DatasetRow,
    Revision,
    Target,
)
from odf_engine.api.text import format_count
from odf_tui.panes.blocks.view import PAGE, BlocksPane, BlocksRequested, BlocksView
from odf_tui.services.controller import Controller, Host, task
from odf_tui.services.navigation import TrailEntry
from odf_tui.state.app_state import JobNews
from odf_tui.state.model import ShownFinding, Verdict
from odf_tui.text.job_text import known_result, verified_head
from odf_tui.widgets.dialogs import ConfirmDialog, GoToBlockDialog

if TYPE_CHECKING:
    from odf_engine.api import Branch, PinnedVersion
    from odf_tui.panes.blocks import block_dialogs
else:
    block_dialogs = LazyModule("odf_tui.panes.blocks.block_dialogs")

JUMPS: Final[Sequence[tuple[str, str]]] = (
    ("1204", "block number"),
    ("4c1fa2b0", "hash: its first characters, with or without f1620"),
    ("2021-03-12 08:00", "first block at or after a date or time (UTC)"),
    ("#1204", "block that added the row with this offset"),
)


class BlocksController(Controller):
    """Pane 2: the blocks of the selected dataset, and the dialogs that show one block."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.pane = self.host.query_one(BlocksPane)
        self.view = self.pane.view
        self._history = ""  # reference of the shown history; empty: the current one
        self._is_branch = False  # whether it is a branch, which can get new blocks
        self.state.shown_changed.connect(self._open_chain)
        self.state.jobs_changed.connect(self._jobs_changed)
        self.navigator.add_locator(self._locate)
        self.navigator.arriving.connect(self._arriving)
        self.navigator.returned.connect(self._returned)

    def routes(self) -> Mapping[type[Message], Callable[[Any], object]]:
        """Read the blocks that the list requests."""
        return {BlocksRequested: self._read_blocks, BlocksView.Moved: lambda _: self.host.show_hints()}

    def leave(self) -> bool:
        """Show all kinds of events again, or the current history."""
        if self.state.pane != "blocks" or not (self.pane.kinds or self._history):
            return False
        if self.pane.kinds:
            self.pane.set_kinds(())
        else:
            self._show_current_history()
        return True

    def _open_chain(self, row: DatasetRow | None) -> None:
        if row is not None and self._history and row.id == _id_of(self.view.dataset):
            if self._is_branch:  # an earlier history does not change
                self.show_branch(row, self._history)
            return
        self._history = ""
        if row is None:
            self.view.open("", 0)
        else:
            self.pane.set_context(row.name)
            self.view.open(row.id, row.blocks)
            self._move_to_target()

    def _read_blocks(self, request: BlocksRequested) -> None:
        self.host.read(
            "search blocks" if request.first is None else "blocks",
            lambda: self.workspace.blocks(request.dataset, request.first, PAGE, request.block_filter),
            partial(self._blocks_read, request),
            replaces=request.first is None,
        )

    def _blocks_read(self, request: BlocksRequested, page: BlockLines | None, error: str) -> None:
        self.view.load(request, page, error)
        if request.dataset == self.view.dataset:
            self._show_findings()
            self._move_to_target()

    def next_history(self) -> None:
        """Show the next older earlier history; after the oldest one, the current history."""
        if (row := self.state.row) is not None:
            find = partial(self.workspace.histories, row.id)
            self.host.read("histories", find, partial(self._histories_read, row))

    def _histories_read(
        self, row: DatasetRow, histories: Sequence[tuple[str, PinnedVersion]] | None, error: str
    ) -> None:
        if _id_of(self.view.dataset) != row.id:
            return  # another dataset was selected meanwhile
        if not histories:
            self.host.notice(error or f"{row.name} has no earlier history", "warn")
            return
        names = [name for name, _ in histories]
        at = names.index(self._history) + 1 if self._history in names else 0
        if at == len(histories):
            self._show_current_history()
            return
        self._history, version = histories[at]
        self._is_branch = False
        self.pane.set_context(f"{row.name} · {self._history}")
        self.view.open(f"{row.id}@{version.block}", version.sequence_number + 1)
        self._show_findings()
        self.host.notice(f"earlier history {at + 1} of {len(histories)} · H next · esc current history")

    def _show_current_history(self) -> None:
        self._history = ""
        self._open_chain(self.state.row)
        self._show_findings()
        self.host.notice("showing the current history")

    def show_branch(self, row: DatasetRow, name: str) -> None:
        """Show the chain of a branch of the selected dataset, or of the head if the name is empty."""
        if name:
            find = partial(self.workspace.list_branches, row.id)
            self.host.read("branch", find, partial(self._show_branch, row, name))
        elif self._history:
            self._show_current_history()

    def _show_branch(self, row: DatasetRow, name: str, branches: Sequence[Branch] | None, error: str) -> None:
        """Show the chain of a branch, or of the head if the branch was deleted."""
        if _id_of(self.view.dataset) != row.id:
            return
        branch = next((candidate for candidate in branches or () if candidate.name == name), None)
        if branch is None or branch.problem is not None:
            self._history = ""
            self._open_chain(row)
            problem = error or (branch.problem if branch else None) or f"branch {name} was deleted"
            self.host.notice(problem, "warn")
            return
        is_new = self._history != name
        self._history, self._is_branch = name, True
        self.pane.set_context(f"{row.name} · branch {name}")
        self.view.open(f"{row.id}@{name}", branch.blocks)
        self._show_findings()
        if is_new:
            ahead, behind = format_count(branch.ahead), format_count(branch.behind)
            self.host.notice(f"branch {name}: {ahead} ahead, {behind} behind · B branches · esc head")

    def choose_kinds(self) -> None:
        """Open a dialog that selects the kinds of events to show."""
        dataset = self.view.dataset
        self.host.read("kinds", lambda: self.workspace.block_kinds(dataset), self._kinds_read, opens=True)

    def _kinds_read(self, kinds: dict[str, int] | None, error: str) -> None:
        if not kinds:
            self.host.notice(error or "this chain has no blocks", "warn")
        elif self.host.is_front:
            self.host.open(block_dialogs.EventKindsDialog(kinds, self.pane.kinds), self._kinds_chosen)

    def _kinds_chosen(self, kinds: tuple[str, ...] | None) -> None:
        if kinds is not None:
            self.pane.set_kinds(kinds)
            self.host.show_hints()

    def jump(self) -> None:
        """Open a dialog for a number, hash, time or offset, and go to its block."""
        dataset, total = self.view.dataset, self.view.total
        last = f"0 to {total - 1}" if total else "none"

        def find(text: str, show_problem: Callable[[str], None]) -> None:
            def found(number: int | None, error: str) -> None:
                show_problem(error)
                if number is not None:
                    self.go_to_block(number)

            self.host.read("jump", lambda: self.workspace.find_block(dataset, text), found)

        self.host.open(GoToBlockDialog("Go to a block", JUMPS, f"blocks {last}", find))

    def go_to_block(self, number: int) -> None:
        """Put the cursor on a block of the shown dataset. A filter that hides it is cleared."""
        index = self.view.index_of(number)
        if index is None:
            self.pane.kinds = ()
            self.pane.set_filter("")
            index = self.view.index_of(number)
        if index is not None:
            self.view.go(index)

    def _locate(self) -> TrailEntry | None:
        """Return the block in the open dialog, else that under the cursor of the focused pane."""
        dialog = self._dialog
        if self._history:
            return None
        if dialog is not None and dialog.number is not None:
            return TrailEntry(dialog.dataset, "blocks", dialog.number, reading=True)
        row, block = self.state.row, self.view.block
        if self.state.pane != "blocks" or row is None or block is None:
            return None
        return TrailEntry(row.id, "blocks", block.sequence_number)

    def _arriving(self, target: Target) -> None:
        if target.pane == "blocks":
            if self._history:
                self._show_current_history()
            self.pane.kinds = ()
            self.pane.set_filter("")
            self._move_to_target()
        if (dialog := self._dialog) is None:
            return
        if target.pane == "blocks":
            self.read_block(target.dataset, target.at)
        else:
            dialog.dismiss(None)

    def _move_to_target(self) -> None:
        """Put the cursor on the target, if its page is loaded."""
        target = self.navigator.target_in("blocks", self.view.dataset)
        index = None if target is None else self.view.index_of(target.at)
        if index is not None:
            self.view.go(index)
            self.navigator.clear_target()

    def _returned(self, entry: TrailEntry) -> None:
        if entry.reading:
            self.read_block(entry.dataset, entry.at)
        elif (dialog := self._dialog) is not None:
            dialog.dismiss(None)

    def back(self) -> None:
        """Go back to where the last link was followed."""
        self.navigator.back()

    def follow_link(self, reader: block_dialogs.BlockDialog, link: BlockLink) -> None:
        """Go to the target of a link; a block or a checkpoint is shown in the same dialog."""
        if link.target is not None:
            self.navigator.follow(link.target)
            return
        at = reader.number if reader.number is not None else 0

        def then(facts: CheckpointFacts | None, error: str) -> None:
            if facts is None:
                self.host.notice(error, "bad")
            elif self.host.top is reader:
                reader.show_checkpoint(facts)

        self.host.read(
            "text", lambda: self.workspace.checkpoint(reader.dataset, link.text, at), then, opens=True
        )

    @property
    def _dialog(self) -> block_dialogs.BlockDialog | None:
        """The dialog in front, if it shows a block."""
        if self.host.is_front:
            return None
        dialog = self.host.top
        return dialog if isinstance(dialog, block_dialogs.BlockDialog) else None

    @property
    def _current_block(self) -> tuple[str, BlockRef] | None:
        """Dataset and block of the dialog in front, else of the cursor."""
        if (dialog := self._dialog) is not None:
            return dialog.dataset, dialog.which
        block = self.view.block
        if block is None:
            return None
        return self.view.dataset, block.hash if block.broken else block.sequence_number

    def open_block(self) -> None:
        """Show the block under the cursor."""
        if (block := self.view.block) is not None:
            self.read_block(self.view.dataset, block.hash if block.broken else block.sequence_number)

    def read_block(self, dataset: str, which: BlockRef) -> None:
        """Read a block and show it, in the open dialog if there is one."""
        self.host.read(
            "text",
            lambda: self.workspace.block(dataset, which),
            partial(self._show_block, dataset),
            opens=True,
        )

    def _show_block(self, dataset: str, block: BlockDocument | None, error: str) -> None:
        if block is None:
            self.host.notice(error, "bad")
            return
        finding = self.view.findings.get(block.hash)
        problem = "" if finding is None else f"{finding.kind}: {finding.message}"
        title = self._title(dataset, block.number, block.hash)
        if (dialog := self._dialog) is not None:
            dialog.open(title, dataset, block, problem)
        elif self.host.is_front:
            copy = partial(self.host.copy_text, "text")
            self.host.open(block_dialogs.BlockDialog(title, dataset, block, problem, copy, self))

    def _title(self, dataset: str, number: int | None, block: str = "") -> str:
        line = self.view.block
        if number is None and line is not None and line.hash == block and line.sequence_number >= 0:
            number = line.sequence_number
        name = self.state.name_of(_id_of(dataset)) + (f" · {self._history}" if "@" in dataset else "")
        return f"{name} · block {'?' if number is None else number}"

    def step_block(self, by: int) -> None:
        """Show the next newer (1) or older (-1) block."""
        view = self.view
        view.go(view.cursor - by)
        if view.block is None and not view.block_filter and not view.broken:
            self.read_block(view.dataset, view.total - 1 - view.cursor)  # its page is not loaded yet
        else:
            self.open_block()

    def open_revision(self) -> None:
        """Show what a block changed in a query, source, schema or description."""
        if (current := self._current_block) is not None:
            self._read_revision(*current)

    def _read_revision(self, dataset: str, which: BlockRef) -> None:
        show = partial(self._show_revision, dataset)
        self.host.read("text", lambda: self.workspace.revision(dataset, which), show, opens=True)

    def _show_revision(self, dataset: str, revision: Revision | None, error: str) -> None:
        if revision is None:
            self.host.notice(error, "warn")
            return
        title = f"{self._title(dataset, revision.number)} · {revision.title}"
        dialog = self.host.top
        if isinstance(dialog, block_dialogs.RevisionDialog):
            dialog.open(title, revision)
            return
        copy, go = partial(self.host.copy_text, "text"), partial(self._read_revision, dataset)
        self.host.open(block_dialogs.RevisionDialog(title, revision, copy, go))

    def open_bytes(self) -> None:
        """Show the bytes of a block."""
        if (current := self._current_block) is not None:
            self._read_bytes(*current)

    def _read_bytes(self, dataset: str, which: BlockRef) -> None:
        show = partial(self._show_bytes, dataset)
        self.host.read("text", lambda: self.workspace.block_bytes(dataset, which), show, opens=True)

    def _show_bytes(self, dataset: str, block: BlockBytes | None, error: str) -> None:
        if block is None:
            self.host.notice(error, "bad")
            return
        title = f"{self._title(dataset, block.number, block.hash)} · {format_count(len(block.data))} bytes"
        dialog = self.host.top
        if isinstance(dialog, block_dialogs.BlockBytesDialog):
            dialog.open(title, block)
            return
        row = self.state.row_of(dataset)
        last = (self.view.total if dataset == self.view.dataset else 0 if row is None else row.blocks) - 1

        def go(number: int) -> None:
            if 0 <= number <= last:
                self._read_bytes(dataset, number)

        self.host.open(
            block_dialogs.BlockBytesDialog(title, block, partial(self.host.copy_text, "bytes"), go)
        )

    def _jobs_changed(self, news: JobNews) -> None:
        jobs = (event.job for event in news.events if isinstance(event, JobChanged))
        dataset = self.view.dataset
        if news.reloaded or any(job.kind == "verify" and _chain_of(job) == dataset for job in jobs):
            self._show_findings()

    def _show_findings(self) -> None:
        """Show the findings of the newest verification of the dataset."""
        job, row = self._verification(), self.state.row_of(self.view.dataset)
        findings = () if job is None else parse_findings(job.result or "")
        verdict: Verdict = "findings" if findings else ""
        if job is not None and row is not None and row.head and verified_head(job) == row.head:
            verdict = "verified"
        self.pane.show_findings(findings, verdict)
        self.host.show_hints()

    def _verification(self) -> Job | None:
        verifications = (
            job
            for job in reversed(self.state.jobs.jobs.values())
            if _chain_of(job) == self.view.dataset and job.kind == "verify" and job.state is JobState.done
        )
        return next(verifications, None)

    def next_finding(self) -> None:
        """Go to the next older block with a finding."""
        self._go_to_finding(older=True)

    def previous_finding(self) -> None:
        """Go to the next newer block with a finding."""
        self._go_to_finding(older=False)

    def _go_to_finding(self, *, older: bool) -> None:
        view = self.view
        dataset, hashes = view.dataset, tuple(view.findings)
        here = view.block.sequence_number if view.block is not None else view.total

        def then(blocks: dict[str, int] | None, error: str) -> None:
            numbers = sorted((blocks or {}).values(), reverse=older)
            beyond = [number for number in numbers if (number < here if older else number > here)]
            if numbers:
                self.go_to_block((beyond or numbers)[0])
            else:
                first = next(iter(view.findings.values()), None)
                self.host.notice(error or (first.message if first else ""), "bad")

        self.host.read("findings", lambda: self.workspace.block_numbers(dataset, hashes), then)

    def sign_block(self) -> None:
        """Sign the block under the cursor with the private key of the dataset, after a confirmation."""
        if self._history:
            what = "a branch" if self._is_branch else "an earlier history"
            self.host.notice(f"blocks of {what} cannot be signed", "warn")
        elif self.view.block is not None:
            self._sign(self.view.dataset, self.view.block)

    @task
    async def _sign(self, dataset: str, block: BlockLine) -> None:
        name = self.state.name_of(dataset)
        if not await asyncio.to_thread(self.workspace.holds_key, dataset):
            self.host.notice(f"the private key of {name} is not in this workspace", "warn")
            return
        number = format_count(block.sequence_number)
        dialog = ConfirmDialog(
            f"Sign block {number} with the private key?",
            f"Dataset: {name}",
            "It covers this block and all earlier blocks.",
            "The proof is pushed with the dataset."
            if block.sequence_number == self.view.total - 1
            else "Only the proof of the newest block is pushed.",
        )
        if not await self.host.ask(dialog):
            return
        await asyncio.to_thread(self.workspace.sign_block, dataset, block.hash)
        self.host.notice(f"signed block {number} of {name}")
        if self.view.dataset == dataset:
            self.view.open(dataset, self.view.total)
        self.state.datasets_outdated.send(None)


def _id_of(dataset: str) -> str:
    """Return the id of a dataset without the block of an earlier history or the name of a branch."""
    return dataset.partition("@")[0]


def _chain_of(job: Job) -> str:
    """Return the id of the chain that a job verified."""
    return f"{job.dataset}@{job.branch}" if job.branch else job.dataset


@lru_cache(maxsize=64)
def parse_findings(report: str) -> tuple[ShownFinding, ...]:
    """Return the findings in the result of a verification. Cached: it is long, and read often."""
    result = known_result(report, Verify)
    findings = () if result is None else result.findings
    return tuple(ShownFinding(finding.block, finding.kind, finding.message) for finding in findings)
