"""Push, compare, settle diverged histories, manage repositories, pull from an address."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import quote

from odf_engine.errors import NotFound, OdfError, UsageError
from odf_engine.identity.names import DatasetAliasRemote, DatasetUrl, is_valid_name, parse_ref_remote
from odf_engine.net.urls import dataset_name_from_url, normalize_url
from odf_tui.gateway.protocol import DivergedBranches, NamedUrl
from odf_tui.state.model import BlockSummary, DatasetRow
from odf_tui.text.format import Span, ellipsize_middle, error_with_hint, format_count, format_time, printable
from odf_tui.text.remotes import Remote, is_writable


def resolve_address(text: str, repositories: Sequence[NamedUrl]) -> NamedUrl:
    """The dataset that a URL or ``repository/name`` means; its name is empty where the URL says none.

    Raises:
        OdfError: it is neither, or there is no such repository.
    """
    ref = parse_ref_remote(text)
    if isinstance(ref, DatasetUrl):
        url = normalize_url(ref.url)
        try:
            return NamedUrl(dataset_name_from_url(url), url)
        except UsageError:
            return NamedUrl("", url)
    if isinstance(ref, DatasetAliasRemote):
        for each in repositories:
            if each.name.lower() == ref.repo.lower():
                return NamedUrl(ref.name, address_in_repository(each, str(ref.alias)).url)
        raise NotFound(f"there is no repository '{ref.repo}'")
    raise UsageError("elsewhere a dataset is found by name", hint="repository/name, or its URL")


def address_in_repository(repository: NamedUrl, dataset: str) -> NamedUrl:
    """Where a dataset is, or would be, in a repository; its name is ``repository/name``."""
    return NamedUrl(f"{repository.name}/{dataset}", f"{repository.url}{quote(dataset)}/")


def address_validator(repositories: Sequence[NamedUrl], *, to_push: bool) -> Callable[[str], str]:
    """What is wrong with an address that was typed."""

    def check(text: str) -> str:
        try:
            url = resolve_address(text, repositories).url
        except OdfError as error:
            return error_with_hint(error)
        if to_push and not is_writable(url):
            return "there one can only read: file:, s3:, odf+https: or odf+http: can be pushed to"
        return ""

    return check


def repository_check(text: str) -> str:
    """What is wrong with the URL of a repository."""
    try:
        normalize_url(text)
    except OdfError as error:
        return error_with_hint(error)
    return ""


def repository_name_check(repositories: Sequence[NamedUrl]) -> Callable[[str], str]:
    """What is wrong with the name of a new repository."""
    taken = {each.name.lower() for each in repositories}

    def check(text: str) -> str:
        if not is_valid_name(text):
            return "a name has letters, digits, dots and dashes"
        return f"there is a repository {text} already" if text.lower() in taken else ""

    return check


SHOWN: Final = 6
"""Blocks of ours that are drawn one by one."""
_HASH: Final = 8
_WHAT: Final = 20
_LABEL: Final = 36
Lines = list[list[Span]]


def blocks(number: int) -> str:
    """A number of blocks in words."""
    return f"{format_count(number)} {'block' if number == 1 else 'blocks'}"


def leaves_text(number: int) -> str:
    """What so many blocks do."""
    return "leaves" if number == 1 else "leave"


def divergence_lines(
    row: DatasetRow, remote: Remote, branches: DivergedBranches, below: Sequence[str] = (), *, writable: bool
) -> Lines:
    """What happened, the drawing, and what can be done about it.

    Args:
        below: names of datasets that are made of this one.
        writable: whether ours can be pushed over theirs.
    """
    label = printable(ellipsize_middle(remote.label, _LABEL))
    seen = f", looked at {format_time(remote.at)}" if remote.at else ""
    name: Span = (f" {printable(row.name)}", "strong")
    title: list[Span] = [name, (" and ", ""), (label, "strong"), (" went apart", ""), (seen, "muted")]
    lines: Lines = [title, [], *_drawing(remote, branches), []]
    goes = f"{blocks(remote.ours)} of ours {leaves_text(remote.ours)}"
    lines.append([(" t  ", "key"), (f"take theirs: {goes} the chain, kept as refs/before-…", "")])
    if below:
        names = printable(ellipsize_middle(", ".join(below), _LABEL))
        lines.append([("    ", ""), (f"then {names} may have to be made anew", "warn")])
    if writable:
        goes = f"{blocks(remote.theirs)} of theirs {leaves_text(remote.theirs)}"
        lines.append([(" o  ", "key"), (f"push ours: {goes} the chain there, for everybody", "")])
    lines.append([(" b  ", "key"), ("keep both: ours goes to another place first, then theirs is taken", "")])
    lines.append([("esc ", "key"), ("leave it: nothing changes, and neither can be brought up to date", "")])
    return lines


def _drawing(remote: Remote, branches: DivergedBranches) -> Lines:
    """Our blocks, their head and how many lie below it, and where they part."""
    lines: Lines = []
    for at, line in enumerate(branches.ours):
        head = "  ours" if not at else ""
        lines.append([(" ● ", "good"), *_block(line), (head, "muted")])
    if branches.more:
        lines.append([(" ┊ ", "good"), (f"   {format_count(branches.more)} more of ours", "muted")])
    their_head = f"…{remote.their_head[-_HASH:]}" if remote.their_head else "?"
    number = "" if branches.common is None else format_count(branches.common.sequence_number + remote.theirs)
    lines.append(
        [(" │ ", "good"), ("○ ", "warn"), (f"{number:>5}  ", "strong"), (f"{their_head}  theirs", "muted")]
    )
    if remote.theirs > 1:
        more = f"       {format_count(remote.theirs - 1)} more of theirs, not here yet"
        lines.append([(" │ ", "good"), ("┊ ", "warn"), (more, "muted")])
    lines.append([(" ├─", "good"), ("╯", "warn")])
    if branches.common is None:
        lines.append([(" ? ", "muted"), ("the block that both have is not here any more", "muted")])
    else:
        lines.append([(" ● ", "strong"), *_block(branches.common), ("  both", "muted")])
        if branches.common.sequence_number:
            lines.append([(" ┊ ", "muted")])
    return lines


def _block(line: BlockSummary) -> list[Span]:
    what = (
        f"+{format_count(line.rows)} rows"
        if line.rows is not None
        else ellipsize_middle(printable(line.summary), _WHAT)
    )
    return [
        (f"{format_count(line.sequence_number):>5}  ", "strong"),
        (f"{printable(line.event):<16} ", ""),
        (f"{what}  ", ""),
        (format_time(line.time), "muted"),
    ]
