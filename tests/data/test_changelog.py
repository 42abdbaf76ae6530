"""Operations, and the state after a changelog."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.data import changelog
from odf_engine.data.changelog import Op, replay_changelog
from odf_engine.errors import InvalidSchema
from odf_engine.metadata.model import DatasetVocabulary

VOCAB = DatasetVocabulary("offset", "op", "system_time", "event_time")
A, R, C_FROM, C_TO = Op


def _table(rows: list[tuple[Any, ...]], first: int = 0) -> pa.Table:
    ops, keys, values = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {
            "offset": pa.array(range(first, first + len(rows)), pa.uint64()),
            "op": pa.array(ops, pa.uint8()),
            "key": pa.array(keys, pa.int64()),
            "value": pa.array(values, pa.string()),
        }
    )


def _state(table: pa.Table) -> dict[Any, Any]:
    return dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


def test_short_codes_are_those_of_the_specification() -> None:
    assert [(int(op), op.code) for op in Op] == [(0, "+A"), (1, "-R"), (2, "-C"), (3, "+C")]


def test_state_has_the_newest_row_of_each_key_unless_retracted() -> None:
    table = _table(
        [
            (A, 1, "a"),
            (A, 2, "b"),
            (C_FROM, 1, "a"),
            (C_TO, 1, "a2"),
            (R, 2, "b"),
            (A, 3, "c"),
            (A, None, "null"),
            (R, 3, "c"),
            (A, 3, "c2"),
        ]
    )
    state = replay_changelog([table], ["key"], VOCAB)
    assert state["offset"].to_pylist() == [3, 6, 8]
    assert _state(state) == {1: "a2", None: "null", 3: "c2"}
    assert state.schema == table.schema


def test_a_correction_may_move_a_row_to_another_key() -> None:
    assert _state(
        replay_changelog([_table([(A, 1, "a"), (C_FROM, 1, "a"), (C_TO, 2, "a")])], ["key"], VOCAB)
    ) == {2: "a"}


def test_key_may_have_several_columns() -> None:
    table = _table([(A, 1, "a"), (A, 1, "b"), (R, 1, "a")])
    assert replay_changelog([table], ["KEY", "value"], VOCAB)["offset"].to_pylist() == [1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([A, R, C_TO]), st.integers(0, 4), st.text(max_size=2))),
    st.integers(1, 9),
)
def test_replay_does_not_depend_on_batches(rows: list[tuple[Op, int, str]], size: int) -> None:
    expected: dict[int, str] = {}
    for op, key, value in rows:
        expected.pop(key, None)
        if op != R:
            expected[key] = value
    pieces = [_table(rows[at : at + size], at) for at in range(0, len(rows), size)] or [_table([])]
    batches = [batch for piece in pieces for batch in piece.to_batches()]
    for compact_rows in (1, 10**6):
        changelog._COMPACT_ROWS, before = compact_rows, changelog._COMPACT_ROWS
        try:
            assert list(_state(replay_changelog(pieces, ["key"], VOCAB)).items()) == list(expected.items())
            if batches:
                assert _state(replay_changelog(batches, ["key"], VOCAB)) == expected
        finally:
            changelog._COMPACT_ROWS = before


def test_invalid_key_is_rejected() -> None:
    table = _table([(A, 1, "a")])
    with pytest.raises(InvalidSchema, match="'absent'"):
        replay_changelog([table], ["absent"], VOCAB)
    with pytest.raises(InvalidSchema, match="primary key"):
        replay_changelog([table], [], VOCAB)
    listed = table.append_column("list", pa.array([[1]]))
    with pytest.raises(InvalidSchema, match="list"):
        replay_changelog([listed], ["list"], VOCAB)
