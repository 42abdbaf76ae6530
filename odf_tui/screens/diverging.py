"""What is done about two histories that went apart: seen first, then chosen, and asked once more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from odf_engine.coordinator.protocol import Compare, Pull, Push
from odf_engine.errors import NotFound, OdfError
from odf_tui.screens.sharing import Sharing
from odf_tui.state.model import DatasetRow
from odf_tui.text.format import printable
from odf_tui.text.job_text import remote_from_comparison
from odf_tui.text.remotes import Remote, diverged_remotes, relation_text

if TYPE_CHECKING:
    from odf_tui.text.format import Span

Answer = tuple[str, tuple[str, ...], str]
_THEIRS: Final[Answer] = ("theirs", ("t",), "theirs")
_OURS: Final[Answer] = ("ours", ("o",), "ours")
_BOTH: Final[Answer] = ("both", ("b",), "both")
_AGAIN: Final[Answer] = ("again", ("r",), "looks again")
_LEAVE: Final[Answer] = ("leave", ("escape",), "leaves it")


class Diverging(Sharing):
    """The part of the workbench that shows both histories of a dataset, and lets choose."""

    def do_branches(self) -> None:
        """Shows both histories of the selected dataset, or of that of the selected job."""
        job = self.jobs_pane.view.job if self.pane == "jobs" else None
        if job is None or job.kind not in ("pull", "push"):
            if (row := self.graph.row) is not None:
                self.start(self._branches(row))
        elif (row := self.row_of(job.dataset)) is None:
            self.notify_line(f"{job.target} is not in this workspace", "warn")
        elif diverged_remotes(row.remotes):
            self.start(self._branches(row))
        else:
            self.start(self._after_job(row, job.id))

    async def _after_job(self, row: DatasetRow, job: str) -> None:
        """The histories that a failed job was about: its request says where the other one is."""
        known = self.book.jobs.get(job)
        request = await asyncio.to_thread(self.source.request, known) if known is not None else None
        url = getattr(request, "url", None)
        remote = next((each for each in row.remotes if each.url == url), None)
        if remote is None and url:
            remote = Remote(url=url, label=url)
        await self._branches(row, remote)

    async def _branches(self, row: DatasetRow, remote: Remote | None = None) -> None:
        if remote is None:
            title = f"{row.name} and which remote?"
            remote = await self.choose_remote(title, diverged_remotes(row.remotes) or row.remotes)
        if remote is None:
            self.notify_line(f"{row.name} has no remote", "warn")
            return
        answer = "" if remote.relation == "diverged" else "again"
        while answer in ("", "again"):
            if answer:
                remote = await self._look_now(row, remote)
            if remote.relation == "behind":
                await self._catch_up(row, remote)
                return
            if remote.relation != "diverged":
                self.notify_line(f"{row.name} and {remote.label}: {relation_text(remote)}")
                return
            answer = await self._ask_what_to_do(row, remote)
        if answer == "theirs":
            await self._take_theirs(row, remote)
        elif answer == "ours":
            await self._push_ours(row, remote)
        elif answer == "both":
            await self._keep_both(row, remote)

    async def _look_now(self, row: DatasetRow, remote: Remote) -> Remote:
        """How they stand now."""
        request = Compare(dataset=row.id, urls=[remote.url])
        result = await self.result_of(request, row.name, f"Looking at {remote.label}")
        for problem in result.problems:
            raise OdfError(f"{remote.label}: {problem.message}")
        for seen in result.seen:
            return remote_from_comparison(seen, remote.label, remote)
        raise NotFound(f"nothing was found at {remote.label}")

    async def _ask_what_to_do(self, row: DatasetRow, remote: Remote) -> str:
        from odf_tui.features.sharing.controller import SHOWN, divergence_lines
        from odf_tui.widgets.dialogs import DecisionDialog

        branches = await asyncio.to_thread(self.source.branches, row.id, remote.common, SHOWN)
        lines = divergence_lines(row, remote, branches, self._made_of(row), writable=remote.writable)
        answers = [_THEIRS, *([_OURS] if remote.writable else []), _BOTH, _AGAIN, _LEAVE]
        return await self.app.push_screen_wait(DecisionDialog("Two histories", lines, answers)) or "leave"

    def _made_of(self, row: DatasetRow) -> list[str]:
        return [each.name for each in self.rows if row.id in each.inputs and each.last_pulled]

    async def _catch_up(self, row: DatasetRow, remote: Remote) -> None:
        """Takes what only the other place has; it need not be where the dataset comes from."""
        from odf_tui.features.sharing.controller import blocks
        from odf_tui.widgets.dialogs import ConfirmDialog

        remarks = (f"The two did not go apart: {remote.label}", "just has more.")
        question = ConfirmDialog(f"Pull {blocks(remote.theirs)} into {row.name}?", *remarks)
        if await self.app.push_screen_wait(question):
            self.submit([(Pull(dataset=row.id, url=remote.url), row.name)], f", from {remote.label}")

    async def _take_theirs(self, row: DatasetRow, remote: Remote) -> None:
        from odf_tui.features.sharing.controller import blocks, leaves_text
        from odf_tui.widgets.dialogs import ConfirmDialog

        remarks = [
            f"{blocks(remote.ours)} of ours {leaves_text(remote.ours)} the chain.",
            "They stay as refs/before-… in its folder.",
        ]
        question = ConfirmDialog(f"Take the history of {remote.label}?", *remarks)
        if await self.app.push_screen_wait(question):
            self._force_pull(row, remote)

    def _force_pull(self, row: DatasetRow, remote: Remote, remark: str = "") -> None:
        request = Pull(dataset=row.id, url=remote.url, force=True)
        self.submit([(request, row.name)], f", the history of {remote.label}{remark}")

    async def _push_ours(self, row: DatasetRow, remote: Remote) -> None:
        from odf_tui.widgets.dialogs import TypedConfirmation

        title, asks = f"Push over {remote.label}?", f"type {row.name} to push over it"
        if await self.app.push_screen_wait(
            TypedConfirmation(title, force_push_lines(row, remote), [row.name], asks)
        ):
            request = Push(dataset=row.id, url=remote.url, force=True)
            self.submit([(request, row.name)], f", over {remote.label}")
        else:
            self.notify_line(f"{remote.label} stays as it is", "warn")

    async def _keep_both(self, row: DatasetRow, remote: Remote) -> None:
        """Ours goes to another place; only when it is there, theirs is taken."""
        place = await self.ask_where_to(row, f"Keep our {row.name} at", without=remote.url)
        if place is None:
            return
        request = Push(dataset=row.id, url=place.url)
        await self.result_of(request, row.name, f"Pushing ours to {place.name}")
        if all(each.url != place.url for each in row.remotes):  # it stays there as it is
            await asyncio.to_thread(self.source.detach, row.id, place.url)
        self._force_pull(row, remote, f"; ours is kept at {place.name}")


def force_push_lines(row: DatasetRow, remote: Remote) -> list[list[Span]]:
    """What goes, what comes, and who has to know."""
    from odf_tui.features.sharing.controller import blocks

    return [
        [(" The history there is not the one of ", ""), (printable(row.name), "strong"), (" here.", "")],
        [],
        [("   goes   ", "bad"), (f"{blocks(remote.theirs)} that only {printable(remote.label)} has", "")],
        [("   comes  ", "good"), (f"{blocks(remote.ours)} that only we have", "")],
        [("   then   ", "warn"), ("everybody who pulled from there has diverged from it", "")],
    ]
