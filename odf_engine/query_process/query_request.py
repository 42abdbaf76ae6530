"""Messages between a job and the process of DataFusion or DuckDB.

The process reads one :class:`QueryRequest` as a line of JSON from standard input, and exits when standard
input ends. It writes the rows as an Arrow IPC stream to standard output. The metadata of the stream's schema
has a :class:`ResultProperties` under :data:`PROPERTIES`. If the query failed, the last line of standard error
is an :class:`ErrorReport`. If ``keep`` is set, the process writes :data:`END_OF_ROWS` after all rows, and
reads another request.
"""

from __future__ import annotations

from typing import Final

import msgspec

PROPERTIES: Final = b"odf"
END_OF_ROWS: Final = b"\n"
LISTED_EXTENSION: Final = ".parquet"


class QueryMessage(msgspec.Struct, frozen=True, rename="camel"):
    """A message as JSON."""


class QueryTable(QueryMessage, frozen=True):
    """A table of a query.

    Attributes:
        name: its name in the query.
        schema: its Arrow schema (IPC); columns that a file lacks are null.
        folder: for DataFusion, the folder of its Parquet files, whose names sort in the order of their rows,
            or None for no rows.
        paths: for DuckDB, its Parquet files in the order of their rows.
        offset, operation: names of the columns that identify rows, or "" if they are not.
        passed: system columns that are left out of a tracked result where the query passes them through.
    """

    name: str
    schema: bytes
    folder: str | None = None
    paths: list[str] = []
    offset: str = ""
    operation: str = ""
    passed: list[str] = []


class QueryStep(QueryMessage, frozen=True):
    """A step of a query; the last one has no alias."""

    query: str
    alias: str | None = None


class QueryRequest(QueryMessage, frozen=True):
    """A query to run.

    Attributes:
        steps: its steps.
        tables: all tables that it can read; for a tracked query in the order of declaration.
        tracked: the result has the columns ``odf_position`` and ``odf_operation`` of the input row of each
            row, and the order of the input rows unless it has an ORDER BY.
        memory: maximum memory for rows, in bytes; sorts and groups spill to ``scratch``.
        scratch: folder for temporary files.
        system_time: value of ``system_time()`` in RFC 3339, or None if there is no such function.
        parameters: for DuckDB, the values of the parameters of the query as an Arrow IPC stream of one row.
        describe: for DuckDB, return one row with the Arrow schemas (IPC) of the result and of the parameters.
        only_tables: for DuckDB, the query must read only the tables, see
            :func:`~odf_engine.query_process.syntax_tree.find_refused`.
        keep: for DuckDB, the process waits for another request after the last row.
    """

    steps: list[QueryStep]
    tables: list[QueryTable]
    tracked: bool
    memory: int
    scratch: str
    system_time: str | None = None
    parameters: bytes | None = None
    describe: bool = False
    only_tables: bool = False
    keep: bool = False


class ResultProperties(QueryMessage, frozen=True):
    """Properties of a result.

    Attributes:
        ordered: the query has an ORDER BY at its top.
        row_wise: each row comes from one row, in its order: no joins, groups, windows or unions.
    """

    ordered: bool
    row_wise: bool


class ErrorReport(QueryMessage, frozen=True):
    """The error of a failed query.

    Attributes:
        kind: ``query`` (the query is invalid), ``value`` (an expression fails), ``state`` (the query is not
            row-by-row) or ``other``.
        table: the name of a table that does not exist, or "" for other errors.
    """

    kind: str
    message: str
    where: str = ""
    hint: str = ""
    table: str = ""
