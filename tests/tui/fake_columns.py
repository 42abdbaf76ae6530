"""Column lineage of the datasets in memory."""

from __future__ import annotations

from odf_engine.metadata.model import SqlQueryStep
from odf_engine.sql.lineage_model import ColumnLineage, InputColumn
from odf_engine.sql.query_lineage import trace_columns
from odf_engine.workspace.definitions.column_lineage import SOURCE, ColumnGraph, DatasetColumns, LineageInput

SYSTEM = ["offset", "op", "system_time", "event_time"]
READINGS = ["station", "pm25", "no2", "sensor", "re\x1b[31mmark"]
STATIONS = ["station", "name", "latitude", "longitude"]
VISITS = ["visit_id", "clinic", "age", "complaint"]

BY_DAY = """
    SELECT window.start AS event_time, s.name AS station, avg(pm25) AS pm25, max(pm25) AS pm25_peak,
      count(*) AS readings, 2 * no2 AS doubled
    FROM readings JOIN stations AS s USING (station) WHERE sensor <> 'x'
    GROUP BY window(readings.event_time, '1 day'), s.name, no2
"""
VISITS_BY_DAY = """
    SELECT date(v.event_time) AS event_time, v.clinic, count(*) AS visits, sum(beds) AS beds
    FROM visits AS v JOIN hospitals AS h ON h.clinic = v.clinic GROUP BY date(v.event_time), v.clinic
"""
SMOKE = "SELECT a.event_time, a.pm25, v.visits, a.station FROM air AS a JOIN visits AS v USING (event_time)"


def graph() -> ColumnGraph:
    """Return the column lineage of Port Haven."""
    return ColumnGraph([
        _root("port-haven.air-readings", READINGS),
        _root("port-haven.stations", STATIONS),
        _root("port-haven.clinic-visits", VISITS),
        _root("port-haven.clinics", []),
        _made("air-by-day", BY_DAY, {"readings": READINGS, "stations": STATIONS},
              {"readings": "port-haven.air-readings", "stations": "port-haven.stations"}),
        _made("visits-by-day", VISITS_BY_DAY, {"visits": VISITS, "hospitals": None},
              {"visits": "port-haven.clinic-visits", "hospitals": "hospitals"}),
        _made("smoke-and-breath", SMOKE, {"air": ["pm25", "station"], "visits": ["visits"]},
              {"air": "air-by-day", "visits": "visits-by-day"}),
        _made("harbour.tides", "SELECT nothing FROM readings", {"readings": READINGS[:2]},
              {"readings": "port-haven.air-readings"}, ["level"]),
    ])  # fmt: skip


def _root(name: str, columns: list[str]) -> DatasetColumns:
    outputs = {each: [InputColumn(SOURCE, each, "identity")] for each in ["event_time", *columns]}
    columns = [*SYSTEM, *columns] if columns else []
    return DatasetColumns(f"did:odf:{name}", name, columns, [], ColumnLineage(outputs if columns else {}, []))


def _made(
    name: str,
    query: str,
    inputs: dict[str, list[str] | None],
    sources: dict[str, str],
    own: list[str] | None = None,
) -> DatasetColumns:
    known = {each: None if columns is None else ["event_time", *columns] for each, columns in inputs.items()}
    found = trace_columns([SqlQueryStep(query=query)], known, outputs=own)
    operations = [InputColumn(each, "op", "transformation") for each in inputs]
    outputs: dict[str, list[InputColumn]] = {
        "offset": [],
        "op": operations,
        "system_time": [],
        **found.outputs,
    }
    feeders = [
        LineageInput(alias, f"did:odf:{source}", source, known[alias] is None)
        for alias, source in sources.items()
    ]
    lineage = ColumnLineage(outputs, found.rows, found.problem)
    return DatasetColumns(f"did:odf:{name}", name, list(outputs), feeders, lineage)
