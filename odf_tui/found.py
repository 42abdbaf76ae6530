"""Datasets that were found in repositories, and how they stand to those that are here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from odf_engine.coordinator.results import FoundDataset, SearchResult
from odf_tui.humane import count, plain, shorten, size
from odf_tui.remotes import standing_words
from odf_tui.state import DatasetRow
from odf_tui.widgets.lines import Span

_HEAD: Final = 48


class Found(msgspec.Struct, frozen=True):
    """A dataset elsewhere, as its repository tells of it.

    Attributes:
        here: the one in this workspace that is the same.
        standing: how that stands to it, in a few words; empty: it is not here.
        words: what it is found by, in small letters.
    """

    name: str
    url: str
    repository: str = ""
    id: str = ""
    kind: str = ""
    head: str = ""
    blocks: int | None = None
    records: int | None = None
    size: int | None = None
    description: str = ""
    keywords: tuple[str, ...] = ()
    here: DatasetRow | None = None
    standing: str = ""
    words: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What a search found, and which repositories could not be asked: name and reason."""

    found: Sequence[Found] = ()
    problems: Sequence[tuple[str, str]] = ()


def answer_of(result: SearchResult, rows: Iterable[DatasetRow]) -> Answer:
    """Return what a search found. Datasets without a name or URL are left out.

    Args:
        result: the result of the search.
        rows: the datasets of the workspace.
    """
    by_id: dict[str, DatasetRow] = {}
    by_url: dict[str, DatasetRow] = {}
    by_head: dict[str, DatasetRow] = {}
    for row in rows:
        if not row.missing:
            by_id[row.id] = by_head[row.head] = row
            by_url.update((remote.url, row) for remote in row.remotes)
    found: list[Found] = []
    for dataset in result.datasets:
        if dataset.name and dataset.url:
            one = _found(dataset)
            same = by_id.get(one.id) or by_url.get(one.url) or by_head.get(one.head or "?")
            found.append(_with_ours(one, same))
    problems = [(each.repository or "?", each.message or "it cannot be asked") for each in result.problems]
    return Answer(found, problems)


def _found(dataset: FoundDataset) -> Found:
    words = (dataset.name, dataset.repository, dataset.id or "", dataset.description, *dataset.keywords)
    return Found(
        name=dataset.name,
        url=dataset.url,
        repository=dataset.repository,
        id=dataset.id or "",
        kind=dataset.kind or "",
        head=dataset.head or "",
        blocks=dataset.blocks,
        records=dataset.records,
        size=dataset.size,
        description=dataset.description,
        keywords=dataset.keywords,
        words=" ".join(words).lower(),
    )


def _with_ours(found: Found, row: DatasetRow | None) -> Found:
    if row is None:
        return found
    remote = next((each for each in row.remotes if each.url == found.url), None)
    if found.head and found.head == row.head:
        words = "here, the same"
    elif remote is not None and remote.relation and remote.their_head == found.head:
        words = "here, " + ("diverged" if remote.relation == "diverged" else standing_words(remote))
    elif found.head and found.blocks is not None and found.blocks > row.blocks:
        words = f"here, {count(found.blocks - row.blocks)} blocks less"
    elif found.head:
        words = "here, another head"
    else:
        words = "here"
    return msgspec.structs.replace(found, here=row, standing=words)


def fitting(found: Sequence[Found], text: str) -> list[Found]:
    """Those that have all of some words in them."""
    wanted = text.lower().split()
    return [each for each in found if all(word in each.words for word in wanted)]


def about(found: Found) -> list[list[Span]]:
    """What there is to say of one: some lines, the most important first."""
    facts = [
        found.kind.lower(),
        "" if found.records is None else f"{count(found.records)} rows",
        "" if found.size is None else size(found.size),
        "" if found.blocks is None else f"{count(found.blocks)} blocks",
    ]
    told = plain(" · ".join(filter(None, facts)))
    lines: list[list[Span]] = []
    if told or found.here is not None:
        as_name = "" if found.here is None else f"{found.standing}, as {plain(found.here.name)}"
        lines.append([(" ", ""), (told + ("  " if told and as_name else ""), ""), (as_name, "good")])
    if found.description:
        lines.append([(" ", ""), (plain(found.description.partition("\n")[0]), "")])
    if found.keywords:
        lines.append([(" ", ""), (plain(", ".join(found.keywords)), "muted")])
    lines.append([(" at    ", "muted"), (plain(found.url), "")])
    if found.head:
        lines.append([(" head  ", "muted"), (plain(shorten(found.head, _HEAD)), "muted")])
    return lines
