"""Making a dataset anew whose input was reset or replaced: only after its name was typed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from odf_tui.screens.trusting import Trusting
from odf_tui.state.model import DatasetRow
from odf_tui.text.format import format_count, printable

if TYPE_CHECKING:
    from odf_tui.text.format import Span


class Resetting(Trusting):
    """The part of the workbench that lets datasets begin anew."""

    def do_begin_anew(self) -> None:
        """Asks, and pulls the dataset from the start of its inputs."""
        row = self.graph.row
        if row is not None:
            self.start(self._begin_anew(row))

    async def _begin_anew(self, row: DatasetRow) -> None:
        from odf_tui.widgets.dialogs import TypedConfirmation

        asks = f"type {row.name} to make it anew"
        below = [each.name for each in self.rows if row.id in each.inputs and each.last_pulled]
        if await self.app.push_screen_wait(
            TypedConfirmation(f"Make {row.name} anew?", reset_lines(row, below), [row.name], asks)
        ):
            self.submit([(replace(self.pull_of(row), reset_on_divergence=True), row.name)], ", anew")
        else:
            self.notify_line(f"{row.name} stays as it is", "warn")


def reset_lines(row: DatasetRow, below: list[str]) -> list[list[Span]]:
    """Why, what goes, what stays, and what follows.

    Args:
        below: names of datasets that are made of this one.
    """
    lines: list[list[Span]] = [
        [(" It was made from another history of ", ""), (printable(", ".join(row.diverged)), "strong")],
        [(" than the one that is here: that was reset or replaced.", "")],
        [],
        [
            ("   goes   ", "bad"),
            (f"{format_count(row.records)} records in {format_count(row.blocks)} blocks", ""),
        ],
        [("   comes  ", "good"), ("the same query over all that its inputs have now", "")],
        [("   stays  ", "muted"), ("the old chain, as refs/before-reset-… in the dataset's folder", "")],
    ]
    if below:
        names = printable(", ".join(below))
        lines.append([("   then   ", "warn"), (f"the same has to be done with {names}", "")])
    return lines
