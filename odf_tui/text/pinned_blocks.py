"""The blocks that rows are read at as text."""

from __future__ import annotations

from collections.abc import Sequence

from odf_engine.api import PinnedVersion
from odf_engine.api.text import format_count, printable, short_hash


def pin_lines(pins: Sequence[PinnedVersion]) -> list[str]:
    """Describe the blocks that a query has read, one per line."""
    lines: list[str] = []
    for pin in pins:
        begin = "    " if lines else "from"
        older = ", older version" if pin.in_chain and not pin.head else ""
        block = f"block {pin.sequence_number}{history_text(pin)}, {pin.system_time}{older}"
        lines.append(printable(f"{begin} {pin.name}@{short_hash(pin.block)}  {block}"))
    return lines


def pins_text(pins: Sequence[PinnedVersion], max_names: int | None = None) -> str:
    """Describe the blocks that a query has read, in the notation of a query: ``from name@hash, …``.

    Of more than ``max_names`` blocks, the number of the others is shown.
    """
    names = [f"{pin.name}@{short_hash(pin.block)}{'' if pin.head else ' (older)'}" for pin in pins]
    more = f" +{len(names) - max_names}" if max_names is not None and len(names) > max_names else ""
    return printable(f"from {', '.join(names[:max_names])}{more}") if names else ""


def as_at_text(pin: PinnedVersion) -> str:
    """Describe the block that rows are read at."""
    return (
        f"as at {pin.system_time} · block {format_count(pin.sequence_number)} {pin.block}{history_text(pin)}"
    )


def history_text(pin: PinnedVersion) -> str:
    """Return the history that a block belongs to, such as `` of review``, or "" for the current chain."""
    return "" if pin.in_chain else f" of {printable(pin.history) or 'an earlier history'}"
