"""Names that look the same are found, and spelled out."""

from __future__ import annotations

import pytest

from odf_engine.data.column_names import find_lookalike, spell_out


@pytest.mark.parametrize(
    ("name", "column", "shown"),
    [
        ("name\u200b", "name", "name\\u200b"),
        ("\ufeffNAME", "name", "\\ufeffNAME"),
        ("anne\u0301e", "ann\u00e9e", "anne\\u0301e"),
        ("a\u00a0b", "A b", "a\\u00a0b"),
        ("a\u00adb", "ab", "a\\u00adb"),
        (" id", "id", " id"),
        ("ı", "i", "ı"),
        ("naïve", "naive", "naïve"),
        ("ID", "id", "ID"),
    ],
)
def test_names_that_look_the_same_are_found(name: str, column: str, shown: str) -> None:
    expected = None if shown == name and name != " id" else column
    assert find_lookalike(name, ["other", column]) == expected
    assert spell_out(name) == shown
