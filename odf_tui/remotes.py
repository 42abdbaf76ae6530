"""Where a dataset comes from and goes to, in marks and words. Pure functions; nothing here asks anybody."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from odf_tui.humane import count, moment, short_count, shorten

Standing = Literal["", "equal", "ahead", "behind", "diverged", "new"]

FROM: Final = "⇣"
TO: Final = "⇡"
DIVERGED: Final = "÷"
WRITABLE: Final = ("file", "s3", "s3+http", "s3+https", "odf+http", "odf+https")
"""Schemes of addresses that can be pushed to."""

_LABEL: Final = 40


class Remote(msgspec.Struct, frozen=True, kw_only=True):
    """A remote of a dataset, and how the two stood when that was looked at last.

    What only we have is as of now: our own chain is at hand.

    Attributes:
        label: how it is called: ``repository/name``, else its URL.
        pull, push: whether the dataset comes from there, and goes there.
        relation: as ``odf_engine.sync.history.Relation`` says it; empty: it is not known.
        ours, theirs: how many blocks only the one side has.
        common, their_head: the newest block of both, and the head there, as text.
        at: when it was looked at, RFC 3339; empty: never.
    """

    url: str
    label: str
    pull: bool = False
    push: bool = False
    relation: Standing = ""
    ours: int = 0
    theirs: int = 0
    common: str = ""
    their_head: str = ""
    at: str = ""

    @property
    def writable(self) -> bool:
        """Whether one can push there at all."""
        return is_writable(self.url)


def is_writable(url: str) -> bool:
    """Whether one can push to an address at all."""
    return urlsplit(url).scheme.lower() in WRITABLE


def sources(remotes: Iterable[Remote]) -> list[Remote]:
    """Those that the dataset comes from."""
    return [each for each in remotes if each.pull]


def targets(remotes: Iterable[Remote]) -> list[Remote]:
    """Those that it goes to."""
    return [each for each in remotes if each.push]


def diverged(remotes: Iterable[Remote]) -> list[Remote]:
    """Those that have another history than the dataset here."""
    return [each for each in remotes if each.relation == "diverged"]


def to_pull(remotes: Iterable[Remote]) -> int:
    """The most blocks that a remote has and we do not."""
    return max((each.theirs for each in remotes if each.relation in ("behind", "diverged")), default=0)


def to_push(remotes: Iterable[Remote]) -> int:
    """The most blocks that a place where the dataset goes to does not have."""
    known = ("ahead", "diverged", "new")
    return max((each.ours for each in targets(remotes) if each.relation in known), default=0)


def mark(remotes: Sequence[Remote]) -> str:
    """A few cells for the graph: ``⇣3`` three blocks to pull, ``⇡2`` two to push, ``÷`` diverged."""
    theirs, ours = to_pull(remotes), to_push(remotes)
    text = DIVERGED if diverged(remotes) else ""
    if theirs or sources(remotes):
        text += FROM + (short_count(theirs) if theirs else "")
    if targets(remotes):
        text += TO + (short_count(ours) if ours else "")
    return text


def style(remotes: Sequence[Remote]) -> str:
    """The name of the mark's style."""
    if diverged(remotes):
        return "bad"
    return "warn" if to_pull(remotes) or to_push(remotes) else "muted"


def standing_words(remote: Remote) -> str:
    """How the dataset stands to a remote, such as ``3 behind``."""
    match remote.relation:
        case "equal":
            return "the same"
        case "ahead":
            return f"{count(remote.ours)} ahead"
        case "behind":
            return f"{count(remote.theirs)} behind"
        case "diverged":
            return f"diverged: {count(remote.ours)} here, {count(remote.theirs)} there"
        case "new":
            return "nothing is there yet"
        case _:
            return "changed here since" if remote.at else "not looked at yet"


def remote_words(remote: Remote) -> str:
    """All that the card says of a remote."""
    seen = f"looked at {moment(remote.at)}" if remote.at else "m looks"
    return f"{shorten(remote.label, _LABEL)} · {standing_words(remote)} · {seen}"


def direction(remote: Remote) -> str:
    """``from``, ``to`` or both."""
    return {(True, False): "from", (False, True): "to"}.get((remote.pull, remote.push), "from, to")


def words_to_filter(remotes: Sequence[Remote]) -> tuple[str, ...]:
    """What a filter finds a dataset by: ``from`` ``to`` ``behind`` ``ahead`` ``diverged`` ``none``, names."""
    if not remotes:
        return ("none",)
    found: list[str] = [mark for mark, some in (("from", sources), ("to", targets)) if some(remotes)]
    if to_pull(remotes):
        found.append("behind")
    if to_push(remotes):
        found.append("ahead")
    if diverged(remotes):
        found.append("diverged")
    return (*found, *(each.label.lower() for each in remotes))


def short_place(url: str) -> str:
    """An address in a few cells: its host, or its folder, and the dataset's name."""
    parts = urlsplit(url)
    names = [unquote(each) for each in parts.path.split("/") if each]
    if parts.hostname:
        return "/".join([parts.netloc.rpartition("@")[2], *names[-1:]])
    return "/".join(names[-2:]) or url
