"""Two histories that went apart, drawn as git would: ours above, theirs beside, what both have below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from odf_tui.humane import count, moment, plain, shorten
from odf_tui.remotes import Remote
from odf_tui.share_source import Branches
from odf_tui.state import BlockLine, DatasetRow
from odf_tui.widgets.lines import Span

SHOWN: Final = 6
"""Blocks of ours that are drawn one by one."""
_HASH: Final = 8
_WHAT: Final = 20
_LABEL: Final = 36

Lines = list[list[Span]]


def blocks(number: int) -> str:
    """A number of blocks in words."""
    return f"{count(number)} {'block' if number == 1 else 'blocks'}"


def leave(number: int) -> str:
    """What so many blocks do."""
    return "leaves" if number == 1 else "leave"


def divergence_lines(
    row: DatasetRow, remote: Remote, branches: Branches, below: Sequence[str] = (), *, writable: bool
) -> Lines:
    """What happened, the drawing, and what can be done about it.

    Args:
        below: names of datasets that are made of this one.
        writable: whether ours can be pushed over theirs.
    """
    label = plain(shorten(remote.label, _LABEL))
    seen = f", looked at {moment(remote.at)}" if remote.at else ""
    name: Span = (f" {plain(row.name)}", "strong")
    title: list[Span] = [name, (" and ", ""), (label, "strong"), (" went apart", ""), (seen, "muted")]
    lines: Lines = [title, [], *_drawing(remote, branches), []]
    goes = f"{blocks(remote.ours)} of ours {leave(remote.ours)}"
    lines.append([(" t  ", "key"), (f"take theirs: {goes} the chain, kept as refs/before-…", "")])
    if below:
        names = plain(shorten(", ".join(below), _LABEL))
        lines.append([("    ", ""), (f"then {names} may have to be made anew", "warn")])
    if writable:
        goes = f"{blocks(remote.theirs)} of theirs {leave(remote.theirs)}"
        lines.append([(" o  ", "key"), (f"push ours: {goes} the chain there, for everybody", "")])
    lines.append([(" b  ", "key"), ("keep both: ours goes to another place first, then theirs is taken", "")])
    lines.append([("esc ", "key"), ("leave it: nothing changes, and neither can be brought up to date", "")])
    return lines


def _drawing(remote: Remote, branches: Branches) -> Lines:
    """Our blocks, their head and how many lie below it, and where they part."""
    lines: Lines = []
    for at, line in enumerate(branches.ours):
        head = "  ours" if not at else ""
        lines.append([(" ● ", "good"), *_block(line), (head, "muted")])
    if branches.more:
        lines.append([(" ┊ ", "good"), (f"   {count(branches.more)} more of ours", "muted")])
    their_head = f"…{remote.their_head[-_HASH:]}" if remote.their_head else "?"
    number = "" if branches.common is None else count(branches.common.sequence_number + remote.theirs)
    lines.append(
        [(" │ ", "good"), ("○ ", "warn"), (f"{number:>5}  ", "strong"), (f"{their_head}  theirs", "muted")]
    )
    if remote.theirs > 1:
        more = f"       {count(remote.theirs - 1)} more of theirs, not here yet"
        lines.append([(" │ ", "good"), ("┊ ", "warn"), (more, "muted")])
    lines.append([(" ├─", "good"), ("╯", "warn")])
    if branches.common is None:
        lines.append([(" ? ", "muted"), ("the block that both have is not here any more", "muted")])
    else:
        lines.append([(" ● ", "strong"), *_block(branches.common), ("  both", "muted")])
        if branches.common.sequence_number:
            lines.append([(" ┊ ", "muted")])
    return lines


def _block(line: BlockLine) -> list[Span]:
    what = f"+{count(line.rows)} rows" if line.rows is not None else shorten(plain(line.summary), _WHAT)
    return [
        (f"{count(line.sequence_number):>5}  ", "strong"),
        (f"{plain(line.event):<16} ", ""),
        (f"{what}  ", ""),
        (moment(line.time), "muted"),
    ]
