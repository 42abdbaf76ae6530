"""What datasets that somebody else wrote would run here: shown in full before it is allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from odf_engine.coordinator.protocol import Pull
from odf_tui.screens.base import Parts
from odf_tui.state.model import DatasetRow, TrustRequest, in_dependency_order
from odf_tui.text.format import printable
from odf_tui.text.remotes import pull_remotes

if TYPE_CHECKING:
    from odf_tui.text.format import Span

_DOES = 30


class Trusting(Parts):
    """The part of the workbench that asks before something of others runs."""

    def do_trust(self) -> None:
        """Shows what the dataset would run, and asks."""
        row = self.graph.row
        if row is not None:
            self.ask_for_trust(row)

    def do_untrust(self) -> None:
        """Takes it back."""
        row = self.graph.row
        if row is not None:
            self.start(self._untrust(row))

    def ask_for_trust(self, row: DatasetRow, *, pull: bool = False) -> None:
        """Asks whether a dataset may run what its sources say; pulls it then, if that was the reason."""
        self.start(self._ask(row, pull))

    async def _ask(self, row: DatasetRow, pull: bool) -> None:
        from odf_tui.widgets.dialogs import TypedConfirmation

        standing = await asyncio.to_thread(self.source.standing, row.id)
        words = ("yes", row.name)
        title = f"May {row.name} run this here?"
        asks = "type yes to allow exactly this"
        if not await self.app.push_screen_wait(
            TypedConfirmation(title, trust_request_lines(row, standing), words, asks)
        ):
            self.notify_line(f"{row.name} is not trusted: nothing of it ran", "warn")
            return
        await asyncio.to_thread(self.source.trust, row.id, standing)
        self.notify_line(f"{row.name} is trusted, until a block changes its source; U takes it back")
        self.reads.datasets()
        if pull:
            self.submit([(self.pull_of(row), row.name)], "; U takes the trust back")

    def pull_of(self, row: DatasetRow) -> Pull:
        """The request that pulls a dataset, after those that it is made from, or from elsewhere."""
        if known := pull_remotes(row.remotes):
            return Pull(dataset=row.id, url=known[0].url)
        after = in_dependency_order(self.rows, [row.id])
        return Pull(dataset=row.id, after=[each for each in after if each != row.id])

    async def _untrust(self, row: DatasetRow) -> None:
        await asyncio.to_thread(self.source.untrust, row.id)
        self.notify_line(f"{row.name} is not trusted any more")
        self.reads.datasets()


def trust_request_lines(row: DatasetRow, standing: TrustRequest) -> Sequence[Sequence[Span]]:
    """Who wrote a dataset, and everything that would run."""
    whence = f"came from {printable(standing.origin)}" if standing.origin else "was written by somebody else"
    lines: list[list[Span]] = [[(f" {printable(row.name)}", "strong"), (f" {whence}", "")]]
    if standing.before:
        lines.append([(" It was trusted before; then a block changed its source.", "warn")])
    block = ""
    for run in standing.runs:
        if run.block != block:
            block = run.block
            lines += [[], [(" As block ", "muted"), (f"…{block[-8:]}", "muted"), (" says, it", "muted")]]
        for at, text in enumerate(run.text.splitlines() or [""]):
            does = run.does if not at else ""
            lines.append([(f"   {does:<{_DOES}} ", "muted"), (printable(text), "strong")])
    return lines
