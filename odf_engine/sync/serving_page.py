"""What ``odf serve`` tells of its datasets: a page for people, the same as JSON for programs."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from typing import Final
from urllib.parse import quote

import msgspec

from odf_engine.errors import OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.sync.serving import Serving
from odf_engine.workspace.summary import Summary

_FRESH_SECONDS: Final = 1.0
_MOST_SHOWN: Final = 1000
_STYLE: Final = (
    ":root{color-scheme:light dark}"
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "h1{font-size:1.5rem}h2{font-size:1.15rem;margin:0}"
    "article{border-top:1px solid;padding:1rem 0}p{margin:.3rem 0}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:.5rem 0}dd{margin:0}"
    "code,dd.hash{font-family:ui-monospace,monospace;overflow-wrap:anywhere}"
)
POLICY: Final = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    f"style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'"
)
"""The Content-Security-Policy of the page."""

# Control characters, and what turns the direction of text, so that it reads otherwise than it is.
_REMOVED: Final = {
    **dict.fromkeys((*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), *range(0x7F, 0xA0)), "\ufffd"),
    **dict.fromkeys((0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd"),
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset as it is listed; ``size`` in bytes of data, ``watermark`` RFC 3339, ``damaged`` when it
    cannot be read, and the numbers say nothing."""

    name: str
    id: str
    kind: str
    head: str | None
    blocks: int
    records: int
    size: int
    watermark: str | None
    description: str
    keywords: tuple[str, ...]
    damaged: bool


class Listing:
    """The datasets that are served, looked at again once a second at most; from one thread at a time."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._rows: list[Row] = []
        self._until = 0.0
        self._known: dict[DatasetId, tuple[Summary, Row]] = {}

    def rows(self) -> list[Row]:
        """All of them, by name."""
        if time.monotonic() >= self._until:
            entries = self._serving.datasets()
            summaries = self._serving.workspace.summaries(entries)
            known, self._known = self._known, {}
            for entry, summary in zip(entries, summaries, strict=True):
                old = known.get(entry.id)
                fresh = old if old is not None and old[0] == summary else (summary, self._row(summary))
                self._known[entry.id] = fresh
            self._rows = [row for _, row in self._known.values()]
            self._until = time.monotonic() + _FRESH_SECONDS
        return self._rows

    def _row(self, summary: Summary) -> Row:
        description, keywords = "", ()
        if summary.head is not None:
            try:
                state = self._serving.workspace.index.state(summary.head)
                if state is not None and state.info is not None:
                    description, keywords = state.info.description or "", tuple(state.info.keywords or ())
            except OdfError:
                pass
        return Row(
            name=summary.name,
            id=str(summary.id),
            kind=summary.kind.name,
            head=None if summary.head is None else str(summary.head),
            blocks=summary.blocks,
            records=summary.records,
            size=summary.size,
            watermark=None if summary.watermark is None else str(summary.watermark),
            description=description,
            keywords=keywords,
            damaged=summary.problem is not None,
        )


def as_json(rows: Sequence[Row]) -> bytes:
    """The list for programs."""
    return msgspec.json.encode({"datasets": rows})


def as_page(rows: Sequence[Row], base: str, single: bool = False) -> str:
    """The page for people.

    Args:
        rows: what is on it.
        base: the address of the server, with a slash at its end.
        single: whether it is the page of one dataset.
    """
    title = _text(rows[0].name) if single else "Datasets"
    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>',
        f"{title} – Open Data Fabric</title>",
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<style>{_STYLE}</style></head><body><header><h1>",
        f'<a href="{_text(base)}">Datasets</a> / {title}' if single else title,
        "</h1></header><main>",
    ]
    if not single:
        number = len(rows)
        parts.append(f"<p>{number:,} dataset{'' if number == 1 else 's'} of Open Data Fabric</p>")
    parts += [_article(row, base) for row in rows[:_MOST_SHOWN]]
    if len(rows) > _MOST_SHOWN:
        parts.append(f"<p>and {len(rows) - _MOST_SHOWN:,} more; as JSON there are all of them</p>")
    parts.append("</main></body></html>\n")
    return "".join(parts)


def _article(row: Row, base: str) -> str:
    place = f"{base}{quote(row.name)}/"
    facts = [
        ("kind", row.kind.lower(), ""),
        ("rows", f"{row.records:,}", ""),
        ("size", _size(row.size), ""),
        ("blocks", f"{row.blocks:,}", ""),
        ("watermark", row.watermark or "none", ""),
        ("keywords", ", ".join(row.keywords), ""),
        ("head", row.head or "none yet", "hash"),
        ("id", row.id, "hash"),
    ]
    told = "".join(
        f"<dt>{name}</dt><dd{f' class={mark}' if mark else ''}><bdi>{_text(value)}</bdi></dd>"
        for name, value, mark in facts
        if value
    )
    damaged = "<p><strong>This dataset is damaged.</strong></p>" if row.damaged else ""
    about = f'<p dir="auto">{_text(row.description)}</p>' if row.description else ""
    return (
        f'<article><h2><a href="{_text(place)}">{_text(row.name)}</a></h2>{about}{damaged}<dl>{told}</dl>'
        f"<p>To have it: <code>odf pull odf+{_text(place)}</code></p></article>"
    )


def _text(value: str) -> str:
    return escape(value.translate(_REMOVED))


def _size(number: int) -> str:
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.95:
            return f"{number} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
