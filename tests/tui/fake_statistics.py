"""FakeStatistics, statistics, files of rows and timelines in memory."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from odf_engine.api.model import FileTimeRange
from odf_engine.api.readers.row_reader import TableDescription
from odf_engine.api.readers.row_window import RowWindow
from odf_engine.rows.statistics import ColumnStatistics, FrequentValue, Statistics
from odf_engine.workspace.definitions.column_lineage import ColumnGraph

HOURS = [3, 12, 41, 80, 96, 70, 55, 40, 31, 22, 14, 9, 8, 6, 4, 2, 1, 1, 0, 1]
_PLACES = (
    "Quay",
    "Old Town",
    "Lighthouse Hill",
    "Fish Market",
    "",
    "St. Brendan's Ferry Landing, north side",
)
TYPES = {
    "offset": "uint64", "event_time": "timestamp", "station": "string", "pm25": "double",
    "remark": "string", "money": "decimal128(12, 2)", "sensor": "string", "tags": "list<string>",
}  # fmt: skip


def _told(name: str, **known: object) -> ColumnStatistics:
    return ColumnStatistics(name=name, type=TYPES[name], **known)  # type: ignore[arg-type]


TOLD = [
    _told("offset", nulls=0, least="0", greatest="7199"),
    _told("event_time", nulls=0, least="2024-03-01T00:00:00Z", greatest="2024-12-25T23:00:00Z"),
    _told("station", nulls=0),
    _told("pm25", nulls=1029),
    _told("remark", nulls=1800),
    _told("money", nulls=7),
    _told("sensor", nulls=0),
    _told("tags", nulls=0),
]
COUNTED = [
    _told("offset", nulls=0, distinct=7200, least="0", greatest="7199", mean=3599.5, bins=[512] * 14 + [32]),
    _told(
        "event_time", nulls=0, distinct=7200, least="2024-03-01T00:00:00Z", greatest="2024-12-25T23:00:00Z",
        bins=[12, 300, 480, 480, 480, 470, 480, 480, 480, 480, 480, 480, 480, 480, 480, 480, 98],
    ),
    _told(
        "station", nulls=0, distinct=31, least="", greatest="West \x1b[31mQuay", shortest=0, longest=39,
        frequent=[FrequentValue(place, 1800 - 290 * at) for at, place in enumerate(_PLACES)],
    ),
    _told(
        "pm25", nulls=1029, not_numbers=4, distinct=612, least="3.25", greatest="181.5", mean=22.7512345,
        bins=HOURS,
        frequent=[FrequentValue("3.25", 211), FrequentValue("12.5", 198), FrequentValue("19.0", 7)],
    ),
    _told("remark", nulls=1800, distinct=3, shortest=4, longest=56, frequent=[FrequentValue("fine", 1800)]),
    _told(
        "money", nulls=7, distinct=480_213, exact=False, lost=12, least="-12.00", greatest="99999.99",
        mean=-1234567.125, bins=[0, 1, 7000, 3, 0, 0, 188], frequent=[FrequentValue("0.00", 5100)],
    ),
    _told("sensor", nulls=0, distinct=7200, shortest=4, longest=4, frequent=[FrequentValue("s-01", 1)]),
    _told("tags", nulls=0, shortest=0, longest=1),
]  # fmt: skip


class FileWindow:
    """The first rows of a window, as those of a file."""

    def __init__(self, window: RowWindow, file: str, rows: int) -> None:
        self._window = window
        self.file, self.row_count = file, rows
        self.columns, self.system_columns = window.columns, window.system_columns

    def window(self, start: int, count: int) -> pa.Table:
        """Return the rows of a window."""
        return self._window.window(start, max(min(count, self.row_count - start), 0))


class FakeTimeline:
    """Blocks with an interval of ten minutes. Each fourth has corrections. The schema changes once.

    Attributes:
        probed: the stops whose files were read.
    """

    timed = True

    def __init__(self, rows: int, size: int = 1000) -> None:
        self.rows: Sequence[int] = [min(start + size, rows) for start in range(0, rows, size)]
        self.blocks: Sequence[int] = [3 + at for at in range(len(self.rows))]
        self.times: Sequence[int] = [1_709_288_520_000 + at * 600_000 for at in range(len(self.rows))]
        self.head = self.blocks[-1]
        self.schemas: Sequence[int] = [2] if len(self.rows) > 2 else []
        self.probed: list[int] = []

    def probe(self, stops: Sequence[int]) -> list[FileTimeRange]:
        """Return one hour of event time per row."""
        self.probed += stops
        hour, day = 3_600_000, 1_709_251_200_000
        found: list[FileTimeRange] = []
        for stop in stops:
            first, last = self.rows[stop - 1] if stop else 0, self.rows[stop] - 1
            moments = (day + first * hour,) if stop % 4 == 3 else ()
            group = (last - first + 1, day + first * hour, day + last * hour)
            found.append(FileTimeRange(stop, bool(moments), (group,), moments))
        return found


class FakeStatistics:
    """Statistics and files of rows.

    Attributes:
        counted: datasets and files whose statistics were computed.
        keys: primary keys by dataset.
        spooled, unspooled: windows that were written to temporary files, and files that were removed.
        timelines: timelines by dataset, instead of generated ones.
    """

    counted: set[str]
    keys: dict[str, list[str]]
    spooled: list[RowWindow]
    unspooled: list[str]
    timelines: dict[str, FakeTimeline]

    def column_statistics(self, dataset: str, file: str | None) -> TableDescription:
        """Return the statistics of eight columns."""
        whole = (file or dataset) in self.counted
        comments = {"pm25": "micrograms of fine dust in a cubic metre of air"}
        statistics = Statistics(7200, COUNTED if whole else TOLD)
        return TableDescription(statistics, whole, TYPES, ("offset", "event_time"), comments)

    def link_columns(self, dataset: str) -> list[str]:
        return []

    def primary_key(self, dataset: str) -> list[str]:
        """Return the prepared key."""
        return self.keys.get(dataset, [])

    def file_rows(self, dataset: str, file: str) -> FileWindow:
        """Return the first 31 rows."""
        return FileWindow(self.rows(dataset), file, 31)  # type: ignore[attr-defined]

    def write_temporary_rows(self, window: RowWindow) -> str:
        """Record the window."""
        self.spooled.append(window)
        return f"spool-{len(self.spooled)}"

    def remove_temporary_rows(self, file: str) -> None:
        """Record the file."""
        if file:
            self.unspooled.append(file)

    def column_graph(self, dataset: str) -> ColumnGraph:
        """Return the column lineage of all datasets."""
        from tests.tui.fake_columns import graph

        return graph()

    def timeline(self, dataset: str) -> FakeTimeline:
        """Return the prepared timeline, else one with a block for each thousand rows."""
        return self.timelines.get(dataset) or FakeTimeline(self.rows(dataset).row_count)  # type: ignore[attr-defined]
