"""Column names that look the same: with zero-width characters, other spaces, or accents of their own."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Final

_INVISIBLE: Final = ("Cf", "Cc")
_SPACES: Final = ("Zs", "Zl", "Zp")
_SPELLED_OUT: Final = ("M", "C", "Z")
"""First letters of the categories of characters that may be invisible, or part of the one before."""
LOOKALIKE_HINT: Final = (
    "rename it in the source or in a prepare step, or copy the name from the file into read.schema"
)


def appearance(name: str) -> str:
    """Return a text that names have in common if they look the same, ignoring case."""
    if name.isascii():
        return name.strip().casefold()
    spaced = "".join(
        " " if category in _SPACES else character
        for character in name
        if (category := unicodedata.category(character)) not in _INVISIBLE
    )
    return unicodedata.normalize("NFC", spaced.strip().casefold())


def find_lookalike(name: str, names: Iterable[str]) -> str | None:
    """Return another of some names that looks like a name, or None if absent."""
    wanted = appearance(name)
    others = (other for other in names if other.casefold() != name.casefold())
    return next((other for other in others if appearance(other) == wanted), None)


def spell_out(name: str) -> str:
    """Return a name with code points instead of characters that may be invisible: ``name\\u200b``."""
    return "".join(
        f"\\u{ord(character):04x}"
        if character != " " and unicodedata.category(character)[0] in _SPELLED_OUT
        else character
        for character in name
    )


def lookalike_problem(written: str, column: str) -> str:
    """Return the clause about a name in a file that looks like a column's name, but is another one."""
    return (
        f"'{spell_out(written)}' in the file looks like the column '{spell_out(column)}', but differs from it"
    )
