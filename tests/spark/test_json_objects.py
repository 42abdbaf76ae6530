"""JSON objects: a key that occurs twice is found in any spelling and at any depth."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as some

from odf_engine.spark.errors import RejectedRow
from odf_engine.spark.json_objects import parse_object


class Pairs(list[Any]):
    """An object that may have a key twice."""


TEXTS = some.text('a":{ \\b,', max_size=4)
VALUES = some.recursive(
    some.integers(0, 9) | TEXTS,
    lambda inner: (
        some.lists(inner, max_size=3) | some.lists(some.tuples(TEXTS, inner), max_size=3).map(Pairs)
    ),
    max_leaves=8,
)


def write(value: Any, colon: str, escaped: bool) -> str:
    def text(each: str) -> str:
        return '"' + "".join(f"\\u{ord(c):04x}" for c in each) + '"' if escaped else json.dumps(each)

    if isinstance(value, Pairs):
        members = (f"{text(key)}{colon}{write(item, colon, escaped)}" for key, item in value)
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(write(item, colon, escaped) for item in value) + "]"
    return text(value) if isinstance(value, str) else str(value)


def has_duplicates(value: Any) -> bool:
    if isinstance(value, Pairs):
        names = [key for key, _ in value]
        return len(set(names)) < len(names) or any(has_duplicates(item) for _, item in value)
    return isinstance(value, list) and any(has_duplicates(item) for item in value)


@settings(max_examples=500, deadline=None)
@given(
    some.lists(some.tuples(TEXTS, VALUES), max_size=4).map(Pairs),
    some.sampled_from([":", ": ", " :", "\t:"]),
    some.booleans(),
)
def test_objects_with_a_key_twice_are_rejected_and_no_others(pairs: Pairs, colon: str, escaped: bool) -> None:
    line = write(pairs, colon, escaped).encode()
    try:
        values = parse_object(line, "x: line 1")
    except RejectedRow as error:
        assert "occurs twice in an object" in error.message
        assert has_duplicates(pairs)
    else:
        assert list(values) == [key for key, _ in pairs]
        assert not has_duplicates(pairs)
