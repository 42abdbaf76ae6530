"""What the editor of queries reads: columns, results, what was asked before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odf_engine.coordinator.client import read_journal
from odf_engine.coordinator.protocol import Job, Query
from odf_engine.errors import NotFound
from odf_engine.metadata.model import DEFAULT_VOCABULARY
from odf_tui import query_history
from odf_tui.engine.base import Entries
from odf_tui.source import RowWindow

if TYPE_CHECKING:
    from odf_engine.views.query_results import ResultRows


class SqlReads(Entries):
    """Reads for queries."""

    def columns(self, dataset: str) -> list[tuple[str, str]]:
        """Names and types of the columns of a dataset; none before it has data."""
        from odf_engine.data.arrow_schema import decode_schema
        from odf_engine.data.ddl import type_ddl

        schema = self.entry(dataset).dataset.state().schema
        fields = () if schema is None else decode_schema(schema)
        return [(field.name, type_ddl(field.type)) for field in fields]

    def result(self, path: str) -> RowWindow:
        """The rows of a result, by its path within the workspace."""
        from odf_engine.views.query_results import ResultRows

        return _Result(ResultRows(self.folder / path), str(self.folder / path))

    def question(self, job: Job) -> str:
        """The query that a job was asked.

        Raises:
            NotFound: the journal does not have it any more.
        """
        request = read_journal(self.folder).request(job.id)
        if not isinstance(request, Query):
            raise NotFound("what this job was asked is not in the journal any more")
        return request.sql

    def queries(self) -> list[str]:
        """The queries that were asked, the newest last."""
        return query_history.load_history(self.workspace.odf)

    def note_query(self, sql: str) -> None:
        """Remembers a query."""
        query_history.add_to_history(self.workspace.odf, sql)


class _Result:
    """The rows of a result, with the names that the system's columns have in most datasets."""

    def __init__(self, rows: ResultRows, file: str) -> None:
        self.file = file  # from where rows can be exported, and statistics computed
        self.columns = rows.columns
        self.row_count = rows.row_count
        self.window = rows.window
        vocabulary = DEFAULT_VOCABULARY
        self.system_columns = (
            vocabulary.offset_column,
            vocabulary.operation_type_column,
            vocabulary.system_time_column,
            vocabulary.event_time_column,
        )
