"""Jobs that ask a query over datasets by their names."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from odf_engine.coordinator.protocol import Query
from odf_engine.errors import InvalidQuery, UsageError
from odf_engine.progress import Reporter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from odf_engine.chain.chain import SliceRow
    from odf_engine.coordinator.operations import Context
    from odf_engine.spark.frames import DataFrame, SparkSession
    from odf_engine.workspace.workspace import DatasetEntry, Workspace

_PARTITION_BYTES: Final = 32 << 20
_MOST_PARTITIONS: Final = 200


def query(request: Query, context: Context, reporter: Reporter) -> dict[str, Any]:
    """Asks a query; the result is described with the request.

    Raises:
        InvalidQuery: with the place in the query.
        OdfError: a value that an expression cannot take, a slice that is missing, Spark that fails.
        Cancelled: in the middle; Spark's jobs are stopped.
    """
    from odf_engine.workspace.workspace import Workspace

    began = time.monotonic()
    if not request.sql.strip():
        raise UsageError("the query is empty", hint="try: SELECT 1")
    if request.limit < 1:
        raise UsageError("at least one row has to be kept")
    workspace = Workspace.find(explicit=context.host.folder)
    reporter.line(request.sql.strip())
    session = context.host.spark(reporter).session()
    from odf_engine.data.ddl import type_ddl
    from odf_engine.spark.asking import Question  # after Spark has started, see warm_up
    from odf_engine.spark.frames import arrow_batches
    from odf_engine.workspace import results

    reporter.phase("query")
    tables = _Tables(workspace, session, reporter)
    question = Question(request.sql, tables.names)
    with question.placing(), results.writing(workspace.odf) as (part, path):
        frame = question.ask(session, tables.find)
        tables.size_up()
        schema, batches = arrow_batches(frame, reporter)
        rows, more = results.write(part, schema, _noticing(batches, reporter), request.limit)
    if more:
        reporter.line(f"there are more: only the first {rows} rows are kept")
    seconds = round(time.monotonic() - began, 3)
    reporter.line(f"rows of the result: {rows}, in {seconds:.1f} s")
    return {
        "sql": request.sql,
        "path": str(path.relative_to(workspace.folder)),
        "columns": [{"name": field.name, "type": type_ddl(field.type)} for field in schema],
        "rows": rows,
        "truncated": more,
        "seconds": seconds,
    }


def _noticing(batches: Iterable[pa.RecordBatch], reporter: Reporter) -> Iterator[pa.RecordBatch]:
    """The batches; between them it is looked whether to stop."""
    for batch in batches:
        reporter.check()
        yield batch


class _Tables:
    """The datasets of a workspace as tables."""

    def __init__(self, workspace: Workspace, session: SparkSession, reporter: Reporter) -> None:
        self._workspace = workspace
        self._session = session
        self._reporter = reporter
        self._bytes = 0

    @property
    def names(self) -> list[str]:
        """What people call the datasets: names and ids."""
        return [name for each in self._workspace.datasets() for name in (str(each.alias), str(each.id))]

    def find(self, name: str) -> DataFrame:
        """All rows of a dataset, with the columns that it has now.

        Raises:
            NotFound: there is none of this name.
            InvalidQuery: it has no columns yet.
        """
        from odf_engine.data.arrow_schema import decode_schema
        from odf_engine.spark.slices import slices_frame

        entry = _resolve(self._workspace, name)
        state = entry.dataset.state()
        if state.schema is None:
            raise InvalidQuery(
                f"{entry.alias} has no rows yet, so its columns are not known",
                hint=f"bring some in first: odf pull {entry.alias}",
            )
        slices = entry.dataset.slices()
        rows = sum(each.end - each.start + 1 for each in slices)
        self._bytes += sum(each.size for each in slices)
        self._reporter.line(f"reads {entry.alias}: {rows} rows in {_slices(slices)}")
        paths = [entry.dataset.slice_path(each) for each in slices]
        return slices_frame(self._session, paths, decode_schema(state.schema), state.vocabulary)

    def size_up(self) -> None:
        """Lets Spark sort and group as much as there is to read in parts that fit memory."""
        parts = min(max(2, self._bytes // _PARTITION_BYTES + 1), _MOST_PARTITIONS)
        self._session.conf.set("spark.sql.shuffle.partitions", str(parts))


def _resolve(workspace: Workspace, name: str) -> DatasetEntry:
    from difflib import get_close_matches

    from odf_engine.errors import InvalidIdentity, NotFound

    try:
        return workspace.resolve(name)
    except (NotFound, InvalidIdentity):
        names = {str(each.alias).lower(): str(each.alias) for each in workspace.datasets()}
    holding = [each for each in names if name.lower() in each]
    close = [*get_close_matches(name.lower(), names, 1), *holding][:1]
    hint = f"did you mean {names[close[0]]}?" if close else "a query reads datasets; see: odf list"
    raise NotFound(f"there is no dataset '{name}'", hint=hint)


def _slices(slices: list[SliceRow]) -> str:
    return "1 slice" if len(slices) == 1 else f"{len(slices)} slices"
