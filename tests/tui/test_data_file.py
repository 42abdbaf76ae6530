"""New datasets from data files: samples, inferred keys, manifests, and the dialog."""

from __future__ import annotations

import gzip
import json
import re
import threading
import zipfile
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from textual.widgets import Input

from odf_engine.base import settings
from odf_engine.base.config import FetchConfig
from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData, Cancelled, NotFound, SourceUnavailable
from odf_engine.ingest.inference.file_inference import FileChoices, InferredFile
from odf_engine.ingest.inference.file_manifest import manifest_text
from odf_engine.ingest.inference.file_sample import (
    FileSample,
    download_sample,
    infer_file,
    load_sample,
    read_sample,
)
from odf_engine.ingest.inference.table_collection import list_archive
from odf_engine.metadata.yaml import read_manifests
from odf_tui.features.definitions.controller import DefinitionsController
from odf_tui.features.definitions.file_dialog import (
    DataFileDialog,
    ImportedFile,
    ParsedRows,
    RawLines,
)
from odf_tui.features.definitions.manifest_dialogs import DataFilePicker, MemberPicker
from odf_tui.panes.datasets.view import GraphView
from odf_tui.widgets.dialogs import DecisionDialog, PickerDialog, PromptDialog
from tests.tui.context import Fakes
from tests.tui.scripted_worker import Scenario
from tests.tui.waiting import press, until
from tests.tui.widget_app import shown


def infer(folder: Path, name: str, content: str | bytes, **choices: Any) -> InferredFile:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    found = infer_file(read_sample(path, name, Reporter()), FileChoices(**choices), Reporter())
    read_manifests(manifest_text(name, "a", found), name)
    return found


@pytest.mark.parametrize(
    ("text", "time", "key", "merge", "reason"),
    [
        ("name,id\na,1\nb,2\n", "", ("id",), "Snapshot", "unique in 2 rows"),
        ("plz,n\n01,1\n02,1\n", "", ("plz",), "Snapshot", "unique in 2 rows"),
        ("day,n\n2024-01-01,1\n2024-01-02,1\n", "day", ("day",), "Ledger", "unique in 2 rows"),
        ("day,station,n\n2024-01-01,a,1\n2024-01-01,b,1\n2024-01-02,a,1\n2024-01-02,b,1\n",
         "day", ("day", "station"), "Ledger", "unique together in 4 rows"),
        ("x,y\na,1\na,1\n", "", (), "Append", "a row occurs more than once"),
        ("x,y\n1.5,2.5\n1.5,3.5\n", "", (), "Append", "no key of up to 3 columns"),
        ("x,id\na,1\n", "", (), "Append", "one row does not show"),
    ],
)  # fmt: skip
def test_primary_key_and_merge_strategy_are_inferred(
    tmp_path: Path, text: str, time: str, key: tuple[str, ...], merge: str, reason: str
) -> None:
    found = infer(tmp_path, "a.csv", text)
    assert (found.time, found.key, found.merge) == (time, key, merge)
    assert reason in found.reason
    advice = "UpsertStream for a file that" in manifest_text("a.csv", "a", found)
    assert advice == bool(time and key)


def test_chosen_keys_are_checked(tmp_path: Path) -> None:
    text = "x,y,n\na,1,1\na,2,1\n"
    assert infer(tmp_path, "a.csv", text, key=("x",)).reason == "NOT unique: a occurs more than once"
    found = infer(tmp_path, "a.csv", text, key=("x", "y"), merge="Append")
    assert (found.reason, found.merge) == ("unique in 2 rows", "Append")


@pytest.mark.parametrize(
    ("data", "encoding", "bad"),
    [
        ("name\nGröße\n".encode(), "", []),
        ("\ufeffname\nGröße\n".encode(), "", []),
        ("name\nGröße\n".encode("latin-1"), "ISO-8859-1", []),
        ("name\n„Größe“\n".encode("cp1252"), "windows-1252", []),
        ("name\nGröße\n".encode("utf-16"), "utf-16", []),
        ("name\nGröße\n".encode("utf-16-le"), "utf-16", []),
        (("name\n" + "Größe\n" * 5).encode() + b"Gr\xf6\xdfe\n", "", [7]),
    ],
)
def test_text_encoding_is_detected(tmp_path: Path, data: bytes, encoding: str, bad: list[int]) -> None:
    found = infer(tmp_path, "a.csv", data)
    assert found.encoding == encoding
    assert [row.line for row in found.bad_rows] == bad
    assert found.columns[0].name == "name"
    assert "Größe" in (found.rows[0][1][0] or "")


def test_ndjson_geojson_parquet_and_archives_are_inferred(tmp_path: Path) -> None:
    lines = '{"id":1,"at":"31/01/2024"}\n{"id":2,\n{"id":3,"at":null,"tags":["x"]}\n[]\n'
    found = infer(tmp_path, "a.ndjson", lines)
    assert [(row.line, row.reason[:12]) for row in found.bad_rows] == [
        (2, "invalid JSON"),
        (4, "invalid JSON"),
    ]
    assert [(column.name, column.type, column.form) for column in found.columns] == [
        ("id", "BIGINT", ""), ("at", "DATE", "dd/MM/yyyy"), ("tags", "ARRAY<STRING>", ""),
    ]  # fmt: skip
    assert 'dateFormat: "dd/MM/yyyy"' in manifest_text("a.ndjson", "a", found)

    feature = {"type": "Feature", "properties": {"op": 1, "day": "31.01.2024"}, "geometry": None}
    found = infer(tmp_path, "a.geojson", json.dumps({"features": [feature, feature]}))
    text = manifest_text("a.geojson", "a", found)
    assert "to_date(`day`, 'dd.MM.yyyy')" in text  # the reader of GeoJSON has no formats
    assert "`op` AS `source_op`" in text

    table = pa.table({"id": [1, 2], "at": pa.array([0, 1], pa.timestamp("us", "UTC"))})
    pq.write_table(table, tmp_path / "b.parquet")
    found = infer(tmp_path, "b.parquet", (tmp_path / "b.parquet").read_bytes())
    assert (found.time, found.key, found.lines) == ("at", ("id",), ())
    assert "schema:" not in manifest_text("b.parquet", "b", found)

    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.write(tmp_path / "b.parquet", "inner/b.parquet")
    assert infer(tmp_path, "c.zip", (tmp_path / "c.zip").read_bytes()).entry == "inner/b.parquet"
    packed = gzip.compress(b"id;x\n1;2,5\n2;3,5\n")
    assert "format: Gzip" in manifest_text("a.csv.gz", "a", infer(tmp_path, "a.csv.gz", packed))


def test_shapefile_columns_and_sub_path_are_inferred(tmp_path: Path) -> None:
    dbf = bytearray(b"\x03" + bytes(3) + (2).to_bytes(4, "little") + (65).to_bytes(2, "little"))
    dbf += (6).to_bytes(2, "little") + bytes(20) + b"code" + bytes(7) + b"C" + bytes(4) + b"\x05" + bytes(15)
    dbf += b"\r" + b" A1   " + b" B2   "
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a/lakes.shp", b"")
        archive.writestr("a/lakes.dbf", bytes(dbf))
    found = infer(tmp_path, "a.zip", (tmp_path / "a.zip").read_bytes())
    assert [column.name for column in found.columns] == ["code", "geometry"]
    assert (found.key, found.merge, found.compression) == (("code",), "Snapshot", "")
    text = manifest_text("a.zip", "a", found)
    assert 'kind: EsriShapefile\n        subPath: "a/lakes.shp"' in text


@pytest.fixture
def server() -> Any:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/missing.csv":
                self.send_error(404)
                return
            if self.path.startswith("/private"):
                self.send_error(401)
                return
            self.send_response(200)
            self.end_headers()
            if self.path == "/long.csv":  # without end
                row = b"1;2,5\n" * 10_000
                try:
                    self.wfile.write(b"id;x\n")
                    while True:
                        self.wfile.write(row)
                except OSError:
                    return
            answers = {"/api": b'[{"id": 1}, {"id": 2}]', "/book": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"}
            self.wfile.write(answers.get(self.path, b"id;x\n1;2,5\n2;3,5\n"))

        def log_message(self, format: str, *args: Any) -> None: ...

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    running.server_close()


def test_only_the_beginning_of_a_url_is_downloaded(server: str) -> None:
    sample = download_sample(f"{server}/long.csv", FetchConfig(), Reporter())
    assert not sample.complete
    assert len(sample.data) == 8 << 20
    found = infer_file(sample, FileChoices(), Reporter())
    assert (found.separator, len(found.rows), found.complete) == (";", 10_000, False)
    with pytest.raises(NotFound, match="404"):
        download_sample(f"{server}/missing.csv", FetchConfig(), Reporter())
    cancelled = Reporter()
    cancelled.cancel()
    with pytest.raises(Cancelled):
        download_sample(f"{server}/a.csv", FetchConfig(), cancelled)


def test_answers_of_a_url_without_a_suffix_are_recognized(server: str) -> None:
    found = infer_file(download_sample(f"{server}/api", FetchConfig(), Reporter()), FileChoices(), Reporter())
    assert (found.kind, len(found.rows)) == ("Json", 2)
    with pytest.raises(BadData, match="not a spreadsheet"):
        download_sample(f"{server}/book", FetchConfig(), Reporter())
    with pytest.raises(SourceUnavailable, match="401") as caught:
        download_sample(f"{server}/private.csv", FetchConfig(), Reporter())
    assert "fetch.headers" in str(caught.value.hint)


CSV = "when;name;amount\n" + "".join(f"{day:02d}/01/2024;n{day % 7};{day},50\n" for day in range(1, 29))


async def test_the_dialog_names_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "book.csv").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")
    dialog = DataFileDialog("a from book.csv", lambda reporter: load_sample("book.csv", tmp_path, reporter))
    async with shown(dialog) as (app, pilot):
        await app.workers.wait_for_complete()
        await pilot.pause()
        text = app.text()
        assert "not a spreadsheet" in text and "no lines of text" not in text


async def test_the_dialog_shows_and_corrects_a_file(tmp_path: Path) -> None:
    lines = CSV.splitlines()
    lines[3], lines[20] = "short", "31/02/2024;x;1,5"
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    dialog = DataFileDialog("a from a.csv", lambda reporter: load_sample("a.csv", tmp_path, reporter))
    async with shown(dialog) as (app, pilot):

        async def press(*keys: str) -> str:
            for key in keys:
                await pilot.press(key)
                await pilot.pause()
                await app.workers.wait_for_complete()
                await pilot.pause()
            return app.text()

        text = await press("k")
        assert "27 rows, 2 bad rows (b lists, x rejects them), line 4: 1 value for 3 columns" in text
        assert "2024-01-02" in text  # parsed
        assert "only be day first" in text
        text = await press("b", "j", "enter")
        assert "line 21: when: '31/02/2024' is not a DATE" in text
        assert dialog.query_one(RawLines).scroll_offset.y == 19
        assert "!   21 31/02/2024;x;1,5" in text
        assert "line 4: 1 value" in await press("n")
        assert dialog.query_one(ParsedRows).scroll_offset.y < 4
        text = await press("p")  # the key was the time: none is left
        assert "merge Append: every pull" in text
        assert "require a primary key" in await press("m")
        text = await press("j", "p")
        assert "p key name (NOT unique: n" in text
        text = await press("k", "p", "m")
        assert "merge Snapshot: a complete list; rows that left the file: retracted" in text
        assert "only numbers, dates and times" in await press("j", "f")
        text = await press("r", *"city", "enter")
        assert re.search(r"city +STRING +key ", text)
        assert re.search(r"when +DATE +dd/MM/yyyy +key, time ", text)
        assert "p key city, when (unique" in text
        await press("k", "i")
        assert dialog._found is not None
        assert dialog._found.time == ""
        await press("h")
        assert [column.name for column in dialog._found.columns] == ["c1", "c2", "c3"]
        assert "line 1: c1: 'when'" in await press("b", "enter")
        assert "u quote '" in await press("u")
        assert "header yes" in await press("a")  # no choices are left
        await press("j", "j", "t", "s")
        assert "(b lists, x fails): rejected" in await press("x")
        await press("enter")
    assert isinstance(app.result, ImportedFile)
    assert app.result.found is not None and app.result.rejects
    assert [column.type for column in app.result.found.columns] == ["DATE", "STRING", "STRING"]


async def test_the_dialog_shows_the_filter_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"Report of 2024,,\n\n{CSV.replace(';', '|')}\nSource: register\n")
    dialog = DataFileDialog("a from a.csv", lambda reporter: load_sample("a.csv", tmp_path, reporter))
    async with shown(dialog) as (app, pilot):
        await app.workers.wait_for_complete()
        await pilot.pause()
        text = app.text()
        assert "filter 1 title line above the header; 1 line of notes below the table" in text
        assert "2024-01-02" in text  # parsed


async def test_columns_of_the_dialog_fit_their_values(tmp_path: Path) -> None:
    name = "a name of thirty-two characters!"
    (tmp_path / "a.csv").write_text(f"id,name,n\n1,{name},5\n2,b,1200\n3,,\n")
    dialog = DataFileDialog("a from a.csv", lambda reporter: load_sample("a.csv", tmp_path, reporter))
    async with shown(dialog) as (app, pilot):
        await app.workers.wait_for_complete()
        await pilot.pause()
        lines = [line.strip("│ ").rstrip() for line in app.text().splitlines()]
    first = next(at for at, line in enumerate(lines) if line.startswith("line id name"))
    assert lines[first + 1] == f"2  1 {name}    5"
    assert lines[first + 2] == f"3  2 b{' ' * (len(name) - 1)} 1200"
    assert lines[first + 3].split() == ["4", "3", "∅", "∅"]


async def test_the_dialog_is_accepted_after_the_last_choice_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("area,2020,2021,2022\nA,1,2,3\nB,4,,6\n")
    dialog = DataFileDialog("a from a.csv", lambda reporter: load_sample("a.csv", tmp_path, reporter))
    go = threading.Event()
    async with shown(dialog) as (app, pilot):
        await app.workers.wait_for_complete()
        await pilot.pause()
        monkeypatch.setattr(
            "odf_tui.features.definitions.file_dialog.infer_file",
            lambda *arguments: go.wait() and infer_file(*arguments),
        )
        await pilot.press("y", "enter")
        assert app.result is None
        go.set()
        await until(pilot, lambda: app.result is not None)
    assert isinstance(app.result, ImportedFile) and app.result.found is not None
    assert [column.name for column in app.result.found.columns] == ["area", "2020", "2021", "2022"]


async def test_the_dialog_turns_columns_of_years_into_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("area,2020,2021,2022\nA,1,2,3\nB,4,,6\n")
    dialog = DataFileDialog("a from a.csv", lambda reporter: load_sample("a.csv", tmp_path, reporter))
    async with shown(dialog) as (app, pilot):
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "y periods rows  5 rows" in app.text()
        await press(pilot, "y")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "y periods columns  2 rows" in app.text()
        await press(pilot, "y", "enter")
        await app.workers.wait_for_complete()
    assert isinstance(app.result, ImportedFile)
    assert app.result.found is not None
    assert [column.name for column in app.result.found.columns] == ["area", "year", "value"]


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y", "%Y-%m-%dT%H:%M:%SZ", "%s"])
async def test_watermark_of_a_forecast_follows_its_times(tmp_path: Path, form: str) -> None:
    start = datetime.now(UTC)
    times = [start + timedelta(days=day) for day in range(-5, 31)]
    rows = "".join(f"{time.strftime(form)},{at}\n" for at, time in enumerate(times))
    (tmp_path / "a.csv").write_text("when,level\n" + rows)
    choices = FileChoices(time="when", types={0: ("TIMESTAMP", "epoch s")} if form == "%s" else {})
    dialog = DataFileDialog("a", lambda reporter: load_sample("a.csv", tmp_path, reporter), choices)
    async with shown(dialog) as (app, pilot):
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "w watermark follows times in the future" in app.text()
        await press(pilot, "w", "w", "enter")
    assert isinstance(app.result, ImportedFile)
    assert app.result.settings == {"watermark.maxAhead": "none"}
    assert msgspec.structs.replace(app.result, caps=True).settings == {}


async def test_times_in_the_past_are_no_forecast(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    dialog = DataFileDialog("a", lambda reporter: load_sample("a.csv", tmp_path, reporter))
    async with shown(dialog) as (app, pilot):
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "in the future" not in app.text()
        await press(pilot, "w")
        assert "most event times are not in the future" in app.text()
        await press(pilot, "enter")
    assert isinstance(app.result, ImportedFile) and app.result.settings == {}


async def test_the_dialog_of_a_damaged_file_offers_the_editor() -> None:
    def fail(reporter: Reporter) -> FileSample:
        raise BadData("not a text file", hint="choose another file")

    async with shown(DataFileDialog("a", fail)) as (app, pilot):
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "not a text file" in app.text()
        await press(pilot, "enter")  # there is nothing to add
        assert app.result is None
        await press(pilot, "e")
        await pilot.pause()
        assert app.result.problem.startswith("not a text file")


async def test_files_with_similar_names_are_offered_as_one_dataset(source: Scenario) -> None:
    (source.folder / "in").mkdir()
    for number in (1, 2):
        (source.folder / f"in/week-{number}.csv").write_text(CSV)
    imported: list[ImportedFile] = []

    def pick(picker: DataFilePicker) -> str:
        choice = picker._choices[0]
        assert choice.remark.startswith("2 files, one dataset")
        return choice.id

    def dialog(opened: DataFileDialog) -> ImportedFile:
        sample = load_sample("in/week-2.csv", source.folder, Reporter())
        imported.append(ImportedFile(infer_file(sample, FileChoices(), Reporter()), FileChoices()))
        return imported[0]

    def name(prompt: PromptDialog) -> str:
        assert prompt._value == "week"
        return "weeks"

    fakes = Fakes(
        source, answers=[pick, name, dialog, "add"], widgets={GraphView: SimpleNamespace(selected="")}
    )
    DefinitionsController(fakes.context)._add_from_data_file()
    await fakes.host.stories()
    (manifest,) = source.folder.rglob("weeks.yaml")
    assert "kind: FilesGlob\n        path: in/week-*.csv" in manifest.read_text()


async def test_inferred_manifest_is_written_after_confirmation(source: Scenario, tmp_path: Path) -> None:
    (source.folder / "a.csv").write_text(CSV)
    sample = load_sample("a.csv", source.folder, Reporter())
    found = msgspec.structs.replace(infer_file(sample, FileChoices(), Reporter()), is_forecast=True)
    imported = ImportedFile(found, FileChoices(separator=";"), rejects=True)
    (source.folder / ".odf").mkdir(exist_ok=True)
    seen: list[FileChoices] = []

    def dialog(opened: DataFileDialog) -> ImportedFile:
        seen.append(opened._choices)
        return imported

    answers = ["a.csv", "a", dialog, "back", dialog, "add"]
    fakes = Fakes(source, answers=answers, widgets={GraphView: SimpleNamespace(selected="")})
    controller = DefinitionsController(fakes.context)
    controller._add_from_data_file()
    await fakes.host.stories()
    assert [type(each) for each in fakes.host.dialogs] == [
        DataFilePicker, PromptDialog, DataFileDialog, DecisionDialog, DataFileDialog, DecisionDialog,
    ]  # fmt: skip
    assert [each.separator for each in seen] == [None, ";"]
    (manifest,) = [each for each in source.folder.rglob("*.yaml") if ".odf" not in each.parts]
    assert manifest.read_text() == manifest_text("a.csv", "a", found)
    (name,) = settings.load_workspace(source.folder / ".odf").on_bad_rows
    assert name == "a"
    assert settings.load_workspace(source.folder / ".odf").watermark.max_ahead == {"a": "none"}


async def test_a_file_that_is_kept_opens_the_dialog_of_a_new_dataset(source: Scenario) -> None:
    (source.folder / "a.csv").write_text(CSV)
    fakes = Fakes(source, answers=["a", None], widgets={GraphView: SimpleNamespace(selected="")})
    DefinitionsController(fakes.context).add_data_file("a.csv")
    await fakes.host.stories()
    name, dialog = fakes.host.dialogs
    assert isinstance(name, PromptDialog) and name._value == "a"
    assert isinstance(dialog, DataFileDialog) and dialog._title == "a from a.csv"


async def test_a_collection_lists_its_tables_first(source: Scenario) -> None:
    with zipfile.ZipFile(source.folder / "feed.zip", "w") as archive:
        archive.writestr("stops.txt", "stop_id,stop_name\n1,A\n2,B\n")
        archive.writestr("routes.txt", "route_id,route_type\n10,3\n11,3\n")
    answers = ["routes", "my.routes", None]
    fakes = Fakes(source, answers=answers, widgets={GraphView: SimpleNamespace(selected="")})
    DefinitionsController(fakes.context).add_data_file("feed.zip")
    await fakes.host.stories()
    tables, name, dialog = fakes.host.dialogs
    assert isinstance(tables, PickerDialog)
    assert [choice.id for choice in tables._choices] == ["stops", "routes"]
    assert isinstance(name, PromptDialog) and name._value == "routes"
    assert isinstance(dialog, DataFileDialog)
    assert dialog._choices.key == ("route_id",) and dialog._choices.types[0] == ("STRING", "")
    assert dialog._load(Reporter()).entry == "routes.txt"


def write_weeks(source: Scenario, weeks: int, **more: str) -> None:
    """Write an archive with a CSV file for each week, notes, and more files."""
    with zipfile.ZipFile(source.folder / "weeks.zip", "w") as archive:
        archive.writestr("readme.txt", "about the weeks\n")
        for week in range(1, weeks + 1):
            archive.writestr(f"week-{week:02}.csv", f"id,cases\nw{week},{week}\n")
        for stem, text in more.items():
            archive.writestr(f"{stem}.csv", text)


async def test_members_of_an_archive_are_chosen(source: Scenario) -> None:
    write_weeks(source, 12, regions="region,name,size\n1,A,2\n2,B,3\n")

    async def opened(members: str) -> tuple[Fakes, Any]:
        answers = [members, "my.weeks", None]
        fakes = Fakes(source, answers=answers, widgets={GraphView: SimpleNamespace(selected="")})
        DefinitionsController(fakes.context).add_data_file("weeks.zip")
        await fakes.host.stories()
        return fakes, fakes.host.dialogs[-1]

    fakes, dialog = await opened("week-*.csv")
    picker = fakes.host.dialogs[0]
    assert isinstance(picker, MemberPicker)
    offered = {choice.id: choice.remark for choice in picker.find_choices("")}
    assert next(iter(offered)) == "week-*.csv" and offered["week-*.csv"].startswith("12 files, one dataset")
    assert len(offered) == 14 and "readme.txt" not in offered
    assert picker.find_choices("week-0*.csv")[0].id == "week-0*.csv"
    assert fakes.host.dialogs[1]._value == "weeks"
    assert dialog._load(Reporter()).filters == (("unpack", "--member", "week-*.csv"),)
    _, dialog = await opened("week-01.csv\nweek-11.csv")
    marked = ("unpack", "--member", "week-01.csv", "--member", "week-11.csv")
    assert dialog._load(Reporter()).filters == (marked,)
    fakes, dialog = await opened("regions.csv")
    assert fakes.host.dialogs[1]._value == "regions" and dialog._load(Reporter()).entry == "regions.csv"
    _, dialog = await opened("week-01.csv\nregions.csv")
    with pytest.raises(BadData, match="different columns"):
        dialog._load(Reporter())


async def test_several_members_are_marked(source: Scenario) -> None:
    write_weeks(source, 3)
    listing = list_archive("weeks.zip", source.folder)
    assert listing is not None
    async with shown(MemberPicker("Members of weeks.zip", listing)) as (app, pilot):
        await until(pilot, lambda: "*.csv" in app.text())
        line = app.screen.query_one(Input)
        for number, mark in enumerate(("02", "01"), 1):
            line.value = mark
            await until(pilot, lambda mark=mark: app.text().count("week-") == 1 and mark in app.text())
            await press(pilot, "plus")
            await until(pilot, lambda number=number: f"{number} marked" in app.text())
        await until(pilot, lambda: "+ week-01.csv" in app.text())
        await press(pilot, "enter")
        await until(pilot, lambda: len(app.screen_stack) == 1)
    assert app.result == "week-02.csv\nweek-01.csv"


async def test_changed_archive_reopens_the_dialog_with_a_notice(source: Scenario) -> None:
    write_weeks(source, 3)

    def change(_: object) -> str:
        write_weeks(source, 2)
        return "add"

    found = infer_file(load_sample("weeks.zip", source.folder, Reporter()), FileChoices(), Reporter())
    accepted = ImportedFile(found, FileChoices())
    answers = ["*.csv", "my.weeks", accepted, change, None]
    fakes = Fakes(source, answers=answers, widgets={GraphView: SimpleNamespace(selected="")})
    DefinitionsController(fakes.context).add_data_file("weeks.zip")
    await fakes.host.stories()
    assert not fakes.host.answers and isinstance(fakes.host.dialogs[-1], DataFileDialog)
    changed = "weeks.zip has changed: removed week-03.csv. Check the rows, or press esc to choose again"
    assert fakes.host.notices == [(changed, "warn")]


async def test_metadata_on_a_server_name_the_command(source: Scenario) -> None:
    fakes = Fakes(source, answers=[], widgets={GraphView: SimpleNamespace(selected="")})
    DefinitionsController(fakes.context).add_data_file("https://example.com/datapackage.json")
    await fakes.host.stories()
    assert not fakes.host.dialogs
    assert "odf new NAME --from https://example.com/datapackage.json" in str(fakes.host.notices)
