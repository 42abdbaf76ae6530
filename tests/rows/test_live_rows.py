"""What had happened until an event time, against the same in plain Python."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.base.progress import Reporter
from odf_engine.data.changelog import Op
from odf_engine.errors import BadData, InvalidSchema
from odf_engine.metadata.model import DEFAULT_VOCABULARY
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.rows.database import open_database
from odf_engine.rows.live_rows import LiveRowSet
from odf_engine.rows.projection import build_projection_of, write_projection
from odf_engine.rows.scan import Scan
from tests.rows.changelogs import Row, offsets, stored, table_of

A, R, C_FROM, C_TO = Op
ADDS = (A, C_TO)
LATE = 9


def at(seconds: int) -> Timestamp:
    return Timestamp.from_ms(seconds * 1000)


def as_of(log: Scan, moment: int, key: tuple[str, ...] = ("station",), **how: object) -> list[int]:
    """The offsets that stay."""
    path = log.files[0].path.with_name("as-of.parquet")
    found = write_projection(path, log, key, Reporter(), as_of=at(moment), **how)  # type: ignore[arg-type]
    assert not list(path.parent.glob(".*"))
    assert (found.rows, found.of) == (pq.read_metadata(path).num_rows, log.row_count)
    return offsets(path)


@pytest.fixture
def story(tmp_path: Path):
    """``story(rows, …)``: the slices of a changelog."""
    return lambda *slices: stored(tmp_path, [table_of(rows) for rows in slices])


def test_corrections_distinguish_state_changes_from_mistakes(story) -> None:
    log = story(
        [(A, "Quay", 1, "city"), (A, "Hill", 1, "city"), (A, "Pier", 1, "nobody")],
        # At 5 the county took over the quay; the hill never was the city's; there never was a pier.
        [(C_FROM, "Quay", 1, "city"), (C_TO, "Quay", 5, "county"), (C_FROM, "Hill", 1, "city")],
        [(C_TO, "Hill", 1, "baron"), (R, "Pier", 1, "nobody"), (A, "Dock", 3, "port")],
    )
    assert as_of(log, 0) == []
    assert as_of(log, 1) == [0, 6]
    assert as_of(log, 4) == [0, 6, 8]
    assert as_of(log, 5) == [4, 6, 8]
    # A ledger says in the same words that the quay never was the city's.
    assert as_of(log, 4, history="events") == [6, 8]
    assert as_of(log, 5, history="events") == [4, 6, 8]


def test_retracted_key_ends_at_its_time_and_can_return(story) -> None:
    log = story([(A, "Quay", 1, "city"), (R, "Quay", 4, "city"), (A, "Quay", 6, "county")])
    assert [as_of(log, moment) for moment in (1, 3, 4, 5, 6)] == [[0], [0], [], [], [2]]


def test_removed_key_does_not_return_to_an_earlier_row(story) -> None:
    rows = [(A, "Quay", 1, "city"), (C_FROM, "Quay", 1, "city"), (C_TO, "Quay", 5, "county")]
    log = story([*rows, (R, "Quay", 5, "county")])
    assert as_of(log, LATE) == []
    assert as_of(log, 3) == [0]


def test_key_of_a_snapshot_ends_when_the_snapshot_without_it_was_published(story) -> None:
    log = story(
        [(A, "Quay", 1, "city"), (A, "Hill", 2, "city")],
        [(A, "Pier", 5, "nobody"), (R, "Quay", 1, "city")],
        [(A, "Quay", 1, "county"), (R, "Hill", 2, "city")],
        [(R, "Pier", 5, "nobody")],
    )
    day = 86_400

    def states(history: str) -> list[list[int]]:
        return [as_of(log, moment, history=history) for moment in (1, 4, 5, 3 * day - 1, 3 * day)]

    # The third snapshot has no newer row than the second; the last one only lacks a key.
    assert states("snapshots") == [[0], [0, 1], [2, 4], [2, 4], [4]]
    assert states("states") == [[4], [4], [4], [4], [4]]


def test_late_rows_take_effect_at_their_event_time(story) -> None:
    log = story([(A, "Quay", 5, "b"), (A, "Quay", 2, "a"), (A, "Quay", 8, "c"), (R, "Quay", 8, "c")])
    assert [as_of(log, moment) for moment in (1, 2, 5, 8)] == [[], [1], [0], [0]]


def test_corrections_of_unknown_rows_or_other_keys_are_applied(story) -> None:
    log = story([(C_FROM, "Quay", 5, "a"), (C_TO, "Quay", 2, "b"), (A, "Hill", 1, "a")])
    assert [as_of(log, moment) for moment in (1, 2, LATE)] == [[2], [1, 2], [1, 2]]
    log = story([(A, "Quay", 1, "a"), (C_FROM, "Quay", 1, "a"), (C_TO, "Hill", 3, "a")])
    assert [as_of(log, moment) for moment in (1, 3)] == [[], [2]]


def test_without_a_key_rows_stay_until_retracted(story) -> None:
    log = story(
        [(A, "Quay", 1, "a"), (A, "Quay", 1, "a"), (A, "Hill", 2, "b"), (A, "Hill", None, "b")],
        [(R, "Quay", 1, "a"), (C_FROM, "Hill", 2, "b"), (C_TO, "Hill", 7, "c"), (A, None, 2, "b")],
    )
    assert as_of(log, 1, ()) == [1]
    assert as_of(log, 2, ()) == [1, 7]
    assert as_of(log, LATE, ()) == [1, 6, 7]


def test_event_dates_are_supported_and_nested_keys_refused(tmp_path: Path) -> None:
    table = table_of([(A, "Quay", 1, "a"), (A, "Quay", 2, "b"), (R, "Quay", 2, "b")], pa.date32())
    parts = pa.array([[{"x": 1}], [{"x": 2}], [{"x": 2}]])
    log = stored(tmp_path, [table.append_column("parts", parts)])
    assert as_of(log, 86_400 * 2 - 1) == [0]
    assert as_of(log, 86_400 * 2, ()) == [0]
    with pytest.raises(InvalidSchema, match="cannot be a key"):
        as_of(log, LATE, ("parts",))


def test_missing_event_time_and_wrong_offsets_are_reported(tmp_path: Path) -> None:
    log = stored(tmp_path, [table_of([(A, "Quay", 1, "a")]).drop_columns(["event_time"])])
    with pytest.raises(InvalidSchema, match=r"event time column '.*' not found"):
        as_of(log, LATE)
    wrong = Scan(log.schema, log.vocabulary, log.files, "here", end_offset=0)
    with pytest.raises(BadData, match="differ from those of their blocks"):
        write_projection(tmp_path / "x.parquet", wrong, ["station"], Reporter())


def as_published(slices: list[list[Row]]) -> list[Row]:
    """The rows of snapshots with the times when they take effect."""
    rows: list[Row] = []
    ended: dict[object, int] = {}
    newest: int | None = None
    for number, changes in enumerate(slices):
        added = [time for op, _, time, _ in changes if op in ADDS and time is not None]
        newest = max([*added, *([] if newest is None else [newest])], default=None)
        published = number * 86_400 if not added or newest is None else newest
        for op, key, time, value in changes:
            if op is R:
                time = max(published, -1 if time is None else time)
            if time is not None:
                time = max(time, ended.get(key, time))
            rows.append((op, key, time, value))
            if op is R and time is not None:
                ended[key] = max(time, ended.get(key, time))
    return rows


def naive(rows: list[Row], moment: int, history: str) -> list[int]:
    """The rule as it is written down."""
    events, ended = history == "events", history == "snapshots"
    last: dict[tuple, int] = {}
    added: dict[tuple, int] = {}
    for offset, (op, key, time, _) in enumerate(rows):
        if time is not None and time <= moment:
            last[key, time] = offset
            if op in ADDS:
                added[key, time] = offset
    newest: dict[object, tuple[int, int, int | None]] = {}
    for (key, time), offset in last.items():
        op, after = rows[offset][0], rows[offset + 1] if offset + 1 < len(rows) else None
        corrected = op is C_FROM and after is not None and after[:2] == (C_TO, key)
        until = after[2] if corrected and after is not None else None
        stays = op in ADDS or (corrected and not events and until is not None and until > moment)
        record = added.get((key, time))
        ends = ended and op is R
        if ends or (stays and record is not None) or (not stays and not corrected and record is None):
            found = (time, offset, None if ends else record)
            newest[key] = max(newest.get(key, found), found, key=lambda each: each[:2])
    return sorted(record for _, _, record in newest.values() if record is not None)


keys, values = st.sampled_from(["Quay", "Hill", "", None]), st.sampled_from("ab")
times = st.one_of(st.none(), st.integers(0, 6))
anything = st.lists(st.tuples(st.sampled_from(Op), keys, times, values), min_size=1, max_size=20)
pairs = st.builds(lambda key, old, new: [(C_FROM, key, old, "a"), (C_TO, key, new, "b")], keys, times, times)
corrections = st.builds(
    lambda rows, two, rest: [*rows, *two, *rest], anything, pairs, st.one_of(st.just([]), anything, pairs)
)


@st.composite
def changelogs(draw: st.DrawFn) -> list[Row]:
    """Operations that go with each other, each key at most once at a time."""
    live: dict[object, tuple[int, str]] = {}
    rows: list[Row] = []
    for _ in range(draw(st.integers(1, 15))):
        key, time, value = draw(keys), draw(st.integers(0, 6)), draw(values)
        before = live.pop(key, None)
        if before is None:
            rows.append((A, key, time, value))
        elif draw(st.booleans()):
            rows.append((R, key, *before))
            continue
        else:
            rows += [(C_FROM, key, *before), (C_TO, key, time, value)]
        live[key] = time, value
    return rows


@given(
    corrections | pairs | changelogs(),
    st.integers(-1, 7),
    st.sampled_from(["events", "states", "snapshots"]),
    st.data(),
)
@settings(max_examples=40, deadline=None)
def test_any_changelog_matches_the_naive_state(
    rows: list[Row], moment: int, history: str, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(rows)))
    with tempfile.TemporaryDirectory() as folder:
        slices = [rows[:cut], rows[cut:]]
        log = stored(Path(folder), [table_of(changes) for changes in slices])
        timed = as_published(slices) if history == "snapshots" else rows
        assert as_of(log, moment, history=history) == naive(timed, moment, history)
        left = Counter[tuple]()
        for op, key, time, value in rows:
            if time is not None and time <= moment:
                left[key, time, value] += 1 if op in ADDS else -1
        stays = Counter(tuple(rows[offset][1:]) for offset in as_of(log, moment, ()))
        assert stays == +left


@given(changelogs(), st.sampled_from(["events", "states", "snapshots"]))
@settings(max_examples=30, deadline=None)
def test_state_as_of_the_end_is_the_current_state(rows: list[Row], history: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = stored(Path(folder), [table_of(rows)])
        now = write_projection(Path(folder) / "now.parquet", log, ["station"], Reporter())
        assert as_of(log, LATE, history=history) == offsets(now.file)


@given(corrections, st.lists(st.integers(0, 25), max_size=5), st.booleans())
@settings(max_examples=25, deadline=None)
@pytest.mark.complete
def test_incremental_state_equals_the_state_from_scratch(
    rows: list[Row], cuts: list[int], tidy: bool
) -> None:
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    with tempfile.TemporaryDirectory() as folder:
        tables = [table_of(rows[start:stop]) for start, stop in pairwise(edges)]
        log, cache = stored(Path(folder), tables), Path(folder) / "cache"
        for count in range(len(tables) + 1):
            known = Scan(log.schema, log.vocabulary, log.files[:count], "x", len(rows))
            grown = build_projection_of(cache, known, ["station"], Reporter())
            scratch = write_projection(Path(folder) / "x.parquet", known, ["station"], Reporter())
            assert pq.read_table(grown.file).equals(pq.read_table(scratch.file))
            assert (grown.rows, grown.of) == (scratch.rows, scratch.of)
            if tidy and count % 2:
                grown.file.unlink()


def test_live_rows_need_one_bit_of_memory_each(tmp_path: Path) -> None:
    end = 1 << 27
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        assert process.submit(max_memory_of_live_rows, end, tmp_path).result() < end / 2


def max_memory_of_live_rows(end: int, folder: Path) -> int:
    """Check operations on two sets of offsets before ``end``; return the peak of Arrow's memory."""
    rows = Scan(pa.schema([("offset", pa.int64())]), DEFAULT_VOCABULARY, [], "x", end)
    first, second = (LiveRowSet(rows, Reporter()) for _ in range(2))
    with open_database(folder, Reporter()) as database:
        numbers = pa.table({"i": pa.array(range(100_000), pa.int64())})
        sql = f"SELECT (i * 1000003) % {end} AS live FROM numbers"
        first.add_result(database, sql, numbers=[numbers])
    for start in range(0, 700_000, 7000):
        second.add(pa.array(range(start, start + 7000, 7), pa.int64()))
    both = {i * 1000003 % end for i in range(100_000)}, set(range(0, 700_000, 7))
    shared = both[0] & both[1]
    assert shared
    first.discard_shared(second)
    offsets = pa.array(range(1_000_000), pa.int64())
    for live, expected in zip((first, second), both, strict=True):
        left = offsets.filter(live.mask(offsets)).to_pylist()
        assert left == sorted(offset for offset in expected - shared if offset < 1_000_000)
    return pa.default_memory_pool().max_memory()
