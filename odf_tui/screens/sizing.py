"""How large the panes are: shares of the screen that plus and minus change."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from odf_tui.actions.model import PANES
from odf_tui.screens.base import Parts
from odf_tui.state.saved_session import MIN_SHARE, PaneShares

STEP: Final = 5
USUAL: Final = PaneShares(left=60, upper=45, single=40)
"""What the style sheet says, in percent."""

_LEFT: Final = ("datasets", "data")
_UPPER: Final = ("datasets", "blocks")


def grown(shares: PaneShares, pane: str, by: int, *, single: bool) -> PaneShares:
    """The shares after a pane has grown by so many percent, as far as the others can be seen.

    Args:
        single: whether the panes stand in one column.
    """

    def moved(name: str, gains: bool) -> int:
        now = getattr(shares, name) or getattr(USUAL, name)
        return max(MIN_SHARE, min(now + (by if gains else -by), 100 - MIN_SHARE))

    if single:
        return replace(shares, single=moved("single", pane == PANES[0]))
    return replace(shares, left=moved("left", pane in _LEFT), upper=moved("upper", pane in _UPPER))


class Sizing(Parts):
    """The part of the workbench that makes panes larger and smaller.

    Attributes:
        shares: how the panes share the screen.
    """

    shares: PaneShares = PaneShares()
    _applied_sizes: tuple[str, str] = ("", "")

    @property
    def _shows_one_pane(self) -> bool:
        return self.has_class("-zoomed") or self.has_class("-low")

    def do_grow(self) -> None:
        """More room for the pane that has the keys."""
        self._share_out(STEP)

    def do_shrink(self) -> None:
        """Less room for it."""
        self._share_out(-STEP)

    def do_usual_sizes(self) -> None:
        """All panes as usual."""
        self.shares = PaneShares()
        self.arrange_panes()

    def _share_out(self, by: int) -> None:
        if self._shows_one_pane:
            self.notify_line("one pane is shown alone: there is nothing to share", "warn")
            return
        shares = grown(self.shares, self.pane, by, single=self.has_class("-narrow"))
        if shares == self.shares:
            self.notify_line(f"the pane is as {'large' if by > 0 else 'small'} as it can be", "warn")
            return
        self.shares = shares
        self.arrange_panes()

    def arrange_panes(self) -> None:
        """Gives the panes their shares, where several are shown."""
        columns = rows = ""
        if self.has_class("-narrow") and not self._shows_one_pane:
            rows = _tracks(self.shares.single)
        elif not self._shows_one_pane:
            columns, rows = _tracks(self.shares.left), _tracks(self.shares.upper)
        if (columns, rows) != self._applied_sizes:
            self._applied_sizes = (columns, rows)
            styles = self.query_one("#panes").styles
            styles.grid_columns = columns or None  # type: ignore[assignment] # None: as the style sheet says
            styles.grid_rows = rows or None  # type: ignore[assignment]
            self.call_after_refresh(self.make_room_for_card)
        super().arrange_panes()


def _tracks(share: int | None) -> str:
    return "" if share is None else f"{share}fr {100 - share}fr"
