"""Choosing kinds of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from odf_tui.humane import clip, count
from odf_tui.screens.dialogs import Dialog
from odf_tui.widgets.lines import LineView, Span, right


class _Kinds(LineView):
    """The kinds, those that are chosen with a mark."""

    def __init__(self, kinds: Mapping[str, int], chosen: Sequence[str]) -> None:
        super().__init__(id="choices")
        self.kinds = list(kinds.items())
        self.chosen = {kind for kind in chosen if kind in kinds}
        self.active = True

    def on_mount(self) -> None:
        """Shows them."""
        self.reset()

    def count(self) -> int:
        """How many."""
        return len(self.kinds)

    def spans(self, index: int) -> Sequence[Span]:
        """A mark, the kind, how many there are."""
        kind, number = self.kinds[index]
        mark = "✓" if kind in self.chosen else " "
        return [(f" {mark} ", "good"), (clip(kind, 24), ""), (right(count(number), 12), "muted")]

    def toggle(self) -> None:
        """Chooses the kind under the cursor, or takes that back."""
        self.chosen ^= {self.kinds[self.cursor][0]}
        self.refresh_line(self.cursor)


class KindsPicker(Dialog[tuple[str, ...]]):
    """Chooses some of the kinds of events; ends with them, or with none for all.

    Args:
        kinds: how many blocks there are of each.
        chosen: those that are shown now.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,x", "choose", "choose this one too, or not", show=False),
        Binding("enter", "apply", "show those that are chosen, or this one alone", show=False),
        Binding("a", "all", "show all", show=False),
        Binding("j,down", "move('down')", show=False),
        Binding("k,up", "move('above')", show=False),
        Binding("g,home", "move('first')", show=False),
        Binding("G,end", "move('last')", show=False),
        Binding("escape,q", "dismiss(None)", "close", show=False),
    ]

    def __init__(self, kinds: Mapping[str, int], chosen: Sequence[str]) -> None:
        super().__init__()
        self._list = _Kinds(kinds, chosen)

    def compose(self) -> ComposeResult:
        """The kinds."""
        with Vertical(classes="dialog question") as box:
            box.border_title = Content("Kinds of events")
            box.border_subtitle = Content("space chooses · ⏎ shows · a all · esc closes")
            yield self._list

    def on_line_view_opened(self, event: events.Event) -> None:
        """Clicked twice."""
        event.stop()
        self.action_apply()

    def action_choose(self) -> None:
        """Chooses, and goes on to the next."""
        self._list.toggle()
        self._list.move("down")

    def action_all(self) -> None:
        """All kinds."""
        self.dismiss(())

    def action_apply(self) -> None:
        """Those that are chosen."""
        names = [kind for kind, _ in self._list.kinds]
        chosen = [kind for kind in names if kind in self._list.chosen] or [names[self._list.cursor]]
        self.dismiss(() if len(chosen) == len(names) else tuple(chosen))

    def action_move(self, move: str) -> None:
        """Moves the cursor."""
        self._list.move(move)
