"""Numbers, times and untrusted text as readers of documents see them; facts and sections.

Times are shown in the time zone of the setting ``ui.timezone``, which :func:`set_timezone` stores here.
"""

from __future__ import annotations

from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Final

import msgspec

from odf_engine.base.progress import size_of
from odf_engine.metadata.timestamp import Timestamp

if TYPE_CHECKING:
    import pyarrow as pa

# Control characters would control the terminal, and direction overrides would reorder text. C0 characters
# have pictures in Unicode (U+2400 and following); the others become a replacement character.
_VISIBLE: Final = {
    **{code: 0x2400 + code for code in range(0x20)},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),  # lone surrogates: no terminal can encode them
    **dict.fromkeys((0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),
}
_HASH_PREFIX: Final = "f1620"  # base16, SHA3-256, 32 bytes  # base16, SHA3-256, 32 bytes

_zone: tzinfo | None = UTC  # None: the time zone of the system
_zone_label = "UTC"
_TYPE_WORDS: Final = (
    ("timestamp[ms, tz=UTC]", "timestamp"), ("date32[day]", "date"), ("decimal128", "decimal"),
    ("list<item: ", "list<"), ("list<element: ", "list<"),
)  # fmt: skip


class QueryText(str):
    """The text of a query. Pages of facts highlight it."""


Fact = tuple[str, str]
"""A name and a value. The value may have several lines, or be a query (:class:`QueryText`)."""


class Section(msgspec.Struct, frozen=True):
    """Facts under a title."""

    title: str
    facts: tuple[Fact, ...]


def printable(text: str) -> str:
    """Replace control characters, line breaks and direction overrides by visible characters."""
    return text if text.isascii() and text.isprintable() else text.translate(_VISIBLE)


def format_count(number: int | None) -> str:
    """Return a number with thousands separators, such as ``12 480``, or "" for None."""
    return "" if number is None else f"{number:,}".replace(",", " ")


def count_of(number: int, noun: str, *, separators: bool = True) -> str:
    """Return a number of things, such as ``1 block`` or ``1 200 blocks``.

    Args:
        noun: the noun in the singular; its plural is formed with ``s``.
        separators: whether thousands are separated.
    """
    return f"{format_count(number) if separators else number} {noun}{'' if number == 1 else 's'}"


def format_bytes(number: int | None) -> str:
    """Return a number of bytes in decimal units, such as ``1.2 MB``, or "" for None."""
    return "" if number is None else size_of(number)


def set_timezone(name: str) -> None:
    """Set the time zone of times: ``UTC``, ``local``, or a name such as ``Europe/Berlin``."""
    global _zone, _zone_label
    if name == "UTC":
        _zone = UTC
    elif name == "local":
        _zone = None
    else:
        from zoneinfo import ZoneInfo  # deferred: most users do not need it

        _zone = ZoneInfo(name)
    _zone_label = name.rpartition("/")[2].replace("_", " ")


def zone_label() -> str:
    """Return the short name of the time zone, for headings: ``UTC``, ``local`` or ``Berlin``."""
    return _zone_label


def _in_zone(moment: Timestamp | str) -> str:
    """Return a time in the zone as text that begins like RFC 3339. Other texts are unchanged."""
    text = str(moment)
    if _zone is UTC:
        return text
    try:
        return Timestamp.parse(text).to_datetime().astimezone(_zone).replace(tzinfo=None).isoformat()
    except (ValueError, OverflowError):
        return text


def format_time(moment: Timestamp | str | None) -> str:
    """Return a time to the minute, such as ``2024-03-01 14:02``; only the day for midnight.

    For tables, whose headings name the zone.
    """
    if not moment:
        return ""
    day, _, time = _in_zone(moment).partition("T")
    return day if not time.strip("0:.Z") else f"{day} {time[:5]}"


def format_time_seconds(moment: Timestamp | str | None) -> str:
    """Return a time to the second, such as ``2024-03-01 14:02:31``. For tables, as :func:`format_time`."""
    return "" if moment is None else _in_zone(moment)[:19].replace("T", " ")


def format_clock(moment: str | None, *, seconds: bool = True) -> str:
    """Return the time of day, such as ``14:02:31``. For tables, as :func:`format_time`."""
    return _in_zone(moment or "")[11 : 19 if seconds else 16]


def format_zoned_time(moment: Timestamp | str | None, *, seconds: bool = False) -> str:
    """Return a time with its zone, such as ``2024-03-01 14:02 UTC``. For texts, or "" for None."""
    return f"{_in_zone(moment)[: 19 if seconds else 16].replace('T', ' ')} {_zone_label}" if moment else ""


def short_hash(text: str) -> str:
    """Return the first 8 digits of a hash after its prefix, as ``Multihash.abbreviated``."""
    return text.removeprefix(_HASH_PREFIX)[:8]


def type_name(kind: pa.DataType) -> str:
    """Return the short name of a type."""
    text = str(kind)
    for arrow, word in _TYPE_WORDS:
        text = text.replace(arrow, word)
    return text


def signer_text(actor: str) -> str:
    """Describe who signed with a dataset's key. ``actor`` is "" if the signature does not name the actor."""
    return f"by {actor}, with the dataset's key" if actor else "by the dataset's owner"


def signed_range_text(block: int, newer: int, actor: str) -> str:
    """Describe the newest block with a valid ownership proof.

    Args:
        block: its number.
        newer: the number of blocks after it.
        actor: who signed it, or "" if the proof does not name the actor.
    """
    position = count_of(newer, "newer block") if newer else "the newest"
    return f"up to block {format_count(block)}, {position}" + (f", signed by {actor}" if actor else "")
