"""The DuckDB process (``python -m``): runs one query and streams its rows.

See :mod:`odf_engine.query_process.query_request` for its messages. The query can read only the files of its
tables: access to other files, extensions and changes of the configuration are disabled before it is parsed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from odf_engine.query_process.query_request import PROPERTIES, ErrorReport, QueryRequest, QueryTable

_BATCH_ROWS: Final = 1 << 14
_VALUE_ERRORS: Final = ("Conversion", "Out of Range", "Invalid Input", "Mismatch Type", "Divide by Zero")


def main() -> None:
    """Run the query of the request, and exit with 0 after its last row."""
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=QueryRequest)
    threading.Thread(target=_exit_at_end_of_input, daemon=True).start()
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # A library could print to standard output.
    try:
        _write_rows(request, output)
    except duckdb.Error as error:
        _exit(_report(error, request))
    except BrokenPipeError:  # The job has all rows that it needs.
        os._exit(0)
    except (OSError, pa.ArrowException) as error:
        _exit(ErrorReport("other", f"an input cannot be read: {str(error).splitlines()[0]}"))


def _exit(report: ErrorReport) -> NoReturn:
    sys.stderr.flush()
    os.write(2, b"\n" + msgspec.json.encode(report) + b"\n")
    os._exit(1)


def _exit_at_end_of_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def _write_rows(request: QueryRequest, output: Any) -> None:
    """Write the rows as an Arrow IPC stream."""
    scratch = Path(request.scratch)
    connection = duckdb.connect(
        ":memory:",
        config={
            "memory_limit": f"{request.memory >> 10}KiB",
            "temp_directory": str(scratch),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        },
    )
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET errors_as_json = true")
    for table in request.tables:
        _create_view(connection, table, scratch)
    folders = [table.folder for table in request.tables if table.folder] + [str(scratch)]
    connection.execute(f"SET allowed_directories = [{', '.join(map(_literal, folders))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    (step,) = request.steps
    statements = connection.extract_statements(step.query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        _exit(ErrorReport("query", "a query must be one SELECT", "query"))
    reader = connection.execute(statements[0]).to_arrow_reader(_BATCH_ROWS)
    schema = reader.schema.with_metadata({PROPERTIES: b"{}"})
    with pa.ipc.new_stream(output, schema) as writer:
        output.flush()
        for batch in reader:
            writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
            output.flush()
    output.close()
    os._exit(0)  # Threads of the library, and the one that reads the input, could delay the end.


def _create_view(connection: duckdb.DuckDBPyConnection, table: QueryTable, scratch: Path) -> None:
    """Create a view with the columns of a table. Columns that no file has are null."""
    schema = _readable_schema(pa.ipc.read_schema(pa.py_buffer(table.schema)))
    kinds = [str(kind) for kind in connection.from_arrow(schema.empty_table()).types]
    paths = [] if table.folder is None else sorted(str(path) for path in Path(table.folder).iterdir())
    if not paths:
        columns = (f"NULL::{kind} AS {_quoted(name)}" for name, kind in zip(schema.names, kinds, strict=True))
        rows = "(SELECT 1) WHERE false"
    else:
        rows = f"read_parquet([{', '.join(map(_literal, paths))}], union_by_name = true)"
        if any(types.is_decimal256(field.type) for field in _wide_columns(table)):
            rows = f"read_parquet({_literal(str(_with_texts(paths, scratch)))})"
        relation = connection.sql(f"FROM {rows}")
        stored = dict(zip(relation.columns, map(str, relation.types), strict=True))
        columns = (
            _column(name, kind, stored.get(name)) for name, kind in zip(schema.names, kinds, strict=True)
        )
    connection.execute(f"CREATE VIEW {_quoted(table.name)} AS SELECT {', '.join(columns)} FROM {rows}")


def _column(name: str, kind: str, stored: str | None) -> str:
    """Return the expression of a column; ``stored`` is its type in the files, or None if they lack it."""
    column = _quoted(name)
    if stored is None:
        return f"NULL::{kind} AS {column}"
    return column if stored == kind else f"CAST({column} AS {kind}) AS {column}"
