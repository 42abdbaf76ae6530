"""Pane 2: the list of blocks, finding one in it, and what a verification found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from textual import on

from odf_engine.coordinator.protocol import Job, JobChanged, JobState, Verify
from odf_tui.panes.blocks.view import PAGE, BlocksRead, BlocksWanted
from odf_tui.screens.proving import Proving
from odf_tui.services.controller import JobsRead
from odf_tui.state.app_state import WorkerEvents
from odf_tui.state.model import Finding, Verdict
from odf_tui.text.job_text import known_result, verified_head


class BlocksPart(Proving):
    """The part of the workbench about the list of blocks."""

    # --- What is learnt ---

    @on(BlocksWanted)
    def _blocks_wanted(self, message: BlocksWanted) -> None:
        self.reads.start(
            "search blocks" if message.first is None else "blocks",
            lambda: self.source.blocks(message.dataset, message.first, PAGE, message.want),
            lambda page, error: BlocksRead(message, page, error),
            replaces=message.first is None,
        )

    @on(BlocksRead)
    def _blocks_read(self, message: BlocksRead) -> None:
        view = self.blocks_pane.view
        view.take(message)
        if message.asked.dataset == view.dataset:
            self._show_findings()
            self.arrive()

    @on(JobsRead)
    def _jobs_known(self) -> None:
        self.call_next(self._show_findings)  # once the book knows of it

    @on(WorkerEvents)
    def _jobs_changed(self, message: WorkerEvents) -> None:
        dataset = self.blocks_pane.view.dataset
        jobs = (event.job for event in message.events if isinstance(event, JobChanged))
        if any(job.kind == "verify" and job.dataset == dataset for job in jobs):
            self.call_next(self._show_findings)

    def _show_findings(self) -> None:
        """What the newest verification of the dataset says."""
        view = self.blocks_pane.view
        job = self._verification(view.dataset)
        findings = () if job is None else findings_in(job.result or "")
        verdict: Verdict = "findings" if findings else ""
        head = next((row.head for row in self.rows if row.id == view.dataset), "")
        if job is not None and head and verified_head(job) == head:
            verdict = "verified"
        self.blocks_pane.show_findings(findings, verdict)
        self.show_hints()

    def _verification(self, dataset: str) -> Job | None:
        found = (
            job
            for job in reversed(self.book.jobs.values())
            if job.dataset == dataset and job.kind == "verify" and job.state is JobState.done
        )
        return next(found, None)

    # --- Some kinds ---

    def do_block_kinds(self) -> None:
        """Chooses which kinds of events are shown."""
        dataset = self.blocks_pane.view.dataset
        self.ask_blocks("kinds", lambda: self.source.block_kinds(dataset), self._choose_kinds)

    def _choose_kinds(self, kinds: dict[str, int] | None, error: str) -> None:
        if kinds is None or not kinds:
            self.notify_line(error or "this chain has no blocks", "warn")
            return
        if self.app.screen is not self:
            return
        from odf_tui.panes.blocks.block_dialogs import EventKindsDialog

        def chosen(found: tuple[str, ...] | None) -> None:
            if found is not None:
                self.blocks_pane.set_kinds(found)
                self.show_hints()

        self.app.push_screen(EventKindsDialog(kinds, self.blocks_pane.kinds), chosen)

    def do_leave_blocks(self) -> None:
        """One level up: from some kinds to all, then as everywhere."""
        if self.blocks_pane.kinds and not self.blocks_pane.filter and not self.query_one("#filter").display:
            self.blocks_pane.set_kinds(())
            self.show_hints()
        else:
            self.do_up()

    # --- Jumping ---

    def do_jump_block(self) -> None:
        """Asks for a number, hash, time or offset, and goes there."""
        from odf_tui.widgets.dialogs import GoToBlockDialog

        view = self.blocks_pane.view
        dataset = view.dataset
        last = f"0 to {view.total - 1}" if view.total else "none"

        def look(text: str, tell: Callable[[str], None]) -> None:
            def found(number: int | None, error: str) -> None:
                tell(error)
                if number is not None:
                    self.go_to_block(number)

            self.ask_blocks("jump", lambda: self.source.find_block(dataset, text), found)

        self.app.push_screen(GoToBlockDialog("Go to a block", JUMPS, f"blocks {last}", look))

    def go_to_block(self, number: int) -> None:
        """Puts the cursor on a block of the dataset that is shown; what hides it is taken away."""
        pane = self.blocks_pane
        index = pane.view.index_of(number)
        if index is None:
            pane.kinds = ()
            pane.set_filter("")
            index = pane.view.index_of(number)
        if index is not None:
            pane.view.go(index)

    # --- What was found ---

    def do_next_finding(self) -> None:
        """The next older block on which something was found."""
        self._go_to_finding(older=True)

    def do_previous_finding(self) -> None:
        """The next newer one."""
        self._go_to_finding(older=False)

    def _go_to_finding(self, *, older: bool) -> None:
        view = self.blocks_pane.view
        dataset, hashes = view.dataset, tuple(view.findings)
        here = view.block.sequence_number if view.block is not None else view.total
        go = partial(self._went_to_finding, here, older)
        self.ask_blocks("findings", lambda: self.source.block_numbers(dataset, hashes), go)

    def _went_to_finding(self, here: int, older: bool, found: dict[str, int] | None, error: str) -> None:
        numbers = sorted((found or {}).values(), reverse=older)
        beyond = [number for number in numbers if (number < here if older else number > here)]
        if not numbers:
            first = next(iter(self.blocks_pane.view.findings.values()), None)
            self.notify_line(error or (first.message if first else ""), "bad")
        else:
            self.go_to_block((beyond or numbers)[0])


JUMPS: Sequence[tuple[str, str]] = (
    ("1204", "its number"),
    ("4c1fa2b0", "its hash: the beginning, or the last 8 characters"),
    ("2021-03-12 08:00", "the first block at or after a day or time, in UTC"),
    ("#1204", "the block that brought the row with this offset"),
)


@lru_cache(maxsize=64)
def findings_in(report: str) -> tuple[Finding, ...]:
    """Return the findings in a verification's result. Cached: reports can be long, and are read often."""
    result = known_result(report, Verify)
    found = () if result is None else result.findings
    return tuple(Finding(each.block, each.kind, each.message) for each in found)
