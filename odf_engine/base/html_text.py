"""Small HTML tables for notebooks. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from odf_engine.base.terminal_text import escape_controls


def text_html(value: object) -> str:
    """Return a value as HTML text, or "" for None. A list is its length."""
    from html import escape  # deferred: only notebooks need it

    if value is None:
        return ""
    if isinstance(value, list | tuple):
        value = len(value)
    return escape(escape_controls(f"{value:,}" if type(value) is int else str(value)))


def table_html(head: Sequence[str], rows: Iterable[Sequence[object]], title: str = "", note: str = "") -> str:
    """Return a table with a title above and a note below."""
    cells = "".join(f"<th>{text_html(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{text_html(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    start = f"<p>{text_html(title)}</p>" if title else ""
    end = f"<p>… {text_html(note)}</p>" if note else ""
    return f"{start}<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>{end}"


def fields_html(fields: Iterable[tuple[str, object]], title: str = "") -> str:
    """Return names and values as a table; fields without a value are left out."""
    rows = "".join(
        f"<tr><th>{text_html(name)}</th><td>{text_html(value)}</td></tr>"
        for name, value in fields
        if value not in (None, "", [])
    )
    start = f"<p>{text_html(title)}</p>" if title else ""
    return f"{start}<table><tbody>{rows}</tbody></table>"
