"""Citations of a version of a dataset, as text and as BibTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from odf_engine.chain.state import ChainState
from odf_engine.identity.multiformats import Multihash
from odf_engine.rows import PinnedVersion
from odf_engine.rows.as_at import at_version, resolve_as_at
from odf_engine.workspace.dataset_summary import DatasetEntry

CITATION_FILE: Final = "CITATION.cff"
"""The attachment with the authors and the title, in the Citation File Format."""
_MAX_CITATION_FILE: Final = 64 << 10
_MAX_AUTHORS: Final = 100
_APA_AUTHORS: Final = 20
_Loader: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LATEX: Final = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    **{character: "\\" + character for character in "{}$&#_%"},
}  # fmt: skip


class Author(msgspec.Struct, frozen=True):
    """An author, as the citation file of the dataset names it.

    Attributes:
        name: the complete name, or the name of an organization.
        family, given: the parts of the name of a person, or "".
        url: the ORCID or the web page, or "".
    """

    name: str
    family: str = ""
    given: str = ""
    url: str = ""

    @property
    def apa(self) -> str:
        """The name in APA style: ``Doe, J. R.``."""
        if not self.family or not self.given:
            return self.name
        initials = " ".join(f"{part[0].upper()}." for part in re.split(r"[\s-]+", self.given) if part)
        return f"{self.family}, {initials}"


class Citation(msgspec.Struct, frozen=True):
    """The citation of a version: the output of ``odf cite --json``.

    Attributes:
        name: the name of the dataset in the workspace.
        id: its id.
        title: the title of the citation file, by default the name.
        version: the tag of the block, or else its hash.
        block, sequence_number: the newest block of the version.
        published: system time of the block, RFC 3339.
        authors: the authors in the citation file.
        apa: the citation in APA style.
        bibtex: the citation as a BibTeX entry.
    """

    name: str
    id: str
    title: str
    version: str
    block: str
    sequence_number: int
    published: str
    authors: list[Author]
    apa: str
    bibtex: str


class CitedVersion(NamedTuple):
    """A version of a dataset.

    Attributes:
        entry: the dataset, with the chain that ends at the block of the version.
        state: the state at the block.
        tag: the name of a tag of the block, or "".
    """

    entry: DatasetEntry
    state: ChainState
    tag: str

    @property
    def name(self) -> str:
        """The name of the dataset in the workspace."""
        return str(self.entry.alias)

    def attachment(self, path: str) -> str | None:
        """Return the text of an attachment, or None if there is none."""
        items = self.state.attachments.items if self.state.attachments is not None else []
        return next((item.content for item in items if item.path == path), None)


def read_version(entry: DatasetEntry, at: str | None = None) -> CitedVersion:
    """Return a version of a dataset.

    Args:
        entry: the dataset.
        at: a block, a tag or a time, as in :func:`odf_engine.rows.as_at.resolve_as_at`; by default the head.

    Raises:
        NotFound, UsageError: there is no such version.
    """
    entry.dataset.refresh_branches()
    version = resolve_as_at(entry, at)
    block = Multihash.parse(version.block)
    pinned = pin(at_version(entry, version), block)
    return CitedVersion(pinned, pinned.dataset.state(), _find_tag(entry, version, at or ""))


def pin(entry: DatasetEntry, block: Multihash) -> DatasetEntry:
    """Return the dataset with the chain that ends at a block of its chain."""
    return msgspec.structs.replace(entry, dataset=entry.dataset.ending_at(block))


def _find_tag(entry: DatasetEntry, version: PinnedVersion, named: str) -> str:
    """Return the tag that the user named, or else the first tag of the block, or ""."""
    tags = entry.dataset.tag_names()
    named = named.strip().removeprefix("refs/")
    if named in tags or not tags:
        return named if tags else ""
    heads = ((name, entry.on_branch(name).dataset.head()) for name in tags)
    return next((name for name, head in heads if str(head) == version.block), "")


def cite(version: CitedVersion) -> Citation:
    """Return the citation of a version."""
    state = version.state
    fields = _read_citation_file(version.attachment(CITATION_FILE))
    title = _text(fields.get("title")) or version.name
    authors = list(_parse_authors(fields.get("authors")))
    moment = state.system_time.to_datetime()
    return Citation(
        name=version.name,
        id=str(state.dataset_id),
        title=title,
        version=version.tag or str(state.head),
        block=str(state.head),
        sequence_number=state.sequence_number,
        published=str(state.system_time),
        authors=authors,
        apa=_format_apa(version, title, authors, moment),
        bibtex=_format_bibtex(version, title, authors, moment),
    )


def _format_apa(version: CitedVersion, title: str, authors: Sequence[Author], moment: datetime) -> str:
    block = f"block {version.state.head}"
    label = f"Version {version.tag}, {block}" if version.tag else f"Version at {block}"
    work = f"{title} ({label}) [Data set]."
    date = f"({moment.year}, {moment:%B} {moment.day})."
    # Without authors, APA style puts the title first.
    heading = f"{_join_apa(authors)} {date} {work}" if authors else f"{work} {date}"
    return f"{heading} {version.state.dataset_id}"


def _join_apa(authors: Sequence[Author]) -> str:
    names = [author.apa for author in authors]
    if len(names) > _APA_AUTHORS:
        text = ", ".join(names[: _APA_AUTHORS - 1]) + f", . . . {names[-1]}"
    else:
        text = f"{', '.join(names[:-1])}, & {names[-1]}" if len(names) > 1 else names[0]
    return text if text.endswith(".") else f"{text}."


def _format_bibtex(version: CitedVersion, title: str, authors: Sequence[Author], moment: datetime) -> str:
    state = version.state
    names = [
        f"{_latex(author.family)}, {_latex(author.given)}"
        if author.family and author.given
        else f"{{{_latex(author.name)}}}"
        for author in authors
    ]
    fields = {
        "author": f"{{{' and '.join(names)}}}" if names else "",
        "title": f"{{{{{_latex(title)}}}}}",
        "year": f"{{{moment.year}}}",
        "month": f"{moment:%b}".lower(),
        "version": f"{{{_latex(version.tag or str(state.head))}}}",
        "howpublished": "{Data set}",
        "note": f"{{{_latex(str(state.dataset_id))}, block {state.head}}}",
    }
    key = re.sub(r"[^A-Za-z0-9]+", "-", version.name).strip("-")
    lines = ",\n".join(f"  {name} = {value}" for name, value in fields.items() if value)
    return f"@misc{{{key}-{state.head.abbreviated},\n{lines}\n}}"


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _read_citation_file(text: str | None) -> dict[Any, Any]:
    """Return the fields of a citation file, or {} if it is missing or cannot be read."""
    if text is None or len(text) > _MAX_CITATION_FILE:
        return {}
    try:
        fields = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _parse_authors(items: Any) -> Sequence[Author]:
    """Return the authors of a citation file. Entries without a name are skipped."""
    authors: list[Author] = []
    for item in items[:_MAX_AUTHORS] if isinstance(items, list) else ():
        fields = item if isinstance(item, dict) else {}
        family = " ".join(
            filter(None, [_text(fields.get("name-particle")), _text(fields.get("family-names"))])
        )
        given = _text(fields.get("given-names"))
        if name := _text(fields.get("name")) or f"{given} {family}".strip():
            url = _text(fields.get("orcid")) or _text(fields.get("website"))
            is_url = url.startswith(("https://", "http://"))
            authors.append(Author(name, family, given, url if is_url else ""))
    return authors


def _text(value: Any) -> str:
    """Return a text of a third-party file as one printable line, or "" for other values."""
    line = " ".join(value.split()) if isinstance(value, str) else ""
    return line if line.isprintable() else ""
