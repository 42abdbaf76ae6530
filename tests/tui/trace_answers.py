"""Provenance of rows of Port Haven, as the worker returns it."""

from __future__ import annotations

from odf_engine.derive.provenance.model import (
    OffsetRange,
    ProducingTransaction,
    RowSource,
    SourcePosition,
    TracedInput,
    TraceStep,
    row_count,
)
from odf_engine.jobs.trace import Trace
from tests.tui.haven import AIR, DAYS, STATIONS, did

QUERY = """SELECT
  window.start AS event_time, s.district,
  avg(r.pm25) AS pm25, -- micrograms
  count(*) AS readings
FROM readings r JOIN stations s ON r.station = s.station
GROUP BY window(r.event_time, '1 day'), s.district
"""


def block(number: int) -> str:
    """Return the hash of a block."""
    return f"f1620{number:08x}{number:056x}"


def answer(request: Trace) -> TraceStep:
    """Return the trace of rows: days come from readings and stations, readings from files."""
    if request.dataset == DAYS:
        return day(request.runs, request.column)
    if request.dataset == AIR:
        return reading(request.runs)
    return stations(request.runs)


def day(runs: list[OffsetRange], column: str | None, *, exact: bool = True) -> TraceStep:
    """Return the trace of rows of air-by-day."""
    first = runs[0][0] * 24
    last = runs[-1][1] * 24 + 23
    columns = [("pm25", "aggregation")] if column else []
    made = ProducingTransaction(
        block(5), 5, "2024-03-11T08:15:02Z", runs,
        query=[("paired", "SELECT * FROM readings"), ("", QUERY)], engine="Spark 3.5.3",
    )  # fmt: skip
    return TraceStep(
        DAYS, "air-by-day", "derivative", runs, row_count(runs),
        made=[made],
        how=["readings of one day and district were averaged", "each reading met the station of its name"],
        exact=exact,
        reason=None if exact else "the query has a function that cannot be followed: shuffle()",
        feeds=[
            TracedInput(
                "readings", AIR, "port-haven.air-readings", [(first, last - 3), (last, last)], 22, columns
            ),
            TracedInput("stations", STATIONS, "port-haven.stations", [(2, 2)], 1),
            TracedInput("holidays", did("holidays"), "calendar.holidays", [(7, 7)], 1, missing=True),
        ],
        earlier=[(1, 1)],
    )  # fmt: skip


def reading(runs: list[OffsetRange]) -> TraceStep:
    """Return the trace of readings, which come from a file."""
    made = ProducingTransaction(block(6), 6, "2024-03-11T06:00:00Z", runs)
    line = runs[-1][1] + 2
    source = RowSource(
        block(6), "polling", "", "https://port-haven.example/air/2024-03.csv", "2024-03-11T06:00:00Z",
        'ETag "6f-a1"', ["prepare: unzip", "read: CSV", "merge: ledger by station, event_time"], runs,
        positions=[
            SourcePosition(runs[-1][1], "/data/2024-03.csv", f"line {line}", line, "Quay,3.25")
        ],
    )  # fmt: skip
    return TraceStep(
        AIR, "port-haven.air-readings", "root", runs, row_count(runs), made=[made], sources=[source]
    )


def stations(runs: list[OffsetRange]) -> TraceStep:
    """Return the trace of stations, which were pushed."""
    source = RowSource(block(3), "push", "office", "", "2024-01-02T10:30:00Z", "", ["merge: snapshot"], runs)
    return TraceStep(STATIONS, "port-haven.stations", "root", runs, row_count(runs), sources=[source])
