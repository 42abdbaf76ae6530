"""Tests of pane 3: rows of all slices, columns, search, sorting, filters, marks and copies."""

from __future__ import annotations

import datetime
import json
import os
import shutil
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from odf_engine.api import JobState, Query
from odf_engine.api.readers.row_window import StoredWindow
from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.base.progress import Reporter
from odf_engine.chain.dataset import Dataset
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.parquet.slice_rows import SliceProperties
from odf_engine.data.parquet.slices import slice_schema, write_slice
from odf_engine.errors import BadData, UsageError
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import AddData, DatasetKind, DataSlice, SetDataSchema
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.workspace import Workspace
from odf_tui.panes.data.derived_rows import (
    RowSelection,
    filter_rows,
    find_matches,
    find_next_match,
    loaded_range,
    sorted_rows,
)
from odf_tui.panes.data.row_dialogs import RowTarget, parse_row_target
from odf_tui.text.format import Span
from odf_tui.text.row_text import TableWindow, pretty_json, read_chunk, read_record
from odf_tui.text.values import column_texts
from odf_tui.widgets.row_table import ColumnArrangement, MarkedRows, RowTable, load_window
from tests.sync.linked import add_object, add_rows, make_linked
from tests.tui.conftest import Driven, driven
from tests.tui.data_screen import DataDriver, GeneratedRows, rows_shown, show_window, write_rows
from tests.tui.haven import AIR, SYSTEM
from tests.tui.scripted_worker import Scenario

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
HOUR = 3_600_000
PLACES = ["Quay", "Old Town", "Lighthouse Hill", "Fish Market"]


def compare(drive: Driven, name: str) -> None:
    """Compare the panes, without the lines below them, with a golden picture."""
    lines = drive.text().splitlines()
    path, text = GOLDEN / f"data-{name}.txt", "\n".join(lines[:-2]) + "\n"
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def append(dataset: Dataset, table: pa.Table) -> None:
    """Commit a table as the next slice."""
    state = dataset.state()
    schema = slice_schema(table.schema, state.vocabulary)
    now = Timestamp.parse("2031-03-12T03:33:20Z")
    if state.schema != encode_schema(schema):
        dataset.commit([SetDataSchema(encode_schema(schema))], system_time=now, expected_head=state.head)
    written = write_slice(
        table.to_batches(),
        SliceProperties(
            schema=schema,
            vocab=state.vocabulary,
            first_offset=0 if state.last_offset is None else state.last_offset + 1,
            system_time=now,
            fallback_event_time=now,
        ),
        path=dataset.staging_path("data"),
        reporter=Reporter(),
    )
    assert written is not None
    data = DataSlice(written.logical_hash, written.physical_hash, written.offset_interval, written.size)
    event = AddData(prev_offset=state.last_offset, new_data=data, new_watermark=written.max_event_time)
    dataset.commit([event], system_time=now, expected_head=dataset.head(), data=written.path)


def typed(start: int, count: int) -> pa.Table:
    """Return rows with one column of each type. The values follow from the row numbers."""
    rows = range(start, start + count)
    payload = [
        json.dumps({"id": n, "readings": [n, n + 0.5], "note": "a text that is long " * 3}) for n in rows
    ]
    return pa.table(
        {
            "event_time": pa.array([1_709_251_200_000 + n * HOUR for n in rows], pa.timestamp("ms", "UTC")),
            "station": pa.array([PLACES[n % 4] for n in rows]),
            "reading": pa.array([None if n % 7 == 3 else n * 1.25 for n in rows]),
            "open": pa.array([None if n % 5 == 4 else n % 2 == 0 for n in rows]),
            "day": pa.array([datetime.date(2024, 1, 1) + datetime.timedelta(days=n % 90) for n in rows]),
            "price": pa.array([Decimal(n * 1001) / 100 for n in rows], pa.decimal128(12, 2)),
            "tags": pa.array([["north", "wind"][: n % 3] for n in rows]),
            "sensor": pa.array([{"maker": "Harbour", "port": n} for n in rows]),
            "payload": pa.array(payload),
            "raw": pa.array([bytes(range(n % 16, n % 16 + 6)) for n in rows], pa.binary()),
        }
    )


@pytest.fixture(scope="session")
def harbour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with twelve slices of 25 rows."""
    workspace = Workspace.init(tmp_path_factory.mktemp("stored") / "harbour")
    made = workspace.create_dataset(DatasetAlias.parse("rows"), DatasetKind.Root).dataset
    for start in range(0, 300, 25):
        append(made, typed(start, 25))
    return workspace.folder


@pytest.fixture
def dataset(tmp_path: Path, harbour: Path) -> Dataset:
    """A copy of the dataset with twelve slices of 25 rows."""
    shutil.copytree(harbour, tmp_path / "stored")
    return Workspace(tmp_path / "stored").resolve("rows").dataset


def stored(dataset: Dataset) -> StoredWindow:
    """Open the rows as the opened does."""
    source = OpenWorkspace(Workspace(dataset.folder.parents[2]))
    window = source.rows(str(source._workspace.resolve("rows").id))
    assert window is not None
    assert isinstance(window, StoredWindow)
    return window


def border(drive: Driven) -> str:
    """Return both borders of the pane."""
    pane = drive.data_pane
    return f"{pane._border_title}\n{pane._border_subtitle}"


async def test_the_preview_reads_only_what_it_shows(source: Scenario) -> None:
    rows = GeneratedRows(10_000_000)
    show_window(source, rows)
    async with rows_shown(source) as drive:
        view = drive.data_pane.view
        await drive.press("G")
        await drive.until(lambda: "9999999" in drive.text())
        assert view.cursor == 9_999_999
        assert sum(count for _, count in rows.read) <= 2000
        assert "row 10 000 000 of 10 000 000" in drive.text()
        await drive.press("pageup", "pageup", "l", "l", "l", "l", "l")
        assert view.column == 5
        await drive.press("g")
        assert view.cursor == 0


async def test_moving_the_cursor_repaints_two_lines(
    source: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rows_shown(source) as drive:
        await drive.press("j")
        drawn: list[int] = []
        spans = RowTable.spans

        def watched(self: RowTable, index: int) -> Sequence[Span]:
            drawn.append(index)
            return spans(self, index)

        monkeypatch.setattr(RowTable, "spans", watched)
        await drive.press("j")
        assert sorted(drawn) == [1, 2]
        await drive.press("l")
        assert sorted(drawn) == [1, 2, 2]


async def test_slices_are_marked_and_can_be_reached(source: Scenario, dataset: Dataset) -> None:
    show_window(source, stored(dataset))
    async with rows_shown(source, (160, 50)) as drive:
        view = drive.data_pane.view
        lines = drive.text().splitlines()
        assert lines[2].startswith("│▌     0 ") and lines[27].startswith("│┌    25 ")
        assert lines[3].startswith("│      1 ")
        assert "row 1 of 300 · offset uint64 · slice 1 of 12 · block 2" in border(drive)
        await drive.press("right_square_bracket", "right_square_bracket", "j")
        assert view.cursor == 51 and "slice 3 of 12 · block 4" in border(drive)
        await drive.press("left_square_bracket")
        assert view.cursor == 50
        await drive.press("left_square_bracket")
        assert view.cursor == 25


async def test_a_missing_slice_leaves_the_others_readable(source: Scenario, dataset: Dataset) -> None:
    dataset.slice_path(dataset.slices()[1]).unlink()
    show_window(source, stored(dataset))
    async with rows_shown(source, (160, 50)) as drive:
        text = drive.text()
        assert "· slice" in text and "slice is missing" in text
        assert sum("│ ·" in line for line in text.splitlines()) == 20
        await drive.press("right_square_bracket")
        assert "cannot be read: press v to verify the dataset" in border(drive)
        await drive.press("enter")
        assert "slice is missing" in drive.hint()
        await drive.press("right_square_bracket")
        assert drive.data_pane.view.value(50, 4) == "Lighthouse Hill"
        await drive.press("less_than_sign")
        assert "275 of 300" not in border(drive) and drive.data_pane.view.count() == 275


async def test_unreadable_rows_are_reported(source: Scenario) -> None:
    rows = GeneratedRows(7200)
    show_window(source, rows)
    async with rows_shown(source) as drive:
        rows.error = BadData("the slice cannot be read", where="slice abcd1234 (block 7)")
        await drive.press("G")
        await drive.until(lambda: "slice abcd1234 (block 7): the slice cannot be read" in drive.hint())
    async with rows_shown(source) as drive:
        assert "the slice cannot be read" in drive.text()


async def test_appended_rows_keep_the_cursor(source: Scenario, dataset: Dataset) -> None:
    show_window(source, stored(dataset))
    async with rows_shown(source) as drive:
        await drive.press("G", "k", "l", "l")
        pane = drive.data_pane
        append(dataset, typed(300, 25))
        pane.show(AIR, load_window(stored(dataset)))
        await drive.settle()
        assert (pane.view.count(), pane.view.cursor, pane.view.column) == (325, 298, 2)
        assert "slice 12 of 13" in border(drive) and pane.view.value(299, 4) == "Fish Market"
        await drive.press("G")
        assert pane.view.value(324, 4) == "Quay"


async def test_hidden_columns_at_the_sides_are_indicated(source: Scenario) -> None:
    async with rows_shown(source, (80, 24)) as drive:
        header = drive.text().splitlines()[1]
        assert "›" in header and "‹" not in header
        await drive.press(*"llllllll")
        header = drive.text().splitlines()[1]
        assert header.startswith("│‹offset") and "›" not in header
        assert "remark" in header
        assert "row 1 of 7 200 · remark string" in border(drive)
        await drive.resize(40, 24)
        await drive.until(lambda: border(drive).endswith("\nrow 1 of 7 200 · remark string"))
        await drive.resize(30, 24)
        await drive.until(lambda: border(drive).endswith("\nrow 1 of 7 200"))


async def test_cells_are_exact_and_printable(source: Scenario) -> None:
    async with rows_shown(source, (160, 50)) as drive:
        text = drive.text()
        assert all(code in text for code in ("+A", "-R", "-C", "+C"))
        assert "[red]s-00" in text
        assert "\x1b" not in text
        await drive.press("j", "j", "enter")
        record = drive.text()
        assert "Row 3 of 7 200" in record
        assert "a␉b␛[31m" in record
        assert "2024-03-01 02:00:00Z" in record


def test_cells_of_every_type_are_formatted() -> None:
    table = pa.table(
        {
            "offset": pa.array([1], pa.uint64()),
            "op": pa.array([3], pa.uint8()),
            "system_time": pa.array([1_709_251_200_123], pa.timestamp("ms", "UTC")),
            "event_time": pa.array([1_709_251_200_000], pa.timestamp("ms", "UTC")),
            "far": pa.array([253_402_300_800_000], pa.timestamp("ms")),
            "real": pa.array([40.7127837]),
            "bytes": pa.array([b"\x00\xff"]),
            "list": pa.array([[1, 2]]),
            "money": pa.array([Decimal("1.50")]),
            "yes": pa.array([True]),
            "nothing": pa.array([None], pa.string()),
        }
    )
    chunk = read_chunk(TableWindow(table, SYSTEM), 0, 1, range(len(table.column_names)))
    cells = {name: chunk.cell(0, index) for index, name in enumerate(table.column_names)}
    assert cells == {
        "offset": "1",
        "op": "+C",
        "system_time": "2024-03-01 00:00",
        "event_time": "2024-03-01",
        "far": "10000-01-01",
        "real": "40.7127837",
        "bytes": "0x00ff",
        "list": "[1, 2]",
        "money": "1.50",
        "yes": "true",
        "nothing": "∅",
    }
    assert column_texts(table.column("system_time")) == ["2024-03-01 00:00:00.123Z"]
    assert column_texts(table.column("nothing")) == [None]


async def test_decimal_points_and_nulls_are_aligned(source: Scenario) -> None:
    table = pa.table({"n": [1.5, 10.25, None, 3.0, 1e-7]})
    async with rows_shown(source, (80, 24)) as drive:
        pane = drive.data_pane
        pane.show_view(AIR, load_window(TableWindow(table, SYSTEM)), "numbers", "all of them", "test")
        rows = [line[2:8] for line in drive.text().splitlines()[2:7]]
        assert rows == [" 1.5  ", "10.25 ", "    ∅ ", " 3.0  ", "1e-07 "]


async def test_row_dialog_steps_through_rows_and_copies_values(source: Scenario, dataset: Dataset) -> None:
    show_window(source, stored(dataset))
    async with rows_shown(source, (80, 24)) as drive:
        copied = drive.screen.copied
        await drive.press("j", "l", "l", "l", "l", "enter")
        assert "Row 2 of 300" in drive.text()
        await drive.press("j", "j", "j", "y")
        assert copied[0] == ("day", "2024-01-02")
        await drive.press("J")
        await drive.press("y", "j", "j", "j", "y", "enter")
        assert copied[1] == ("day", "2024-01-03") and copied[2] == (
            "sensor",
            '{"maker": "Harbour", "port": 2}',
        )
        view = drive.data_pane.view
        assert (view.cursor, view.opened.columns.names[view.column]) == (2, "sensor")  # type: ignore[union-attr]
        await drive.press("enter")
        await drive.press(*"JJJJK")
        assert "Row 6 of 300" in drive.text()


@pytest.mark.complete
async def test_a_linked_object_is_saved(source: Scenario, tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path / "ws")
    entry = make_linked(workspace, "rows")
    add_rows(entry, [add_object(entry, b"census_a"), "damaged link"])
    opened, dataset = OpenWorkspace(workspace), str(entry.id)
    show_window(source, stored(entry.dataset))
    source.link_columns = lambda _: opened.link_columns(dataset)  # type: ignore[method-assign]
    source.export_object = (  # type: ignore[attr-defined]
        lambda _, link, target: opened.export_object(dataset, link, target)
    )
    file = tmp_path / "north.jpg"
    async with rows_shown(source, (120, 24)) as drive:
        await drive.press("enter")
        assert "o saves object" in drive.text()
        await drive.press("o")  # the cursor is on another column
        assert "Save object as" not in drive.text()
        await drive.press("G", "k", "o")
        assert "Save object as" in drive.text()
        await drive.press("enter")
        assert "missing file name" in drive.text()
        await drive.press(f"={file}", "enter")
        assert file.read_bytes() == b"census_a"
        assert drive.screen.notices[-1] == (f"saved as {file}", "good")
        await drive.press("J")
        await drive.press("o", f"={file}", "enter")
        assert "already exists" in drive.text()
        await drive.press(f"={file}2", "enter")
        assert drive.screen.notices[-1][1] == "bad" and not file.with_name("north.jpg2").exists()


def test_nested_json_and_binary_values_span_several_lines() -> None:
    text = '{"b": 1.10, "a": [1, {"x": "},:\\" é"}], "none": [], "empty": { }}'
    table = pa.table(
        {"j": [text], "s": [{"x": [1, 2]}], "b": [bytes(range(40))], "n": pa.nulls(1, pa.string())}
    )
    record = read_record(TableWindow(table, SYSTEM), 0, range(4))
    json_lines = list(record.values[0].lines)
    assert json_lines[:3] == ["{", '  "b": 1.10,', '  "a": [']
    assert (
        '      "x": "},:\\" é"' in json_lines
        and '  "none": [],' in json_lines
        and json_lines[-2] == '  "empty": {}'
    )
    assert json.loads("\n".join(json_lines)) == json.loads(text)
    assert list(record.values[1].lines) == ["{", '  "x": [', "    1,", "    2", "  ]", "}"]
    assert (
        record.values[2].lines[2].startswith("000020  20 21 22 23 24 25 26 27")
        and " !\"#$%&'" in record.values[2].lines[2]
    )
    assert record.values[3].text is None
    assert pretty_json("[broken") is None and pretty_json("5") is None
    assert record.values[0].text == text


@pytest.mark.parametrize(
    ("text", "spot"),
    [
        ("12 345", RowTarget(offset=12345)),
        ("#1 200", RowTarget(row=1199)),
        ("50%", RowTarget(percent=50.0)),
        ("2024-03-01", RowTarget(moment=datetime.datetime(2024, 3, 1, tzinfo=datetime.UTC))),
        ("2024-03-01 14:05", RowTarget(moment=datetime.datetime(2024, 3, 1, 14, 5, tzinfo=datetime.UTC))),
        (
            "2024-03-01T14:05:06Z",
            RowTarget(moment=datetime.datetime(2024, 3, 1, 14, 5, 6, tzinfo=datetime.UTC)),
        ),
    ],
)
def test_row_targets_are_parsed(text: str, spot: RowTarget) -> None:
    assert parse_row_target(text) == spot


@pytest.mark.parametrize("text", ["", "soon", "2024-13-01", "#", "%", "12a"])
def test_invalid_row_targets_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_row_target(text)


async def test_jump_accepts_offset_time_row_number_and_percentage(source: Scenario, dataset: Dataset) -> None:
    show_window(source, stored(dataset))
    async with rows_shown(source) as drive:
        view = drive.data_pane.view
        await drive.press("J")
        await drive.until(lambda: "0 … 299" in drive.text() and "2024-03-13 11:00:00Z" in drive.text())
        await drive.press("=170", "enter")
        assert view.cursor == 170
        await drive.press("J", "=2024-03-02 00:30", "enter")
        assert view.cursor == 25
        await drive.press("J", "=#3", "enter")
        assert view.cursor == 2
        await drive.press("J", "=50%", "enter")
        assert view.cursor == 150
        await drive.press("J", "=300", "enter")
        assert "there is no row with offset 300" in drive.text()
        await drive.press("=2025-01-01", "enter")
        assert "there is no row at or after 2025-01-01 00:00:00" in drive.text()
        await drive.press("=#9", "enter")
        assert view.cursor == 8


async def test_search_goes_from_match_to_match(source: Scenario) -> None:
    async with rows_shown(source) as drive:
        pane = drive.data_pane
        await drive.press("j", "j", "j")
        await drive.search("lighthouse")
        assert (pane.view.cursor, pane.view.column) == (6, 4)
        assert pane.view.count() == 7200 and "/lighthouse" in border(drive)
        await drive.press("n", "n", "N")
        assert pane.view.cursor == 10
        await drive.press("G", "n")
        assert pane.view.cursor == 2 and "search continued at the first row" in drive.hint()
        await drive.press("N")
        assert pane.view.cursor == 7198
        await drive.press("escape")
        await drive.search("nowhere")
        assert "nowhere not found in 7 200 rows" in drive.hint()
        assert pane.view.cursor == 7198
        await drive.press("escape")
        assert pane.filter == ""
        rows = GeneratedRows(7200)
        show_window(source, rows)
        pane.show(AIR, load_window(rows))
        rows.error = BadData("the slice cannot be read", where="slice abcd1234 (block 7)")
        await drive.search("quay")
        assert "slice abcd1234 (block 7): the slice cannot be read" in drive.hint()


async def test_a_long_search_shows_progress_and_can_be_cancelled(source: Scenario) -> None:
    show_window(source, GeneratedRows(10_000_000))
    async with rows_shown(source) as drive:
        pane = drive.data_pane
        pane.set_filter("zzz")
        await drive.until(lambda: " of 10 000 000 rows · esc cancels" in border(drive))
        await drive.press("escape")
        assert not pane.filter and "row 1 of 10 000 000" in border(drive)


def test_search_scans_all_rows_and_counts_them() -> None:
    table = pa.table({"n": pa.array(range(200_000)), "word": pa.array(["Smoke", "wind"] * 100_000)})
    window = TableWindow(table, SYSTEM)
    assert list(find_next_match(window, "199999", 0, [0, 1], back=False))[-1] == ((199_999, 0), 200_000)
    assert list(find_next_match(window, "smoke", 99, [0, 1], back=False)) == [((100, 1), 65_536)]
    assert list(find_next_match(window, "smoke", 99, [0, 1], back=True)) == [((98, 1), 100)]
    assert list(find_next_match(window, "wind", 0, [0, 1], back=True))[-1][0] == (199_999, 1)
    assert [place for place, _ in find_next_match(window, "777777", 5, [0], back=False)] == [None] * 5
    *_, (found, scanned) = find_matches(window, "smoke", [0, 1], 10)
    assert (sum(len(each) for each in found), scanned) == (10, 65_536)
    *_, (found, scanned) = find_matches(window, "19999", [0, 1], 100)
    assert (pa.concat_arrays(found).to_pylist()[:2], scanned) == ([19_999, 119_999], 200_000)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("2024-03-02", list(range(24, 48))),
        ("2024-03-02 05:00", [29]),
        ("2024-03", list(range(300))),
        ("04:00:00", [4 + 24 * day for day in range(13) if 4 + 24 * day < 300]),
        ("FISH", list(range(3, 300, 4))),
        ("0x0304", list(range(3, 300, 16))),
        ('"port": 17}', [17]),
        ("366.25", [293]),
        ("wind", list(range(2, 300, 3))),
        ("é", []),
    ],
)
def test_search_finds_values_of_every_type(text: str, rows: list[int]) -> None:
    window = TableWindow(typed(0, 300).drop_columns(["payload", "day"]), SYSTEM)
    *_, (found, scanned) = find_matches(window, text, range(len(window.columns)), 1000)
    assert scanned == 300 and [row for part in found for row in part.to_pylist()] == rows


async def test_columns_are_hidden_moved_and_frozen(source: Scenario) -> None:
    async with rows_shown(source, (160, 50)) as drive:
        pane = drive.data_pane
        await drive.press("l", "l", "H", "H")
        header = drive.text().splitlines()[1]
        assert "system_time" not in header and "event_time" not in header and "station" in header
        assert pane.view.opened.columns.names[pane.view.column] == "station"  # type: ignore[union-attr]
        await drive.press("F", "c")
        assert "event_time" in drive.text() and "frozen" in drive.text()
        await drive.press("G", "K", "K", "space", "escape")
        assert pane.arrangement(AIR) == {
            "order": [
                "offset",
                "op",
                "system_time",
                "event_time",
                "station",
                "pm25",
                "remark",
                "no2",
                "sensor",
            ],
            "hidden": ["system_time", "event_time", "remark"],
            "frozen": "station",
        }
        pane.show(AIR, load_window(GeneratedRows(7300)))
        await drive.settle()
        assert "event_time" not in drive.text()
        await drive.press("c", "r", "escape")
        assert pane.arrangement(AIR) == {} and "event_time" in drive.text()


def test_an_arrangement_applies_to_a_changed_schema() -> None:
    choice = {"order": ["c", "gone", "a", "b"], "hidden": ["b", "gone"], "frozen": "c"}
    found = ColumnArrangement(["a", "b", "c", "new"], 2, choice)
    assert (found.frozen_columns, found.scrolling_columns) == ([2], [0, 3])
    assert found.choice()["hidden"] == ["b"]
    assert ColumnArrangement(["a"], 0, {"hidden": ["a"]}).shown == [0]
    assert ColumnArrangement(["a", "b"], 2, {"frozen": ""}).frozen_columns == []


def test_columns_hidden_by_default_are_not_saved_as_choice() -> None:
    found = ColumnArrangement(["a", "b", "c"], 2, None, [0, 2])
    assert (found.shown, found.choice()) == ([1], {})
    found.toggle(0)
    found.toggle(2)
    assert found.choice() == {"hidden": []}  # all columns, also in the next session
    assert ColumnArrangement(["a", "b", "c"], 2, {"hidden": []}, [0, 2]).shown == [0, 1, 2]
    assert ColumnArrangement(["a"], 0, None, [0]).shown == [0]


@pytest.mark.complete
async def test_sorting_states_its_rows_and_can_be_left(source: Scenario, dataset: Dataset) -> None:
    show_window(source, stored(dataset))
    async with rows_shown(source, (160, 50)) as drive:
        pane, view = drive.data_pane, drive.data_pane.view
        await drive.press(*"llllljjj", "greater_than_sign")
        assert "sorted: rows 1–300 of 300" in border(drive) and "by reading, descending" in border(drive)
        assert [view.value(row, 5) for row in (0, 1)] == ["373.75", "372.5"]
        await drive.press("less_than_sign")
        assert [view.value(row, 5) for row in (0, 1)] == ["0.0", "1.25"]
        await drive.press("G")
        assert view.value(299, 5) == "∅"
        await drive.press("g", "j", "enter")
        assert "Row 2 of 300" in drive.text()
        await drive.press("escape", "escape")
        assert (view.cursor, view.column, pane.front_view) == (3, 5, None)
        assert "300 rows" in border(drive)


async def test_all_rows_of_a_long_dataset_are_sorted_and_filtered_by_queries(source: Scenario) -> None:
    show_window(source, GeneratedRows(10_000_000))

    async def end_query(drive: DataDriver, sql: str, rows: int) -> None:
        await drive.until(lambda: len(source.known) > len(queries))
        assert isinstance(request := source.link.submitted[-1], Query)
        assert (request.sql, request.engine) == (sql, "duckdb")
        queries.append(sql)
        path = str(Path(write_rows(source, rows)).relative_to(source.folder))
        result = json.dumps({"path": path, "rows": rows, "truncated": rows > 100})
        source.link.tell(source.changed(replace(source.known[-1], state=JobState.done, result=result)))

    queries: list[str] = []
    async with rows_shown(source) as drive:
        column = drive.data_pane.view.opened.columns.names[4]  # type: ignore[union-attr]
        await drive.press("l", "l", "l", "l", "less_than_sign")
        order = f'SELECT * FROM "port-haven.air-readings" ORDER BY "{column}"'
        await end_query(drive, f"{order} ASC NULLS LAST", 70)
        await drive.until(lambda: "sorted · 70 rows" in border(drive))
        await drive.press("greater_than_sign")  # replaces the view
        await end_query(drive, f"{order} DESC NULLS LAST", 120)
        await drive.until(lambda: "sorted · 120 rows" in border(drive) and "truncated" in border(drive))
        await drive.press("escape", "j", "j", "f", "l")
        value = f'(SELECT "{column}" FROM "port-haven.air-readings" WHERE "offset" = 2)'
        await end_query(drive, f'SELECT * FROM "port-haven.air-readings" WHERE "{column}" < {value}', 30)
        await drive.until(lambda: "filtered · 30 rows" in border(drive))
        await drive.press("less_than_sign")  # few rows are sorted here
        await drive.until(lambda: "sorted: rows 1–30 of 30" in border(drive))
    assert loaded_range(10_000_000, 9_999_999) == (9_900_000, 10_000_000)
    assert loaded_range(10_000_000, 5_000_000) == (4_950_000, 5_050_000)
    assert loaded_range(70, 3) == (0, 70)


async def test_rows_are_filtered_by_a_value(source: Scenario, dataset: Dataset) -> None:
    show_window(source, stored(dataset))
    async with rows_shown(source, (160, 50)) as drive:
        pane, view = drive.data_pane, drive.data_pane.view
        await drive.press(*"llllj", "f", "f")
        assert "filtered: 75 of rows 1–300 of 300" in border(drive)
        assert view.value(1, 0) == "5"
        await drive.press("l", "j", "f", "g")
        assert "filtered: 62 of 75 of rows 1–300 of 300" in border(drive)
        await drive.press("greater_than_sign")
        assert "sorted: 62 of 75" in border(drive) and view.value(0, 5) == "366.25"
        await drive.press("escape", "escape", "escape")
        assert pane.front_view is None and (view.cursor, view.column) == (1, 4)
        await drive.search("old town")
        await drive.press("f", "m")
        assert "filtered: 75 of 300 rows" in border(drive)
        await drive.press("G", "o")
        assert (pane.front_view, view.cursor, view.column) == (None, 297, 4)
        await drive.press("o")
        assert "all rows are already shown" in drive.hint()


def test_columns_of_every_type_can_be_sorted_and_filtered() -> None:
    table = typed(0, 300)
    window = TableWindow(table, SYSTEM)
    for column, name in enumerate(table.column_names):
        order = sorted_rows(window, 0, 300, column, down=False).to_pylist()
        assert sorted(order) == list(range(300))
        values = table.column(name).to_pylist()
        same = filter_rows(window, 0, 300, column, "equal", 8).to_pylist()
        assert same == [row for row in range(300) if values[row] == values[8]]
        other = filter_rows(window, 0, 300, column, "other", 8).to_pylist()
        assert sorted([*same, *other]) == list(range(300))
    assert len(filter_rows(window, 0, 300, 2, "null", 0)) == 43
    picked = RowSelection(RowSelection(window, pa.array([5, 299, 7])), pa.array([2, 0]))
    assert picked.window(0, 9)["station"].to_pylist() == ["Fish Market", "Old Town"]


async def test_marked_rows_are_copied(source: Scenario, dataset: Dataset) -> None:
    show_window(source, stored(dataset))
    async with rows_shown(source, (160, 50)) as drive:
        pane = drive.data_pane
        copied = drive.screen.copied
        await drive.press("j", "space", "j", "j", "space", "j", "j", "space", "space")
        assert pane.marked_ranges() == [(1, 4), (5, 6)] and "4 marked" in border(drive)
        await drive.press("l", "l", "H", "H", "Y", "Y")
        assert copied[0][0] == "4 rows"
        lines = copied[0][1].splitlines()
        assert lines[0].startswith("offset\top\tstation\treading") and len(lines) == 5
        assert lines[1].split("\t")[:4] == ["1", "0", "Old Town", "1.25"]
        await drive.press("Y", "j")
        first = json.loads(copied[1][1].splitlines()[0])
        assert first["station"] == "Old Town" and first["open"] is False and first["tags"] == ["north"]
        await drive.press("escape", "y")
        assert pane.marked_ranges() == []
        assert copied[2] == ("cell", "Old Town")


def test_marked_ranges_merge_and_split() -> None:
    marks = MarkedRows()
    for row in (5, 2, 6, 9):
        marks.toggle_range(row)
    assert marks.ranges == ((2, 10),) and marks.anchor is None
    marks.toggle_range(4)
    assert marks.ranges == ((2, 4), (5, 10)) and marks.count == 7
    assert marks.clear() and not marks.clear()


@pytest.mark.app
async def test_keys_browse_rows_in_the_workstation(source: Scenario, dataset: Dataset) -> None:
    """Key by key through a table, a record, its columns, a filter and a search.

    Golden pictures, of two sizes: the table with marks of slices and cut columns; a record over many lines;
    the dialog of columns; filtered and sorted rows with both borders.
    """
    show_window(source, stored(dataset))
    async with driven(source, (80, 24)) as drive:
        pane, view = drive.data_pane, drive.data_pane.view
        await drive.press("3", "z", *"jjjllll")
        for size in ((80, 24), (160, 50)):
            name = f"{size[0]}x{size[1]}"
            await drive.resize(*size)
            await drive.settle()
            compare(drive, f"{name}-table")
            await drive.press("enter")
            await drive.press("G", "k")
            compare(drive, f"{name}-record")
            await drive.press("escape", "c")
            compare(drive, f"{name}-columns")
            await drive.press("escape", "h", "h", "h", "h", "f", "f")
            await drive.press("less_than_sign")
            compare(drive, f"{name}-sorted")
            await drive.press("escape", "escape")
            assert (pane.front_view, view.cursor) == (None, 3)
            await drive.press(*"hhhhhhhllll")
        await drive.pilot.click("#rows", offset=(drive.text().splitlines()[1].index("reading"), 7))
        assert (view.cursor, view.column) == (6, 5)
        assert "/ search" in drive.hint()
        await drive.press("slash")
        assert "text to search for in all rows" in drive.text()
        await drive.press("=fish", "enter", "n")
        assert (view.cursor, drive.pane, pane.filter) == (11, "data", "fish")
        await drive.press("escape", "space", "y", "escape")
        assert (pane.filter, pane.marked_ranges(), drive.pane) == ("", [], "data")
        assert drive.hint().startswith(" cell: ")
