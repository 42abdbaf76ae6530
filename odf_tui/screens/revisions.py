"""What a block changed of a query, source, schema or description."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from odf_tui.chain_state import Revision
from odf_tui.humane import plain
from odf_tui.screens.details import Text
from odf_tui.screens.dialogs import Reader

_STYLES: Final = {"+": "good", "-": "bad", "~": "warn"}


class RevisionReader(Reader):
    """Reads revisions; the older and the newer one of the same kind are a key away.

    Args:
        go: shows the revision of another block.
    """

    def __init__(
        self, title: str, revision: Revision, copy: Callable[[str], None], go: Callable[[int], None]
    ) -> None:
        super().__init__(title, revision_lines(revision), copy, self._go_by)
        self._revision, self._go = revision, go

    def open(self, title: str, revision: Revision) -> None:
        """Shows another revision."""
        self._revision = revision
        self.show(title, revision_lines(revision))

    def remarks(self) -> list[str]:
        """What the keys do, as far as there are others."""
        older = ["[ older"] if self._revision.older is not None else []
        return [*older, *(["] newer"] if self._revision.newer is not None else [])]

    def _go_by(self, by: int) -> None:
        other = self._revision.newer if by > 0 else self._revision.older
        if other is not None:
            self._go(other)


def revision_lines(revision: Revision) -> Text:
    """What is other, each line after its sign."""
    if revision.before is None:
        head = "the first of its kind: nothing was there before"
    else:
        head = f"block {revision.number} compared with block {revision.before}"
    lines: Text = [[(f" {head}", "muted")], []]
    lines += [
        [(f" {plain(line)}", _STYLES.get(line[:1], "" if line.strip() != "…" else "muted"))]
        for line in revision.lines
    ]
    return lines
