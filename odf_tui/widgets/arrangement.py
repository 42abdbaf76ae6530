"""Which columns of a table are shown, in what order, and which of them stay in sight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Arrangement:
    """Columns by their numbers; the reader's choice is plain data, see :meth:`choice`.

    Attributes:
        order: all columns, hidden ones too.
        hidden: those that are not shown.
        frozen: how many of ``order``, from its start, stay in sight.
    """

    def __init__(self, names: Sequence[str], fixed: int, choice: Mapping[str, Any] | None = None) -> None:
        self._names = list(names)
        self._fixed = fixed
        self.reset()
        if choice:
            self._take(choice)

    def reset(self) -> None:
        """All columns as they are stored."""
        self.order = list(range(len(self._names)))
        self.hidden: set[int] = set()
        self.frozen = self._fixed

    def _take(self, choice: Mapping[str, Any]) -> None:
        at = {name: number for number, name in enumerate(self._names)}
        first = [at[name] for name in choice.get("order", ()) if name in at]
        # Columns that came since stand at the end.
        self.order = list(dict.fromkeys([*first, *self.order]))
        self.hidden = {at[name] for name in choice.get("hidden", ()) if name in at}
        if len(self.hidden) == len(self.order):
            self.hidden = set()
        until = choice.get("frozen")
        if until is not None:
            self.frozen = self.order.index(at[until]) + 1 if until in at else 0

    def choice(self) -> dict[str, Any]:
        """What the reader has changed, by names of columns; empty: nothing."""
        found: dict[str, Any] = {}
        if self.order != list(range(len(self._names))):
            found["order"] = [self._names[column] for column in self.order]
        if self.hidden:
            found["hidden"] = [self._names[column] for column in self.order if column in self.hidden]
        if self.frozen != self._fixed or ("order" in found and self.frozen):
            found["frozen"] = self._names[self.order[self.frozen - 1]] if self.frozen else ""
        return found

    @property
    def still(self) -> list[int]:
        """The columns that are shown and stay in sight."""
        return [column for column in self.order[: self.frozen] if column not in self.hidden]

    @property
    def moving(self) -> list[int]:
        """The columns that are shown and can go out of sight."""
        return [column for column in self.order[self.frozen :] if column not in self.hidden]

    @property
    def shown(self) -> list[int]:
        """All columns that are shown."""
        return self.still + self.moving

    def toggle(self, column: int) -> bool:
        """Hides a column or shows it again; False when it is the last one that is shown."""
        if column in self.hidden:
            self.hidden.discard(column)
        elif len(self.shown) > 1:
            self.hidden.add(column)
        else:
            return False
        return True

    def move(self, column: int, by: int) -> None:
        """Moves a column among the others."""
        at = self.order.index(column)
        to = max(0, min(at + by, len(self.order) - 1))
        self.order.insert(to, self.order.pop(at))

    def freeze(self, column: int) -> bool:
        """Keeps the columns up to this one in sight; a second time lets go. Whether it keeps them."""
        wanted = self.order.index(column) + 1
        if wanted != self.frozen:
            self.frozen = wanted
        else:
            self.frozen = self._fixed if wanted != self._fixed else 0
        return self.frozen == wanted
