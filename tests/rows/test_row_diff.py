"""Two versions of a dataset, or two datasets, compared."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import decode_array, python_values
from odf_engine.data.changelog import Op
from odf_engine.errors import BadData, Cancelled, InvalidSchema, NotFound, OdfError, UsageError
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import DatasetKind, SetInfo, SetLicense, SetVocab
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.rows import row_diff
from odf_engine.rows.database import Database, open_database
from odf_engine.rows.diff import Difference, DiffSides, resolve_sides
from odf_engine.rows.diff_columns import changed_cells
from odf_engine.rows.row_diff import diff_datasets
from odf_engine.rows.scan import Scan
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.rows.test_database import VALUES, bits
from tests.workspace.conftest import Append

A, R, C_FROM, C_TO = Op
START = Timestamp.parse("2024-05-01T00:00:00Z")
MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: stations
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: NdJson, schema: ["station STRING", "floor BIGINT", "tags ARRAY<STRING>"]}
      merge: {kind: Snapshot, primaryKey: [station]}
"""
Change = tuple[Op, str | None, int | None, Any]


def rows(changes: Sequence[Change], **more: Any) -> pa.Table:
    ops, stations, floors, tags = zip(*changes, strict=True)
    return pa.table(
        {
            "op": pa.array(ops, pa.uint8()),
            "event_time": pa.array([0] * len(ops), pa.timestamp("ms", "UTC")),
            "station": pa.array(stations, pa.string()),
            "floor": pa.array(floors, pa.int64()),
            "tags": pa.array(tags, pa.list_(pa.string())),
            **more,
        }
    )


def put(append: Append, entry: DatasetEntry, table: pa.Table) -> None:
    """Commits rows with their operations; the schema of a slice names none."""
    import odf_engine.data.parquet.slices as slices
    from tests.workspace import conftest

    def data_schema(schema: pa.Schema, vocab: Any) -> pa.Schema:
        at = schema.get_field_index("op")
        return slices.slice_schema(schema.remove(at) if at >= 0 else schema, vocab)

    with mock.patch.object(conftest, "slice_schema", data_schema), mock.patch("os.fsync"):
        append(entry.dataset, table)


def differs(workspace: Workspace, name: str = "stations", other: str = "", **how: Any) -> Difference:
    return diff_datasets(workspace, name, other, **{"reporter": Reporter(), **how})


def found_rows(found: Difference) -> list[dict[str, Any]]:
    return pq.read_table(found.file).to_pylist()


@pytest.fixture
def stations(workspace: Workspace) -> DatasetEntry:
    workspace.add(read_manifests(MANIFEST, "stations.yaml"))
    return workspace.resolve("stations")


def test_default_diff_compares_the_last_two_blocks_with_data(
    workspace: Workspace, stations: DatasetEntry, append: Append
) -> None:
    put(append, stations, rows([(A, "a", 1, None), (A, "b", 2, ["x"]), (A, "c", 3, None)]))
    first = stations.dataset.state().sequence_number
    info = [
        SetInfo("of the harbour"),
        SetLicense(short_name="m", name="MIT", website_url="https://x.example"),
    ]
    now = Timestamp.now()
    stations.dataset.commit(info, system_time=now, expected_head=stations.dataset.head())
    changes: list[Change] = [
        (C_FROM, "b", 2, ["x"]), (C_TO, "b", 2, ["x", "y"]), (R, "c", 3, None), (A, "d", None, [])
    ]  # fmt: skip
    put(append, stations, rows(changes, colour=pa.array([None, None, None, "red"], pa.string())))
    stations.dataset.commit(
        [SetInfo("of the port")], system_time=Timestamp.now(), expected_head=stations.dataset.head()
    )
    found = differs(workspace)
    assert (found.added, found.removed, found.changed, found.unchanged) == (1, 1, 1, 1)
    assert (found.key, found.by_column, found.records, found.blocks) == (["station"], {"tags": 1}, (3, 7), 4)
    assert (found.old.sequence_number, found.new.head) == (first, False)
    assert [(each.name, each.old, each.new) for each in found.schema] == [("colour", None, "STRING")]
    assert [(setting.title, setting.lines[-1]) for setting in found.settings] == [
        ("SetLicense", "+ websiteUrl: https://x.example"),
        ("SetInfo", "+ description: of the harbour"),
    ]
    table = pq.read_table(found.file)
    assert table.column_names[:4] == ["change", "station", "old_event_time", "new_event_time"]
    assert [row["change"] + row["station"] for row in table.to_pylist()] == ["changedb", "removedc", "addedd"]
    assert table.column("old_tags").to_pylist() == [["x"], None, None]
    assert table.column("new_tags").to_pylist() == [["x", "y"], None, []]
    assert table.column("new_colour").to_pylist() == [None, None, "red"]
    cells = {name: mask.to_pylist() for name, mask in changed_cells(table, found.columns).items()}
    assert {name for name, mask in cells.items() if mask != [False] * 3} == {"tags"}
    assert cells["tags"] == [True, False, False]
    with mock.patch.object(row_diff, "_Comparison", side_effect=AssertionError):
        assert differs(workspace) == found  # what was compared before is kept
    back = differs(workspace, as_at=found.new.block, other_as_at=found.old.block)
    assert (back.added, back.removed, back.changed, back.blocks) == (1, 1, 1, -4)
    assert next(setting.lines[-1] for setting in back.settings) == "- websiteUrl: https://x.example"


def test_invalid_versions_and_keys_are_refused(
    workspace: Workspace, stations: DatasetEntry, append: Append
) -> None:
    with pytest.raises(UsageError, match="has no rows up to block 1"):
        differs(workspace)
    found = differs(workspace, as_at=str(stations.dataset.block(0).hash))  # but what describes it differs
    assert (found.rows, found.unchanged, found.key) == (0, 0, [])
    assert [setting.title for setting in found.settings] == ["AddPushSource 'default'"]
    assert pq.read_metadata(found.file).num_rows == 0
    put(append, stations, rows([(A, "a", 1, None)]))
    found = differs(workspace)  # the first rows of all
    assert (found.added, found.blocks, found.schema, found.settings) == (1, 1, [], [])
    head = stations.dataset.head()
    with pytest.raises(UsageError, match="both versions are block 3 of stations"):
        differs(workspace, as_at=str(head))
    with pytest.raises(UsageError, match="has no blocks at"):
        differs(workspace, as_at="1999-01-01T00:00:00Z")
    with pytest.raises(NotFound, match="block 'abcdef' not found"):
        differs(workspace, as_at="abcdef")
    with pytest.raises(InvalidSchema, match="column 'harbour' not found"):
        differs(workspace, key=["harbour"])
    with pytest.raises(InvalidSchema, match="cannot"):
        differs(workspace, key=["tags"])


def test_datasets_with_different_columns_are_compared_by_key(
    workspace: Workspace, stations: DatasetEntry, append: Append
) -> None:
    other = workspace.create_dataset(
        DatasetAlias.parse("others"), DatasetKind.Root, [SetVocab(event_time_column="day")], START
    )
    put(append, stations, rows([(A, "a", 1, None), (A, "b", 2, None), (A, "c", 3, None)]))
    days = pa.array([0, 0, 0], pa.timestamp("ms", "UTC"))
    table = {"day": days, "STATION": ["a", "b", "e"], "floor": pa.array([1.0, 2.5, 3.0]), "owner": ["x"] * 3}
    put(append, other, pa.table(table))
    found = differs(workspace, "stations", "others", key=["station"])
    assert (found.added, found.removed, found.changed, found.unchanged) == (1, 1, 1, 1)
    assert found.by_column == {"floor": 1}  # what only one of them has makes no row another one
    assert (found.key, found.blocks) == (["STATION"], None)
    changed = found_rows(found)[0]
    assert (changed["old_floor"], changed["new_floor"], changed["new_owner"]) == (2, 2.5, "x")
    assert [(each.name, each.old, each.new) for each in found.schema if each.name in ("floor", "tags")] == [
        ("floor", "BIGINT", "DOUBLE"), ("tags", "ARRAY<STRING>", None)
    ]  # fmt: skip
    whole = differs(workspace, "stations", "others")  # only one of them has a key
    assert (whole.key, whole.added, whole.removed, whole.unchanged) == ([], 2, 2, 1)
    with pytest.raises(InvalidSchema, match="cannot be a key: string and double"):
        text = workspace.create_dataset(DatasetAlias.parse("texts"), DatasetKind.Root, [], START)
        put(append, text, pa.table({"station": pa.array([1.5])}))
        differs(workspace, "stations", "texts", key=["station"])
    empty = workspace.create_dataset(DatasetAlias.parse("empty"), DatasetKind.Root, [], START)
    assert differs(workspace, "stations", str(empty.id)).removed == 3
    assert differs(workspace, "empty", "stations").added == 3


def test_cancelled_diff_leaves_no_files(workspace: Workspace, stations: DatasetEntry, append: Append) -> None:
    put(append, stations, rows([(A, "a", 1, None)]))
    reporter = Reporter()
    reporter.cancel()
    with pytest.raises(Cancelled):
        differs(workspace, reporter=reporter)
    assert not list((workspace.odf / "cache").glob("differences/*"))


PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # a smaller example would take minutes to find
STATIONS = st.sampled_from(["a", "b", "", None])
TAGS = st.sampled_from([None, [], ["x"], ["x", None]])
EDIT = st.tuples(STATIONS, st.none() | st.integers(0, 2), TAGS, st.booleans())
SLICES = st.lists(st.lists(EDIT, min_size=1, max_size=5), min_size=2, max_size=4)
State = dict[str | None, tuple[int | None, Any]]


def edited(state: State, edits: Sequence[Any]) -> list[Change]:
    """Changes the state; the rows of a changelog that say so."""
    found: list[Change] = []
    for station, floor, tags, away in edits:
        before = state.get(station)
        if away:
            if before is not None:
                found.append((R, station, *state.pop(station)))
        elif before is None:
            found.append((A, station, floor, tags))
            state[station] = (floor, tags)
        else:
            found += [(C_FROM, station, *before), (C_TO, station, floor, tags)]
            state[station] = (floor, tags)
    return found


def made(folder: str, slices: Sequence[Any], append: Append) -> tuple[Workspace, list[tuple[str, State]]]:
    """A workspace with a changelog, and its state after each of its slices."""
    workspace = Workspace.init(Path(folder) / "ws")
    entry = workspace.create_dataset(DatasetAlias.parse("stations"), DatasetKind.Root, [], START)
    state: State = {}
    states = [(str(entry.dataset.head()), dict(state))]
    for edits in slices:
        changes = edited(state, edits)
        if changes:
            put(append, entry, rows(changes))
            states.append((str(entry.dataset.head()), dict(state)))
    return workspace, states


def sides(workspace: Workspace, states: Sequence[tuple[str, State]], at: Sequence[int]) -> DiffSides:
    return resolve_sides(workspace, "stations", "", *(states[each][0] for each in at[:2]))


@settings(max_examples=8, deadline=None, phases=PHASES)
@given(SLICES, st.permutations([0, 1, -1]))
def test_diff_by_key_turns_the_old_state_into_the_new(slices: Sequence[Any], at: Sequence[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        workspace, states = made(folder, slices, _append())
        if len(states) < 3:
            return
        wanted = sides(workspace, states, at)
        found = row_diff.compare_rows(workspace.odf, wanted, ["station"], Reporter())
        state, after = dict(states[at[0]][1]), states[at[1]][1]
        before = dict(state)
        changelog = {row["offset"]: row for row in Scan.of_dataset(wanted.new.dataset).to_arrow().to_pylist()}
        for row in pq.read_table(found.file).to_pylist():
            for side, without in (("old", "added"), ("new", "removed")):
                offset = row[f"{side}_offset"]
                assert (offset is None) == (row["change"] == without)
                if offset is not None:
                    stored = changelog[offset]
                    assert (stored["station"], stored["floor"]) == (row["station"], row[f"{side}_floor"])
                    assert stored["op"] in (A, C_TO)
            station, old, new = (
                row["station"],
                (row["old_floor"], row["old_tags"]),
                (row["new_floor"], row["new_tags"]),
            )
            assert (row["change"] == "added") == (station not in before)
            if row["change"] != "added":
                assert state.pop(station) == old != new or row["change"] == "removed"
            if row["change"] != "removed":
                state[station] = new
        assert state == after
        assert found.unchanged == sum(before[key] == after[key] for key in before.keys() & after.keys())
        counts = found.added, found.removed, found.changed
        assert counts[0] - counts[1] == len(after) - len(before)


@settings(max_examples=8, deadline=None, phases=PHASES)
@given(SLICES, SLICES, st.permutations([0, 1, -1]), st.booleans())
def test_diff_of_whole_rows_turns_the_old_rows_into_the_new(
    slices: Sequence[Any], others: Sequence[Any], at: Sequence[int], two: bool
) -> None:
    """Also of two datasets, where one is read from its beginning."""
    with tempfile.TemporaryDirectory() as folder:
        workspace, states = made(folder, slices, _append())
        if len(states) < 3:
            return
        wanted, after = sides(workspace, states, at), states[at[1]][1]
        if two:
            entry = workspace.create_dataset(DatasetAlias.parse("others"), DatasetKind.Root, [], START)
            state: State = {}
            if changes := [change for edits in others for change in edited(state, edits)]:
                put(_append(), entry, rows(changes))
            wanted, after = resolve_sides(workspace, "stations", "others", states[at[0]][0]), state
        found = row_diff.compare_rows(workspace.odf, wanted, [], Reporter())
        before = states[at[0]][1]
        counter = Counter(_hashable(key, value) for key, value in before.items())
        for row in pq.read_table(found.file).to_pylist():
            key = _hashable(row["station"], (row["floor"], row["tags"]))
            counter[key] += 1 if row["change"] == "added" else -1
        assert +counter == Counter(_hashable(key, value) for key, value in after.items())
        assert not -counter
        assert found.unchanged + found.removed == len(before)


def _hashable(station: str | None, value: tuple[int | None, Any]) -> str:
    return repr((station, *value))


def _append() -> Append:
    from tests.workspace import conftest

    return conftest.append.__wrapped__()  # type: ignore[attr-defined]


@settings(max_examples=25, deadline=None, phases=PHASES)
@given(st.data())
def test_values_of_all_types_are_compared_by_their_bits_and_kept(data: st.DataObject) -> None:
    data_type = data.draw(st.sampled_from([each for each in VALUES if each != pa.null()]))
    values = st.lists(st.none() | VALUES[data_type], min_size=1, max_size=6)
    before, after = data.draw(values), data.draw(values)
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace.init(Path(folder) / "ws")
        texts: list[list[object]] = []
        for name, cells in (("old", before), ("new", after)):
            columns = {"event_time": pa.array([0] * len(cells), pa.timestamp("ms", "UTC"))}
            columns["cell"] = pa.array(cells, data_type)
            keyed = workspace.create_dataset(DatasetAlias.parse(name), DatasetKind.Root, [], START)
            put(_append(), keyed, pa.table({**columns, "id": range(len(cells))}))
            whole = workspace.create_dataset(DatasetAlias.parse(f"{name}-cells"), DatasetKind.Root, [], START)
            put(_append(), whole, pa.table(columns))
            stored = Scan.of_dataset(whole.dataset).to_arrow()  # some times have another unit
            texts.append(list(map(bits, plain(stored.column("cell")))))
        found = row_diff.compare_rows(
            workspace.odf, resolve_sides(workspace, "old", "new"), ["id"], Reporter()
        )
        table = pq.read_table(found.file)
        pairs = list(zip_longest(*texts, fillvalue=repr(None)))
        both = min(len(before), len(after))
        differ = [at for at, (old, new) in enumerate(pairs) if at >= both or old != new]
        assert table.column("id").to_pylist() == differ
        for side, name in enumerate(("old_cell", "new_cell")):
            assert list(map(bits, plain(table.column(name)))) == [pairs[at][side] for at in differ]
        assert (found.changed, found.unchanged) == (sum(at < both for at in differ), len(pairs) - len(differ))
        cells = changed_cells(table, found.columns)["cell"].to_pylist()
        assert cells == [at < both for at in differ]
        sides = resolve_sides(workspace, "old-cells", "new-cells")
        table = pq.read_table(row_diff.compare_rows(workspace.odf, sides, [], Reporter()).file)
        rows = Counter(
            zip(table.column("change").to_pylist(), map(bits, plain(table.column("cell"))), strict=True)
        )
        old, new = map(Counter, texts)
        removed = {("removed", cell): times for cell, times in (old - new).items()}
        assert rows == {**removed, **{("added", cell): times for cell, times in (new - old).items()}}
        if not pa.types.is_nested(data_type):
            order = pc.sort_indices(table.column("cell").combine_chunks())
            assert table.take(order).column("cell").to_string() == table.column("cell").to_string()


def plain(column: pa.ChunkedArray) -> list[Any]:
    return python_values(decode_array(column.combine_chunks()))


def two_datasets(workspace: Workspace, append: Append) -> DatasetEntry:
    """Two datasets without a key, whose rows are read while they are compared."""
    other = workspace.create_dataset(DatasetAlias.parse("others"), DatasetKind.Root, [], START)
    entry = workspace.create_dataset(DatasetAlias.parse("stations"), DatasetKind.Root, [], START)
    for dataset, floor in ((other, 1), (entry, 2)):
        put(append, dataset, rows([(A, f"station {at}", floor, None) for at in range(40_000)]))
    return entry


@pytest.mark.parametrize("stage", ["read older", "read newer", "write"])
def test_cancelled_comparison_leaves_no_files(workspace: Workspace, append: Append, stage: str) -> None:
    two_datasets(workspace, append)
    reporter = Reporter()
    with (
        mock.patch.object(reporter, "phase", lambda name: reporter.cancel() if name == stage else None),
        pytest.raises(Cancelled),
    ):
        differs(workspace, "others", "stations", reporter=reporter)
    assert not list((workspace.odf / "cache" / "differences").iterdir())


def test_damaged_slice_is_named(workspace: Workspace, append: Append) -> None:
    entry = two_datasets(workspace, append)
    (path,) = (entry.dataset.folder / "data").iterdir()
    raw = bytearray(path.read_bytes())
    raw[4 : len(raw) // 2] = bytes(len(raw) // 2 - 4)
    path.chmod(0o600)
    path.write_bytes(raw)
    with pytest.raises(BadData) as caught:
        differs(workspace, "others", "stations")
    assert path.name[5:13] in str(caught.value.where) and "odf verify" in str(caught.value.hint)
    assert not list((workspace.odf / "cache" / "differences").iterdir())


def test_full_disk_is_an_error_without_a_file(workspace: Workspace, append: Append) -> None:
    @contextmanager
    def open_on_full_disk(folder: Path, reporter: Reporter, _: int) -> Iterator[Database]:
        with open_database(folder, reporter, 8 << 20) as database:
            database.execute("SET max_temp_directory_size = '1KiB'")
            yield database

    two_datasets(workspace, append)
    with (
        mock.patch.object(row_diff, "open_database", open_on_full_disk),
        pytest.raises(OdfError, match="cannot be grouped or sorted") as caught,
    ):
        differs(workspace, "others", "stations")
    assert "free disk space" in str(caught.value.hint)
    assert not list((workspace.odf / "cache" / "differences").iterdir())


def test_duplicate_rows_are_counted(workspace: Workspace, append: Append) -> None:
    entry = workspace.create_dataset(DatasetAlias.parse("stations"), DatasetKind.Root, [], START)
    put(append, entry, rows([(A, "a", 1, None)] * 5 + [(A, "b", 1, None)]))
    put(append, entry, rows([(R, "a", 1, None)] * 3 + [(A, "b", 1, None)] * 20_000))
    found = differs(workspace)
    assert (found.added, found.removed, found.unchanged, found.rows) == (20_000, 3, 3, 20_003)
    assert Counter(row["change"] + row["station"] for row in found_rows(found)) == {
        "addedb": 20_000,
        "removeda": 3,
    }
    offsets = {(row["change"], row["old_offset"], row["new_offset"]) for row in found_rows(found)}
    assert offsets == {("added", None, 20_008), ("removed", None, 8)}  # the newest of equal rows
