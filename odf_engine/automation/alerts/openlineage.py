"""OpenLineage run events of jobs: schema, column lineage, data quality (specification 2-0-2).

The run id is derived from the job, so the start and the end of a job have the same one. Facets describe the
dataset when the event is collected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from odf_engine.automation.alerts.definition import EventKind
from odf_engine.automation.alerts.events import Event, stable_id
from odf_engine.chain.schema_evolution import column_descriptions, declared_schema
from odf_engine.checks.reports import RuleResult, list_rejected, read_report
from odf_engine.data.ddl import type_ddl
from odf_engine.data.parquet.parquet_reader import parquet_errors
from odf_engine.errors import NotFound, OdfError
from odf_engine.metadata.model import Sql
from odf_engine.sql.lineage_model import ANY_COLUMN, InputColumn
from odf_engine.workspace.definitions.column_lineage import dataset_lineage

if TYPE_CHECKING:
    from odf_engine.chain.state import ChainState
    from odf_engine.workspace.dataset_summary import DatasetEntry
    from odf_engine.workspace.workspace import Workspace

_PRODUCER: Final = "urn:odf-workstation"
_SPEC: Final = "https://openlineage.io/spec"
_EVENT_TYPES: Final[Mapping[str, str]] = {
    "JobStarted": "START",
    "JobSucceeded": "COMPLETE",
    "JobFailed": "FAIL",
    "JobCancelled": "ABORT",
}
_VERSIONS: Final = {
    "SchemaDatasetFacet": "1-2-0",
    "ColumnLineageDatasetFacet": "1-2-0",
    "DatasetVersionDatasetFacet": "1-0-1",
    "DataQualityAssertionsDatasetFacet": "1-1-0",
    "DataQualityMetricsDatasetFacet": "1-0-1",
    "OutputStatisticsOutputDatasetFacet": "1-0-2",
    "ErrorMessageRunFacet": "1-0-1",
    "JobTypeJobFacet": "2-0-4",
    "SQLJobFacet": "1-1-0",
}
_READING_JOBS: Final = ("push", "verify", "check")
"""Kinds of jobs that only read their dataset."""
_MAX_SLICES: Final = 100
"""Maximum number of slices of a run whose statistics are read."""
_ONE_COLUMN: Final = re.compile(r"\w+\(([^,()]+)\)")


def run_event(event: Event, kind: EventKind, workspace: Workspace, namespace: str) -> bytes:
    """Return the run event of a job as JSON.

    Args:
        event: the event of the job.
        kind: its kind, as in OpenLineage.
        workspace: the workspace.
        namespace: the namespace of jobs and datasets, or "" for the workspace's own.
    """
    name = namespace or f"odf://{quote(workspace.folder.name, safe='')}"
    return _RunEvent(event, kind, workspace, name).encode()


def _facet(schema: str, **fields: Any) -> dict[str, Any]:
    url = f"{_SPEC}/facets/{_VERSIONS[schema]}/{schema}.json#/$defs/{schema}"
    return {"_producer": _PRODUCER, "_schemaURL": url, **fields}


class _RunEvent:
    def __init__(self, event: Event, kind: EventKind, workspace: Workspace, namespace: str) -> None:
        self._event, self._kind, self._workspace, self._namespace = event, kind, workspace, namespace
        self._data = event.data
        self._entry: DatasetEntry | None = None
        self._state: ChainState | None = None
        if event.dataset:
            with suppress(OdfError):  # deleted since, or damaged
                entry = workspace.resolve(event.dataset)
                self._entry = entry.on_branch(event.data.get("branch", ""))
                self._state = self._entry.dataset.state()

    def encode(self) -> bytes:
        job, event = self._data, self._event
        inputs, outputs = self._datasets()
        return msgspec.json.encode(
            {
                "eventType": _EVENT_TYPES[self._kind],
                "eventTime": event.time,
                "producer": _PRODUCER,
                "schemaURL": f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent",
                "run": {
                    "runId": stable_id("run of job", job["job"], job.get("started")),
                    "facets": self._run_facets(),
                },
                "job": {
                    "namespace": self._namespace,
                    "name": f"{event.subject}.{job['kind']}",
                    "facets": self._job_facets(),
                },
                "inputs": inputs,
                "outputs": outputs,
            }
        )

    def _run_facets(self) -> dict[str, Any]:
        error = self._data.get("error")
        if self._kind != "JobFailed" or error is None:
            return {}
        message = _facet("ErrorMessageRunFacet", message=self._event.message, programmingLanguage="PYTHON")
        return {"errorMessage": message}

    def _job_facets(self) -> dict[str, Any]:
        facets = {
            "jobType": _facet(
                "JobTypeJobFacet",
                processingType="BATCH",
                integration="ODF",
                jobType=str(self._data["kind"]).upper(),
            )
        }
        if (query := self._query()) is not None:
            facets["sql"] = _facet("SQLJobFacet", query=query, dialect="spark")
        return facets

    def _query(self) -> str | None:
        if self._state is None or self._state.transform is None or self._reads_only:
            return None
        transform = self._state.transform.transform
        if not isinstance(transform, Sql):
            return None
        return transform.query or ";\n".join(step.query for step in transform.queries or ())

    @property
    def _reads_only(self) -> bool:
        return self._data["kind"] in _READING_JOBS

    def _datasets(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the inputs and outputs."""
        own = self._dataset(self._event.subject, self._facets(self._entry, self._state))
        if self._reads_only:
            return [own], []
        inputs: list[dict[str, Any]] = []
        if self._state is not None and self._data["kind"] != "compact":
            for dataset in self._state.inputs():
                try:
                    entry = self._workspace.resolve(str(dataset))
                    facets = self._facets(entry, entry.dataset.state())
                    inputs.append(self._dataset(str(entry.alias), facets))
                except NotFound:
                    inputs.append(self._dataset(str(dataset), {}))
                except OdfError:
                    continue
        if self._kind == "JobSucceeded":
            own |= self._output_statistics()
        if (lineage := self._column_lineage()) is not None:
            own["facets"]["columnLineage"] = lineage
        return inputs, [own]

    def _dataset(self, name: str, facets: dict[str, Any]) -> dict[str, Any]:
        return {"namespace": self._namespace, "name": name, "facets": facets}

    def _facets(self, entry: DatasetEntry | None, state: ChainState | None) -> dict[str, Any]:
        """Return schema and version of a dataset, and for the job's dataset its data quality."""
        facets: dict[str, Any] = {}
        if entry is None or state is None:
            return facets
        facets["version"] = _facet("DatasetVersionDatasetFacet", datasetVersion=str(state.head))
        with suppress(OdfError):
            if (fields := _schema_fields(state)) is not None:
                facets["schema"] = _facet("SchemaDatasetFacet", fields=fields)
        if entry is self._entry and self._kind != "JobStarted" and (assertions := self._assertions(entry)):
            facets["dataQualityAssertions"] = _facet(
                "DataQualityAssertionsDatasetFacet", assertions=assertions
            )
        return facets

    def _column_lineage(self) -> dict[str, Any] | None:
        """Return the lineage of the columns of a derivative dataset, or None for others."""
        if self._entry is None or self._state is None or self._state.transform is None:
            return None
        names: dict[str, str] = {}
        for item in self._state.transform.inputs:
            with suppress(OdfError):
                names[item.alias or item.dataset_ref] = str(self._workspace.resolve(item.dataset_ref).alias)
        try:
            lineage = dataset_lineage(self._workspace, self._entry)
        except OdfError:
            return None
        fields = {
            column: {"inputFields": sources}
            for column, inputs in lineage.outputs.items()
            if (sources := self._input_fields(names, inputs, "DIRECT"))
        }
        rows = self._input_fields(names, lineage.rows, "INDIRECT")
        return _facet("ColumnLineageDatasetFacet", fields=fields, dataset=rows) if fields else None

    def _input_fields(
        self, names: Mapping[str, str], columns: Iterable[InputColumn], kind: str
    ) -> list[dict[str, Any]]:
        """Return input columns, without unknown ones."""
        return [
            {
                "namespace": self._namespace,
                "name": names[column.input],
                "field": column.column,
                "transformations": [{"type": kind, "subtype": column.how.upper()}],
            }
            for column in columns
            if column.input in names and column.column != ANY_COLUMN and column.how != "unknown"
        ]

    def _assertions(self, entry: DatasetEntry) -> list[dict[str, Any]]:
        """Return the results of the checks that the job evaluated."""
        if "checks" in self._data:
            return [
                _assertion(
                    item["kind"],
                    item["rule"],
                    item["on_failure"],
                    item["outcome"],
                    item["message"],
                )
                for item in self._data["checks"]
            ]
        results: Sequence[RuleResult] = ()
        if self._kind == "JobSucceeded" and (slices := self._new_slices()):
            with suppress(OdfError):
                stored = read_report(entry.dataset.folder, entry.id, slices[-1].physical_hash)
                results = stored.report.results if stored is not None else ()
        elif self._kind == "JobFailed" and self._data.get("error", {}).get("kind") == "CheckFailed":
            rejected = list_rejected(self._workspace.odf, [entry.id])
            results = rejected[0].report.results if rejected else ()
        return [
            _assertion(result.kind, result.rule, result.on_failure, result.outcome, result.message)
            for result in results
        ]

    def _new_slices(self) -> list[Any]:
        """Return the slices that the job appended, oldest first."""
        records = self._data.get("result", {}).get("records")
        if self._entry is None or self._state is None or not isinstance(records, int) or records < 1:
            return []
        last = self._state.last_offset
        if last is None:
            return []
        with suppress(OdfError):
            return self._entry.dataset.slices(max(last - records + 1, 0), last)
        return []

    def _output_statistics(self) -> dict[str, Any]:
        """Return the facets with the number of written rows, and statistics of their columns."""
        records = self._data.get("result", {}).get("records")
        if not isinstance(records, int) or self._entry is None:
            return {}
        slices = self._new_slices()
        size = sum(data_slice.size for data_slice in slices)
        statistics = _facet("OutputStatisticsOutputDatasetFacet", rowCount=records, size=size)
        statistics |= {"fileCount": len(slices)}
        output: dict[str, Any] = {"outputFacets": {"outputStatistics": statistics}}
        if slices and len(slices) <= _MAX_SLICES:
            with suppress(OdfError, *parquet_errors()):
                metrics = _column_metrics(self._entry.dataset.slice_path(data_slice) for data_slice in slices)
                output["facets"] = self._facets(self._entry, self._state) | {
                    "dataQualityMetrics": _facet(
                        "DataQualityMetricsDatasetFacet",
                        rowCount=records,
                        bytes=size,
                        fileCount=len(slices),
                        columnMetrics=metrics,
                    )
                }
        return output


def _assertion(kind: str, rule: str, on_failure: str, outcome: str, message: str | None) -> dict[str, Any]:
    """Return the result of a rule as an assertion."""
    facet: dict[str, Any] = {
        "assertion": re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower(),
        "success": outcome == "passed",
        "severity": "error" if on_failure == "block" else "warn",
        "name": rule,
    }
    if (column := _ONE_COLUMN.fullmatch(rule)) is not None:
        facet["column"] = column[1]
    return facet | ({"description": message} if message else {})


def _schema_fields(state: ChainState) -> list[dict[str, str]] | None:
    """Return the columns of a dataset, or None if it has no schema."""

    schema = declared_schema(state)
    if schema is None:
        return None
    descriptions = column_descriptions(state)
    return [
        {"name": field.name, "type": type_ddl(field.type)}
        | ({"description": text} if (text := descriptions.get(field.name)) else {})
        for field in schema
    ]


def _column_metrics(paths: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """Return statistics of columns from the footers of Parquet files: counts, and limits of numbers."""
    import pyarrow.parquet as pq  # deferred: slow to import

    columns: dict[str, dict[str, Any]] = {}
    partial: set[str] = set()
    for path in paths:
        footer = pq.read_metadata(path)
        for group in range(footer.num_row_groups):
            for index in range(footer.num_columns):
                chunk = footer.row_group(group).column(index)
                name, statistics = chunk.path_in_schema, chunk.statistics
                if statistics is None or not statistics.has_null_count:
                    partial.add(name)
                    continue
                metrics = columns.setdefault(name, {"nullCount": 0, "count": 0})
                metrics["nullCount"] += statistics.null_count
                metrics["count"] += statistics.num_values
                limits = (statistics.min, statistics.max) if statistics.has_min_max else ()
                if limits and all(map(_is_number, limits)):
                    low, high = limits
                    metrics["min"] = min(metrics.get("min", low), low)
                    metrics["max"] = max(metrics.get("max", high), high)
    return {name: metrics for name, metrics in columns.items() if name not in partial}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
