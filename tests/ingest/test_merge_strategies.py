"""Which rows a merge writes, whatever state the key index is in. No Spark runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.data.changelog import Op
from odf_engine.errors import BadData, InvalidSchema
from odf_engine.ingest.merge import key_file
from odf_engine.ingest.merge.key_index import KeyIndex
from odf_engine.metadata.model import Append, ChangelogStream, Ledger, Snapshot, UpsertStream
from odf_engine.spark import row_order
from tests.ingest.arrow_merge import ArrowMerge, Row

LEDGER, SNAPSHOT = Ledger(primary_key=["id"]), Snapshot(primary_key=["id"])
UPSERT, STREAM = UpsertStream(primary_key=["id"]), ChangelogStream(primary_key=["id"])
BAKHMUT, KYIV, ODESSA, SEATTLE, VANCOUVER = range(5)
CITIES = [Row(VANCOUVER, 1, 1), Row(SEATTLE, 2, 1), Row(KYIV, 3, 1)]
STRATEGIES = pytest.mark.parametrize("strategy", [LEDGER, SNAPSHOT], ids=["Ledger", "Snapshot"])
A, R, F, T = (op.code for op in Op)
DAMAGED = "the key index is damaged: rebuilding it"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArrowMerge:
    return ArrowMerge(tmp_path, monkeypatch)


def flip(path: Path) -> None:
    """Damage the whole file."""
    content = bytearray(path.read_bytes())
    for at in range(0, len(content), 7):
        content[at] ^= 0x10
    path.write_bytes(content)


def flip_first(path: Path) -> None:
    """Damage the first page: the file can be opened."""
    content = bytearray(path.read_bytes())
    content[3] ^= 0x10
    path.write_bytes(content)


def values(data: ArrowMerge) -> dict[int, int]:
    return {key: n for key, (n, _) in data.state().items()}


DAMAGES: list[Callable[[Path], object] | None] = [
    None,
    Path.unlink,
    flip,
    flip_first,
    lambda path: flip(path.parent / "index.json"),
    lambda path: (path.parent / "index.json").unlink(),
    lambda path: path.write_bytes(path.read_bytes()[:-1]),
    lambda path: path.write_bytes(b""),
    None,
]


@STRATEGIES
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.complete(after=3)
def test_damaged_key_index_changes_no_row(data: ArrowMerge, strategy: Ledger | Snapshot, seed: int) -> None:
    dice = random.Random(seed)
    damages = dice.sample(DAMAGES, len(DAMAGES))
    state: dict[int, int] = {}
    for number, damage in enumerate(damages):
        day = {key: dice.randrange(2) for key in dice.sample(range(6 + 2 * number), 5)}
        indexes = list((data.dataset.folder / "info").glob("keys/*/index.json"))
        assert len(indexes) == (number > 0)
        for path in data.keys:
            if damage is not None and path.parent.joinpath("index.json").exists():
                damage(path)
        data.merge(strategy, [Row(key, n, 1) for key, n in day.items()])
        state = {**day, **state} if strategy is LEDGER else day
        assert values(data) == state
        assert len(list((data.dataset.folder / "info").glob("keys/*/*"))) <= 4


@STRATEGIES
def test_a_damaged_page_is_found_while_rows_are_merged(data: ArrowMerge, strategy: Ledger | Snapshot) -> None:
    rows = [Row(key, key, 1) for key in range(20)]
    assert data.merge(strategy, rows) == 20
    assert data.merge(strategy, rows) == 0
    assert data.index_rebuilds == 0
    for path in data.keys:
        flip_first(path)
    assert data.merge(strategy, [*rows, Row(20, 20, 1)]) == 1
    assert data.reporter.lines == [("warning", DAMAGED), ("debug", "key index updated to offset 19")]
    assert data.index_rebuilds == 1
    assert data.merge(strategy, [*rows, Row(20, 20, 1)]) == 0
    assert data.index_rebuilds == 1


@STRATEGIES
def test_keys_of_unindexed_slices_are_found(data: ArrowMerge, strategy: Ledger | Snapshot) -> None:
    """Another source of the dataset, or another program, commits slices without their keys."""
    for number in range(4):
        rows = [Row(key, 0, 1) for key in range(5 * number, 5 * number + 10)]
        data.merge(strategy, rows, index=number % 2 == 0)
        assert set(values(data)) == (
            {row.id for row in rows} | (set(values(data)) if strategy is LEDGER else set())
        )
    lost = list(data.dataset.folder.glob("info/keys/*/*"))
    assert lost


@pytest.mark.parametrize("others", [0, 1, 2, 3])
def test_key_index_ignores_slices_of_reset_blocks(data: ArrowMerge, others: int) -> None:
    """Keys of other slices at the same offsets do not count."""
    for last in (1, 2, 3):
        assert data.merge(SNAPSHOT, [Row(key, 0, 1) for key in range(1, last + 1)]) == 1
        if last == 1:
            head = data.dataset.head()
    (data.dataset.folder / "refs" / "head").write_text(str(head))
    data.dataset = Dataset(data.dataset.folder, BlockIndex(":memory:"))
    for key in range(others):
        assert data.merge(Append(), [Row(8 + key, 0, 1, A)], changelog=True) == 1
    rows = [Row(1, 0, 1), *(Row(8 + key, 0, 1) for key in range(others))]
    assert data.merge(SNAPSHOT, [*rows, Row(7, 0, 1)]) == 1
    assert data.merge(SNAPSHOT, [*rows, Row(7, 0, 1)]) == 0
    assert values(data) == {row.id: 0 for row in rows} | {7: 0}


@STRATEGIES
def test_rows_are_committed_if_the_key_index_cannot_be_saved(
    data: ArrowMerge, strategy: Ledger | Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are committed, and the next merge builds the index."""
    with monkeypatch.context() as patched:

        def fail(index: KeyIndex) -> None:
            raise OSError(28, "No space left on device")

        patched.setattr(KeyIndex, "_save", fail)
        assert data.merge(strategy, [Row(1, 1, 1)]) == 1
    assert data.reporter.lines == [
        ("debug", "the key index could not be updated: [Errno 28] No space left on device")
    ]
    assert data.keys == []
    assert data.merge(strategy, [Row(1, 1, 1), Row(2, 2, 1)]) == 1
    assert data.index_rebuilds == 1


@STRATEGIES
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("rows", "count"),
    [
        ([Row(1, 1, 1), Row(None, 2, 1)], None),
        ([Row(1, 1, 1), Row(2, 2, 1), Row(1, 2, 1)], None),
        ([Row(1, 1, 1), Row(2, 2, 1), Row(2, 2, 1), Row(1, 1, 1)], 2),
    ],
    ids=["null", "conflict", "copies"],
)
def test_null_and_conflicting_keys_are_rejected_and_copies_dropped(
    data: ArrowMerge, strategy: Ledger | Snapshot, known: bool, rows: list[Row], count: int | None
) -> None:
    if known:
        data.merge(strategy, [Row(1, 1, 1), Row(2, 2, 1)])
        count = None if count is None else 0
    head = data.dataset.head()
    if count is None:
        with pytest.raises(BadData, match="invalid keys"):
            data.merge(strategy, rows)
        assert data.dataset.head() == head
    else:
        assert data.merge(strategy, rows) == count


def test_a_ledger_keeps_the_first_values(data: ArrowMerge) -> None:
    data.merge(LEDGER, [Row(1, 1, 3), Row(2, 2, 1)])
    assert [row["id"] for row in data.rows()] == [2, 1]
    changed = [Row(1, 9, 3), Row(2, 2, 4), Row(3, 3, 1)]
    with pytest.raises(BadData, match="2 rows with an existing primary key"):
        data.merge(LEDGER, changed, on_conflict="fail")
    assert data.merge(LEDGER, changed) == 1
    (warning,) = data.reporter.warnings
    assert "id=1: n was 1, is 9" in warning
    assert "id=2: event_time was " in warning
    assert data.merge(LEDGER, [Row(2, 2, None)]) == 0  # A null event time is no change.
    assert data.reporter.warnings == []


@pytest.mark.parametrize("late", [2, 4], ids=["early", "after some rows were written"])
def test_large_ledger_with_a_late_row_is_sorted_by_spark(
    data: ArrowMerge, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    """A late row leads to a sort by Spark, in the same attempt or the next one. Changes count once."""
    data.merge(LEDGER, [Row(0, 1, 1)])
    monkeypatch.setattr(row_order, "_MAX_MEMORY_BYTES", 1)
    rows = [Row(0, 2, 1), Row(1, 1, 5), Row(2, 1, 6), Row(3, 1, 7), Row(4, 1, 8)]
    rows.insert(late, Row(5, 1, 4))
    assert data.merge(LEDGER, rows) == 5
    assert [row["id"] for row in data.rows()] == [0, 5, 1, 2, 3, 4]
    is_second_attempt = "the rows are not ordered by event time: sorting them" in str(data.reporter.lines)
    assert is_second_attempt is (late == 4)
    (warning,) = data.reporter.warnings
    assert warning.startswith("1 row with")


def test_snapshot_writes_corrections_and_retractions(data: ArrowMerge) -> None:
    assert data.merge(SNAPSHOT, [Row(3, 3, 1), Row(1, 1, 1), Row(2, 2, 1)]) == 3
    assert data.merge(SNAPSHOT, [Row(4, 4, 2), Row(1, 1, None), Row(2, 5, 2)]) == 4
    assert [(Op(row["op"]).code, row["id"], row["n"]) for row in data.rows()[3:]] == [
        (F, 2, 2), (T, 2, 5), (R, 3, 3), (A, 4, 4),
    ]  # fmt: skip
    assert data.merge(SNAPSHOT, [Row(4, 4, 2), Row(1, 1, 7), Row(2, 5, 2), Row(3, 3, 1)]) == 3
    by_n = Snapshot(primary_key=["id"], compare_columns=["n"])
    assert data.merge(by_n, [Row(4, 4, 3), Row(1, 1, 8), Row(2, 5, 3), Row(3, 3, 3)]) == 0


@pytest.mark.parametrize("seed", range(5))
def test_random_changelogs_match_a_reference_model(
    data: ArrowMerge, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random batches, a part of them wrong: accepted as a whole or not at all, as plain Python would."""
    monkeypatch.setattr(key_file, "_IN_MEMORY", 50)
    dice = random.Random(seed)
    state: dict[int, tuple[int, int]] = {}
    accepted = 0
    for _ in range(8):
        trial, rows, is_valid = dict(state), list[Row](), True
        for _ in range(60):
            key, n, day = dice.randrange(40), dice.randrange(2), dice.randrange(1, 4)
            if key in trial:
                old, old_day = trial.pop(key)
                given = old_day if dice.random() < 0.5 else None
                if dice.random() < 0.5:
                    rows.append(Row(key, old, given, R))
                else:
                    rows += [Row(key, old, given, F), Row(key, n, day, T)]
                    trial[key] = n, day
            else:
                rows.append(Row(key, n, day, A))
                trial[key] = n, day
        if dice.random() < 0.4:
            is_valid = False
            at = next(at for at, row in enumerate(rows) if row.op == A)
            rows.insert(at, rows[at])
        try:
            data.merge(LEDGER, rows, changelog=True)
        except BadData:
            assert not is_valid
        else:
            assert is_valid
            state, accepted = trial, accepted + len(rows)
    assert len(data.rows()) == accepted > 0
    assert data.state() == state


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([Row(1, 1, 1, A), Row(2, 1, 1, "+B")], "row 2 .*invalid operation '\\+B'"),
        ([Row(None, 1, 1, A)], "the primary key is null"),
        ([Row(0, 1, 1, A)], "a row with this primary key already exists"),
        ([Row(9, 1, 1, R)], "the retracted row does not exist"),
        ([Row(0, 5, 1, R)], "the values differ from those of the existing row"),
        ([Row(0, 0, 2, R)], "the values differ from those of the existing row"),
        ([Row(0, 0, 1, F)], "a -C must be followed by the \\+C of the same row"),
        ([Row(0, 0, 1, F), Row(9, 1, 1, T)], "row 1 .*-C must be followed.*row 2 .*follow the -C"),
        ([Row(9, 1, 1, T)], "a \\+C must follow the -C of the same row"),
        ([Row(0, 0, 1, R), Row(0, 0, 1, R)], "1 invalid row: row 2 .*does not exist"),
    ],
)
def test_operations_that_contradict_the_dataset_are_rejected(
    data: ArrowMerge, rows: list[Row], message: str
) -> None:
    data.merge(SNAPSHOT, [Row(0, 0, 1)])
    with pytest.raises(BadData, match=message):
        data.merge(SNAPSHOT, rows, changelog=True)


def test_operations_without_key_match_rows_by_value(data: ArrowMerge) -> None:
    append = Append()
    copies = [Row(1, 1, 1, A), Row(1, 1, 2, A), Row(1, 1, 1, A), Row(2, None, 1, A)]
    assert data.merge(append, copies, changelog=True) == 4
    for rows, message in (
        ([Row(1, 2, 1, R)], "does not exist"),
        ([Row(1, 1, 2, R), Row(5, 5, 1, A), Row(1, 1, 2, R)], "row 3 .*values differ"),
        ([Row(1, 1, 9, R)], "values differ"),
        ([Row(1, 1, None, F)], "followed by"),
    ):
        with pytest.raises(BadData, match=message):
            data.merge(append, rows, changelog=True)
    rows = [Row(1, 1, 1, R), Row(2, None, None, F), Row(3, 3, 1, T), Row(3, 3, None, R), Row(1, 1, None, R)]
    assert data.merge(append, rows, changelog=True) == 5
    assert [(row["op"], row["id"], row["day"]) for row in data.rows()[4:]] == [
        (Op.RETRACT, 1, 1), (Op.CORRECT_FROM, 2, 1), (Op.CORRECT_TO, 3, 1), (Op.RETRACT, 3, 1),
        (Op.RETRACT, 1, 1),
    ]  # fmt: skip
    assert data.merge(append, [Row(1, 1, None, R)], changelog=True) == 1
    assert data.rows()[-1]["day"] == 2
    with pytest.raises(BadData, match="does not exist"):
        data.merge(append, [Row(1, 1, None, R)], changelog=True)


def test_a_ledger_corrects_changed_rows(data: ArrowMerge) -> None:
    data.merge(LEDGER, [Row(1, 10, 1), Row(2, 20, 2), Row(3, 30, 3), Row(4, 40, 4)])
    day = [Row(5, 50, 5), Row(3, 31, 3), Row(2, 20, None), Row(1, 10, 9), Row(4, 40, 4)]
    with pytest.raises(BadData, match="2 rows with an existing primary key and different values"):
        data.merge(LEDGER, day, on_conflict="fail")
    assert data.merge(LEDGER, day[1:]) == 0
    assert data.reporter.lines[0][1].startswith("2 rows with an existing primary key")
    assert data.merge(LEDGER, day, on_conflict="correct") == 5
    assert ("info", "2 changed rows corrected") in data.reporter.lines
    assert [(Op(row["op"]).code, row["id"], row["n"], row["day"]) for row in data.rows()[4:]] == [
        (A, 5, 50, 5), (F, 1, 10, 1), (T, 1, 10, 9), (F, 3, 30, 3), (T, 3, 31, 3)
    ]  # fmt: skip
    assert data.merge(LEDGER, day, on_conflict="correct") == 0
    assert data.merge(LEDGER, [Row(3, 30, 3), Row(3, 30, 3)], on_conflict="correct") == 2  # copies
    with pytest.raises(BadData):
        data.merge(LEDGER, [Row(3, 1, 3), Row(3, 2, 3)], on_conflict="correct")
    # A retracted key stays retracted.
    data.merge(LEDGER, [Row(4, 40, 4, R)], changelog=True)
    assert data.merge(LEDGER, [Row(4, 41, 4)], on_conflict="correct") == 0
    assert "1 row with an existing primary key" in data.reporter.lines[0][1]
    assert values(data) == {1: 10, 2: 20, 3: 30, 5: 50}


@pytest.mark.parametrize("seed", range(4))
def test_ledger_with_corrections_keeps_the_latest_values(data: ArrowMerge, seed: int) -> None:
    dice = random.Random(seed)
    state: dict[int, int] = {}
    for _ in range(8):
        day = {key: dice.randrange(3) for key in dice.sample(range(12), dice.randrange(1, 9))}
        data.merge(LEDGER, [Row(key, n, 1) for key, n in day.items()], on_conflict="correct")
        state |= day
        assert values(data) == state


def new_rows(data: ArrowMerge, before: int = 0) -> list[tuple[str, int, int, int]]:
    """Operation, key, value and day of the rows from an offset on."""
    return [(Op(row["op"]).code, row["id"], row["n"], row["day"]) for row in data.rows()[before:]]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([Row(ODESSA, 4, 1)], [(A, ODESSA, 4, 1)]),
        (CITIES, []),
        (
            [Row(VANCOUVER, 2, 1, A), Row(KYIV, 4, 1, T)],
            [(F, KYIV, 3, 1), (T, KYIV, 4, 1), (F, VANCOUVER, 1, 1), (T, VANCOUVER, 2, 1)],
        ),
        (
            [Row(VANCOUVER, 2, 1, A), Row(VANCOUVER, 3, 1, A)],
            [(F, VANCOUVER, 1, 1), (T, VANCOUVER, 3, 1)],
        ),
        ([Row(SEATTLE, 0, 1, R)], [(R, SEATTLE, 2, 1)]),
        ([Row(SEATTLE, 3, 1, T), Row(SEATTLE, 0, 1, R)], [(R, SEATTLE, 2, 1)]),
        # A new key whose other columns are null is a row.
        ([Row(ODESSA, None, None)], [(A, ODESSA, None, 152)]),
        # A -C does not change the state: the row after it has the new values.
        ([Row(SEATTLE, 9, 1, F), Row(SEATTLE, 2, 1, T)], []),
        ([Row(ODESSA, 9, 1, F), Row(KYIV, 3, 1), Row(ODESSA, 5, 1, T)], [(A, ODESSA, 5, 1)]),
        ([Row(KYIV, None, None)], [(F, KYIV, 3, 1), (T, KYIV, None, 152)]),
        ([Row(SEATTLE, None, None, R), Row(BAKHMUT, None, None, R)], [(R, SEATTLE, 2, 1)]),
    ],
)
def test_upsert_stream_writes_only_changes(
    data: ArrowMerge, rows: list[Row], expected: list[tuple[str, int, int, int]]
) -> None:
    assert data.merge(UPSERT, CITIES) == 3
    assert [row["id"] for row in data.rows()] == [KYIV, SEATTLE, VANCOUVER]
    with_operations = any(row.op for row in rows)
    assert data.merge(UPSERT, rows, changelog=with_operations) == len(expected)
    assert new_rows(data, 3) == expected
    assert data.merge(UPSERT, rows, changelog=with_operations) == 0  # Every upsert can be repeated.


def test_upserts_into_empty_dataset_keep_last_row_per_key(data: ArrowMerge) -> None:
    rows = [
        Row(VANCOUVER, 1, 1, A), Row(VANCOUVER, 2, 1, A), Row(VANCOUVER, 3, 1, T), Row(SEATTLE, 2, 1, A),
        Row(KYIV, 3, 1, A), Row(SEATTLE, 2, 1, R),
    ]  # fmt: skip
    assert data.merge(UPSERT, rows, changelog=True) == 2
    assert new_rows(data) == [(A, KYIV, 3, 1), (A, VANCOUVER, 3, 1)]
    assert "3 rows superseded by later rows of the same key" in str(data.reporter.lines)
    assert "1 retraction of unknown keys ignored" in str(data.reporter.lines)


def test_an_upsert_stream_compares_event_times(data: ArrowMerge) -> None:
    data.merge(UPSERT, [*CITIES, Row(BAKHMUT, 4, 1)])
    data.merge(UPSERT, [Row(BAKHMUT, 0, 1, R), Row(KYIV, 4, 1)], changelog=True)
    rows = [
        Row(ODESSA, 5, 1), Row(KYIV, 4, 1), Row(VANCOUVER, 2, 2), Row(BAKHMUT, 1, 2), Row(SEATTLE, 0, 2, R),
    ]  # fmt: skip
    assert data.merge(UPSERT, rows, changelog=True) == 5
    assert new_rows(data, 7) == [
        (A, BAKHMUT, 1, 2), (A, ODESSA, 5, 1), (R, SEATTLE, 2, 1), (F, VANCOUVER, 1, 1), (T, VANCOUVER, 2, 2),
    ]  # fmt: skip
    assert data.merge(UPSERT, [Row(ODESSA, 5, 3), Row(KYIV, 4, None)]) == 2
    assert new_rows(data, 12) == [(F, ODESSA, 5, 1), (T, ODESSA, 5, 3)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([Row(1, 1, 1, A), Row(2, 1, 1, "+B")], "1 invalid row: row 2 .*column op: invalid operation '\\+B'"),
        ([Row(1, 1, 1), Row(None, 1, 1)], "row 2 .*id=None.*the primary key is null"),
        ([Row(1, 1, 1, F), Row(2, 1, 1, T)], "row 1 .*-C must be followed by the \\+C"),
    ],
)
def test_invalid_upserts_are_rejected(data: ArrowMerge, rows: list[Row], message: str) -> None:
    head = data.dataset.head()
    with pytest.raises(BadData, match=message):
        data.merge(UPSERT, rows, changelog=any(row.op for row in rows))
    assert data.dataset.head() == head


def test_a_changelog_stream_is_written_by_key(data: ArrowMerge) -> None:
    rows = [
        Row(VANCOUVER, 1, 1, A), Row(SEATTLE, 2, 1, A), Row(KYIV, 3, 1, A), Row(VANCOUVER, 1, 1, F),
        Row(VANCOUVER, 2, 1, T),
    ]  # fmt: skip
    assert data.merge(STREAM, rows, changelog=True) == 5
    assert new_rows(data) == [
        (A, KYIV, 3, 1), (A, SEATTLE, 2, 1), (A, VANCOUVER, 1, 1), (F, VANCOUVER, 1, 1), (T, VANCOUVER, 2, 1),
    ]  # fmt: skip
    # Several changes of a key keep their order. The two rows of a correction need not be adjacent.
    rows = [
        Row(SEATTLE, 2, None, F), Row(KYIV, 3, 1, F), Row(SEATTLE, 5, 2, T), Row(KYIV, 4, 1, T),
        Row(SEATTLE, 5, 2, R), Row(KYIV, 4, 1, R), Row(SEATTLE, 6, 1, A),
    ]  # fmt: skip
    assert data.merge(STREAM, rows, changelog=True) == 7
    assert new_rows(data, 5) == [
        (F, KYIV, 3, 1), (T, KYIV, 4, 1), (R, KYIV, 4, 1),
        (F, SEATTLE, 2, 1), (T, SEATTLE, 5, 2), (R, SEATTLE, 5, 2), (A, SEATTLE, 6, 1),
    ]  # fmt: skip
    for rows, message in (
        ([Row(KYIV, 1, 1, A), Row(SEATTLE, 6, 1, F), Row(KYIV, 2, 1, T)], "row 2 .*-C must.*row 3 .*follow"),
        ([Row(SEATTLE, 7, 1, R)], "the values differ"),
        ([Row(SEATTLE, 7, 1, None)], "invalid operation NULL"),
    ):
        with pytest.raises(BadData, match=message):
            data.merge(STREAM, rows, changelog=True)
    with pytest.raises(InvalidSchema, match="requires the column 'op'"):
        data.merge(STREAM, CITIES)
    assert values(data) == {VANCOUVER: 2, SEATTLE: 6}


@pytest.mark.parametrize("strategy", [UPSERT, STREAM], ids=["UpsertStream", "ChangelogStream"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.complete(after=3)
def test_the_projection_of_a_stream_is_the_fold_of_its_input(
    data: ArrowMerge, strategy: UpsertStream | ChangelogStream, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last row of each key in all inputs so far is the state, whatever runs are sorted in files."""
    monkeypatch.setattr(key_file, "_IN_MEMORY", 50)
    monkeypatch.setattr(row_order, "_MAX_MEMORY_BYTES", 500)
    monkeypatch.setattr(row_order, "_BATCH_ROWS", 7)
    dice = random.Random(seed)
    state: dict[int, tuple[int, int]] = {}
    for _ in range(6):
        rows: list[Row] = []
        for _ in range(80):
            key, n, day, op = dice.randrange(30), dice.randrange(3), dice.randrange(1, 4), A
            if key in state:
                old = state[key]
                op = dice.choice([R, T, T if strategy is STREAM else dice.choice([A, ""])])
                if op == T:
                    rows.append(Row(key, *old, F))
                elif op == R and strategy is STREAM:
                    n, day = old
            elif strategy is UPSERT and dice.random() < 0.2:
                op = R  # of an unknown key
            rows.append(Row(key, n, day, op or None))
            state.pop(key, None)
            if op != R:
                state[key] = n, day
        data.merge(strategy, rows, changelog=True)
        assert data.state() == state
        keys = [row["id"] for row in data.rows()[-5:]]
        assert keys == sorted(keys)
