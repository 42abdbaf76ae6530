"""The screen of ``odf FILE``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from textual.pilot import Pilot

from odf_engine.api import UiConfig, open_file_table
from odf_tui.features.sql.sql_editor import SqlEditor, SqlPanel
from odf_tui.features.statistics import StatisticsScreen
from odf_tui.file_viewer import FilePane, FileStatus, FileViewer, ViewerSettings
from tests.tui.waiting import screen_text, until

ROWS = 12_000


class Viewer:
    """The screen, driven by keys."""

    def __init__(self, app: FileViewer, pilot: Pilot[Any]) -> None:
        self.app, self._pilot = app, pilot

    @property
    def text(self) -> str:
        """What the top screen shows."""
        return screen_text(self.app.screen)

    @property
    def pane(self) -> FilePane:
        """The pane with the rows."""
        return self.app.screen_stack[0].query_one(FilePane)

    async def press(self, *keys: str) -> None:
        """Press keys."""
        await self._pilot.press(*keys)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition."""
        await until(self._pilot, condition)

    async def until_complete(self) -> None:
        """Wait until all rows are read."""
        status = self.app.screen_stack[0].query_one(FileStatus)
        await self.until(lambda: "rea" not in status._text and self.pane.view.count())


@asynccontextmanager
async def viewed(path: Path, folder: Path, size: tuple[int, int] = (80, 24)) -> AsyncIterator[Viewer]:
    """Show a file."""
    with open_file_table([str(path)], None, folder / "cache") as table:
        app = FileViewer(ViewerSettings(folder, UiConfig()), table)
        async with app.run_test(size=size) as pilot:
            yield Viewer(app, pilot)


def write_cases(path: Path) -> Path:
    """Write a file with more rows than the first read has."""
    path.write_text("id,area,cases\n" + "".join(f"{at},a{at % 7},{ROWS - at}.5\n" for at in range(ROWS)))
    return path


async def test_all_rows_are_scrolled_sorted_and_filtered(tmp_path: Path) -> None:
    async with viewed(write_cases(tmp_path / "cases.csv"), tmp_path) as viewer:
        await viewer.until_complete()
        assert "cases.csv · Csv, separator , · 12 000 rows" in viewer.text and "id int64" in viewer.text
        await viewer.press("G")
        await viewer.until(lambda: "11999  a1" in viewer.text)
        await viewer.press("g", "l", "l", "less_than_sign")
        await viewer.until(lambda: viewer.pane.front_view is not None)
        await viewer.until(lambda: "11999  a1      1.5" in viewer.text.splitlines()[2])
        assert "sorted by cases, ascending" in viewer.text
        await viewer.press("escape")
        await viewer.until(lambda: viewer.pane.front_view is None)
        await viewer.press("g", "h", "f", "f")
        await viewer.until(lambda: "filtered: area is a0 · 1 715 rows" in viewer.text)


async def test_sql_reads_the_file_and_shows_errors(tmp_path: Path) -> None:
    async with viewed(write_cases(tmp_path / "cases.csv"), tmp_path) as viewer:
        await viewer.until_complete()
        await viewer.press("s")
        await viewer.until(lambda: isinstance(viewer.app.focused, SqlEditor))
        panel = viewer.app.screen.query_one(SqlPanel)
        panel.set_text("SELECT area, count(*) AS n, sum(id) AS total FROM file GROUP BY area ORDER BY area")
        await viewer.press("ctrl+r")
        await viewer.until(lambda: viewer.pane.front_view is not None)
        assert "SQL · 7 rows" in viewer.text
        await viewer.until(lambda: "a6" in viewer.text)
        panel.set_text("SELECT nothing FROM file")
        await viewer.press("ctrl+r")
        await viewer.until(lambda: "column 'nothing' not found" in viewer.text)
        panel.set_text(f"SELECT * FROM read_csv('{tmp_path / 'cases.csv'}')")
        await viewer.press("ctrl+r")
        await viewer.until(lambda: "Cannot access file" in viewer.text)
        panel.set_text("COPY file TO 'x.csv'")
        await viewer.press("ctrl+r")
        await viewer.until(lambda: "one SELECT" in viewer.text)
        await viewer.press("escape", "escape")
        await viewer.until(lambda: viewer.pane.front_view is None)


async def test_statistics_and_export_have_all_rows(tmp_path: Path) -> None:
    async with viewed(write_cases(tmp_path / "cases.csv"), tmp_path) as viewer:
        await viewer.until_complete()
        await viewer.press("i")
        await viewer.until(lambda: isinstance(viewer.app.screen, StatisticsScreen))
        await viewer.until(lambda: "maximum    11999" in viewer.text)
        await viewer.press("escape", "E")
        await viewer.until(lambda: "Export" in viewer.text)
        await viewer.press("right", "right", "right", "tab", "tab", "ctrl+u")
        target = tmp_path / "out.parquet"
        viewer.app.screen.query_one("Input").value = str(target)  # type: ignore[attr-defined]
        await viewer.press("enter")
        await viewer.until(target.exists)
        assert pq.read_table(target).num_rows == ROWS
        await viewer.until(lambda: "12 000 rows in out.parquet" in viewer.text)


async def test_a_column_with_other_values_is_text_and_the_screen_says_so(tmp_path: Path) -> None:
    path = write_cases(tmp_path / "cases.csv")
    path.write_text(path.read_text() + "x,a,1\n")
    async with viewed(path, tmp_path) as viewer:
        await viewer.until(lambda: "column id: 1 value is not BIGINT, shown as text" in viewer.text)
        assert "id string" in viewer.text


async def test_an_unreadable_file_is_an_error_on_the_screen(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 damaged")
    async with viewed(path, tmp_path) as viewer:
        await viewer.until(lambda: "cannot be read as Parquet" in viewer.text)
        await viewer.press("s", "i", "question_mark")
        await viewer.until(lambda: "Keys" in viewer.text)


async def test_a_kept_file_becomes_a_dataset_of_the_workspace(tmp_path: Path) -> None:
    path = write_cases(tmp_path / "cases.csv")
    async with viewed(path, tmp_path) as viewer:
        await viewer.until_complete()
        await viewer.press("A")
        await viewer.until(lambda: "there is no workspace here: run odf init" in viewer.text)
        assert viewer.app.kept == ""
        (tmp_path / ".odf").mkdir()
        await viewer.press("A")
        await viewer.until(lambda: viewer.app.kept == "cases.csv")
