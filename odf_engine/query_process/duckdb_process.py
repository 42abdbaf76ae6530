"""The DuckDB process (``python -m``): runs one query and streams its rows.

See :mod:`odf_engine.query_process.query_request` for its messages. The query can read only the files of its
tables: access to other files, extensions and changes of settings are disabled before it is parsed.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO, Final

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from odf_engine.data.arrow_compute import is_list_like, python_values
from odf_engine.query_process.query_request import (
    END_OF_ROWS,
    PROPERTIES,
    ErrorReport,
    QueryRequest,
    QueryTable,
)
from odf_engine.query_process.syntax_tree import SYNTAX_TREE, find_refused
from odf_engine.sql.duckdb_text import (
    PREPARATION,
    SETTINGS,
    confinement,
    literal,
    path_list,
    quoted,
    storable_value,
)

_BATCH_ROWS: Final = 1 << 14
_THREADS: Final = min(os.cpu_count() or 1, 4)
_TYPE_NAMES: Final = {
    "bool": "BOOLEAN", "int8": "TINYINT", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT",
    "uint8": "UTINYINT", "uint16": "USMALLINT", "uint32": "UINTEGER", "uint64": "UBIGINT",
    "halffloat": "FLOAT", "float": "FLOAT", "double": "DOUBLE", "string": "VARCHAR", "binary": "BLOB",
    "fixed_size_binary": "BLOB", "date32": "DATE", "date64": "DATE", "time32": "TIME", "time64": "TIME",
    "null": "INTEGER",
}  # fmt: skip
"""Types of DuckDB by types of Arrow."""
_INVALID_VALUE: Final = ("Conversion", "Out of Range", "Invalid Input", "Mismatch Type", "Divide by Zero")
_SETTINGS: Final = (
    "SET errors_as_json = true",
    "SET parquet_metadata_cache = true",  # slices never change, and each is opened several times
)
_MAX_LEVELS: Final = 10_000  # DuckDB allows 1000 in an expression; its syntax tree has more
_EXPLAIN: Final = "EXPLAIN "
_SELECT: Final = "a query must be one SELECT"
_FILES: Final = "a query reads only datasets, and files as in FROM 'cases.csv'"
_DAMAGED: Final = "verify the datasets, and free disk space"
_NO_SCHEMA: Final = re.compile(r'Table with name "?(.+?)"? does not exist because schema')
_JSON: Final = re.compile(r"\{.*\}", re.DOTALL)


class _Failure(Exception):
    """The query failed."""

    def __init__(self, report: ErrorReport) -> None:
        super().__init__(report.message)
        self.report = report


def main() -> None:
    """Run the queries of the requests, and exit with 0 after the last row of the last one."""
    sys.setrecursionlimit(_MAX_LEVELS)
    requests: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library could print to standard output
    while True:
        connection = _connect()  # before the request, since it takes longer than many queries
        request = msgspec.json.decode(requests.get(), type=QueryRequest)
        code = _run(connection, request, output)
        if code or not request.keep:
            os._exit(code)  # threads of the library, and the one that reads the input, could delay the end


def _run(connection: duckdb.DuckDBPyConnection, request: QueryRequest, output: BinaryIO) -> int:
    """Run a query; return the exit code."""
    try:
        with connection:
            _write_rows(connection, request, output)
        return 0
    except BrokenPipeError:  # the job has all rows that it needs
        os._exit(0)
    except _Failure as failure:
        return _send(failure.report)
    except (duckdb.Error, pa.ArrowException, OSError, MemoryError) as error:
        return _send(_describe(error, request.steps[0].query))


def _read_requests(requests: SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        requests.put(line)
    os._exit(0)  # no query needs this process


def _send(report: ErrorReport) -> int:
    """Write the report; return the exit code."""
    sys.stderr.flush()
    os.write(2, b"\n" + msgspec.json.encode(report) + b"\n")
    return 1


def _connect() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:", config=SETTINGS | {"threads": _THREADS})
    for statement in (*PREPARATION, *_SETTINGS):
        connection.execute(statement)
    return connection


def _write_rows(connection: duckdb.DuckDBPyConnection, request: QueryRequest, output: BinaryIO) -> None:
    """Write the rows as an Arrow IPC stream."""
    scratch = Path(request.scratch)
    connection.execute(f"SET memory_limit = '{request.memory >> 10}KiB'")
    connection.execute(f"SET temp_directory = {literal(str(scratch))}")
    for number, table in enumerate(request.tables):
        _create_view(connection, table, scratch / f"texts-{number}")
    for statement in confinement([scratch], [path for table in request.tables for path in table.paths]):
        connection.execute(statement)
    rows = _compute(connection, request)
    schema = rows.schema.with_metadata({PROPERTIES: b'{"ordered":false,"rowWise":false}'})
    with pa.ipc.new_stream(output, schema) as writer:
        output.flush()
        for batch in rows:
            writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
            output.flush()
    if request.keep:
        output.write(END_OF_ROWS)
    output.flush()


def _compute(connection: duckdb.DuckDBPyConnection, request: QueryRequest) -> pa.RecordBatchReader:
    """Return the rows of the query, which must be one SELECT, or its description."""
    query = request.steps[0].query
    statements = connection.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        hint = (
            "remove the other statements" if len(statements) > 1 else "data can only be read: write a SELECT"
        )
        raise _Failure(ErrorReport("query", _SELECT, hint=hint))
    names = sorted(statements[0].named_parameters, key=lambda name: (len(name), name))  # 10 is after 9
    if request.only_tables:
        _check_reads(connection, query, [table.name for table in request.tables])
    if request.describe:
        return _description(connection, query, names)
    if not names and request.parameters is None:
        return _stored_rows(_parse(connection, query)).to_arrow_reader(_BATCH_ROWS)
    values = _parameter_values(names, request.parameters)
    return _stored_rows(_parse(connection, query, values)).to_arrow_reader(_BATCH_ROWS)


def _check_reads(connection: duckdb.DuckDBPyConnection, query: str, tables: Collection[str]) -> None:
    """Check that a query reads only its tables."""
    ((text,),) = connection.execute(SYNTAX_TREE, [query]).fetchall()
    try:
        tree = json.loads(text)
    except RecursionError:
        report = ErrorReport("query", "the query has too many levels", hint="split long expressions")
    else:
        report = find_refused(tree, tables, lambda position: _place(query, str(position), 0))
    if report is not None:
        raise _Failure(report)


def _description(
    connection: duckdb.DuckDBPyConnection, query: str, parameters: list[str]
) -> pa.RecordBatchReader:
    """Return one row with the schemas of the result and of the parameters, whose types are unknown."""
    if parameters:
        values = _named_or_listed(dict.fromkeys(parameters))
        rows = _parse(connection, f"SELECT * FROM ({query}\n) LIMIT 0", values)
    else:
        rows = _parse(connection, query).limit(0)
    result = _stored_rows(rows).to_arrow_reader().schema
    schemas = [result, pa.schema([(name, pa.null()) for name in parameters])]
    columns = [[schema.serialize().to_pybytes()] for schema in schemas]
    batch = pa.record_batch(columns, ["result", "parameters"])
    return pa.RecordBatchReader.from_batches(batch.schema, [batch])


def _parameter_values(names: list[str], data: bytes | None) -> list[Any] | dict[str, Any]:
    """Return the values of parameters: by name, or by number in order."""
    columns = pa.table({}) if data is None else pa.ipc.open_stream(data).read_all()
    if columns.num_columns != len(names):
        problem = f"the number of parameters is {len(names)}, but the number of values {columns.num_columns}"
        raise _Failure(ErrorReport("query", problem, hint="bind one value for each parameter"))
    values = [python_values(column)[0] for column in columns.columns]
    is_named = set(columns.column_names) == set(names)
    row = dict(zip(columns.column_names if is_named else names, values, strict=True))
    return _named_or_listed({name: row[name] for name in names})


def _named_or_listed(values: dict[str, Any]) -> list[Any] | dict[str, Any]:
    """Return the values of parameters as DuckDB takes them: a list if they are numbered."""
    return list(values.values()) if all(map(str.isdecimal, values)) else values


def _parse(
    connection: duckdb.DuckDBPyConnection, query: str, values: list[Any] | dict[str, Any] | None = None
) -> duckdb.DuckDBPyRelation:
    if values is not None:
        return connection.sql(query, params=values)
    try:
        return connection.sql(query)
    except duckdb.Error:
        try:
            connection.execute(_EXPLAIN + query)
        except duckdb.Error as error:  # it has the position
            raise _Failure(_describe(error, query, len(_EXPLAIN))) from None
        raise


def _stored_rows(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Return rows with types that Arrow has."""
    kinds = list(map(str, relation.types))
    values = [storable_value(f"#{at}", kind) for at, kind in enumerate(kinds, start=1)]
    if all(value.startswith("#") for value in values):
        return relation
    columns = zip(values, map(quoted, relation.columns), strict=True)
    return relation.project(", ".join(f"{value} AS {name}" for value, name in columns))


def _create_view(connection: duckdb.DuckDBPyConnection, table: QueryTable, copies: Path) -> None:
    """Create a view with the columns of a table. Columns that no file has are null.

    Args:
        copies: the folder for copies of files that DuckDB cannot read exactly.
    """
    schema = pa.ipc.read_schema(pa.py_buffer(table.schema))
    _check_names(table.name, schema.names)
    wide = [field.name for field in schema if types.is_decimal256(field.type)]
    kinds = [_type_name(field.type) for field in schema]
    paths = list(map(Path, table.paths))
    stored: dict[str, str] = {}
    rows = "(SELECT 1) WHERE false"
    if paths:
        if wide:
            copies.mkdir()
            paths = [_with_texts(path, copies / path.name, wide) for path in paths]
        rows = f"read_parquet({path_list(paths)}, union_by_name = true)"
        try:
            relation = connection.sql(f"FROM {rows}")
        except duckdb.Error:
            for path in paths:
                _check_readable(connection, path)
            raise
        stored = dict(zip(relation.columns, map(str, relation.types), strict=True))
    columns = [_column(name, kind, stored.get(name)) for name, kind in zip(schema.names, kinds, strict=True)]
    view = quoted(table.name)
    connection.execute(f"CREATE OR REPLACE VIEW {view} AS SELECT {', '.join(columns)} FROM {rows}")


def _check_readable(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Check the footer of a file."""
    try:
        connection.sql(f"FROM read_parquet({path_list([path])})")
    except duckdb.Error as error:
        report = _describe(error, "")
        problem = f"the file cannot be read: {report.message}"
        raise _Failure(ErrorReport("other", problem, str(path), _DAMAGED)) from None


def _check_names(table: str, names: Sequence[str]) -> None:
    """Check that no two columns have the same name, as DuckDB compares names."""
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(name.casefold(), name)
        if other != name:
            problem = f"the columns '{other}' and '{name}' of {table} have the same name in DuckDB"
            raise _Failure(ErrorReport("query", problem, hint="use the engine spark"))


def _type_name(data_type: pa.DataType) -> str:
    """Return the type of DuckDB for the values of a column. Decimals of more than 38 digits are texts."""
    if types.is_decimal(data_type):
        is_wide = data_type.precision > 38
        return "VARCHAR" if is_wide else f"DECIMAL({data_type.precision},{data_type.scale})"
    if types.is_timestamp(data_type):
        if data_type.unit == "ns":
            return "TIMESTAMPTZ_NS" if data_type.tz else "TIMESTAMP_NS"
        return "TIMESTAMP WITH TIME ZONE" if data_type.tz else "TIMESTAMP"
    if types.is_struct(data_type):
        return f"STRUCT({', '.join(f'{quoted(part.name)} {_type_name(part.type)}' for part in data_type)})"
    if types.is_map(data_type):
        return f"MAP({_type_name(data_type.key_type)}, {_type_name(data_type.item_type)})"
    if is_list_like(data_type):
        return f"{_type_name(data_type.value_type)}[]"
    name = str(data_type).removeprefix("large_").removesuffix("_view").partition("[")[0]
    return _TYPE_NAMES[name]


def _column(name: str, kind: str, stored: str | None) -> str:
    """Return the expression of a column; ``stored`` is its type in the files, or None if they lack it."""
    column = quoted(name)
    if stored is None:
        return f"NULL::{kind} AS {column}"
    return column if stored == kind else f"CAST({column} AS {kind}) AS {column}"


def _with_texts(path: Path, target: Path, columns: Sequence[str]) -> Path:
    """Copy a file with columns as text. DuckDB would read decimals of more than 38 digits as DOUBLE."""
    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        for name in columns:
            if (at := schema.get_field_index(name)) >= 0:
                schema = schema.set(at, pa.field(name, pa.string()))
        with pq.ParquetWriter(target, schema) as writer:
            for batch in file.iter_batches(_BATCH_ROWS):
                arrays = [array.cast(field.type) for array, field in zip(batch.columns, schema, strict=True)]
                writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return target


def _describe(error: Exception, query: str, skipped: int = 0) -> ErrorReport:
    """Describe an error of the library; its text has the details as JSON.

    Args:
        error: the error.
        query: the query.
        skipped: the number of bytes before the query in the statement that failed.
    """
    match = _JSON.search(str(error))
    try:
        details: dict[str, Any] = json.loads(match[0]) if match is not None else {}
    except ValueError:
        details = {}
    kind = details.get("exception_type", "")
    message = str(details.get("exception_message") or error or "not enough memory")
    first, _, rest = message.partition("\n")
    name, candidates = details.get("name", ""), details.get("candidates", "")
    where = _place(query, details.get("position"), skipped)
    if (match := _NO_SCHEMA.match(first)) is not None:
        name = match[1]
    if match is not None or (kind == "Catalog" and details.get("type") == "Table"):
        return ErrorReport("query", f"table '{name}' not found", where, table=name)
    if details.get("error_subtype") == "COLUMN_NOT_FOUND":
        hint = f"did you mean {candidates.split(',')[0]}?" if candidates else ""
        return ErrorReport("query", f"column '{name}' not found", where, hint)
    if kind == "Permission":
        return ErrorReport("query", first, where, _FILES)
    if kind == "Out of Memory" or isinstance(error, MemoryError):
        problem = f"the query needs more memory than sql.memory: {first}"
        return ErrorReport("other", problem, hint="increase sql.memory, or read fewer columns and rows")
    if first.startswith("Failed to read file"):
        return ErrorReport("other", first, hint=_DAMAGED)
    if kind in _INVALID_VALUE:
        return ErrorReport("value", first, where)
    if kind in ("IO", "") or not isinstance(error, duckdb.Error | pa.ArrowException):
        return ErrorReport("other", first, hint=_DAMAGED)
    return ErrorReport("query", first, where, hint=" ".join(rest.split()) if kind == "Catalog" else "")


def _place(query: str, position: str | None, skipped: int) -> str:
    """Return the line and column of a position in bytes, or "" if it is unknown."""
    if position is None or not position.isdigit():
        return ""
    before = query.encode()[: max(int(position) - skipped, 0)].decode("utf-8", "ignore")
    return f"query, line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


if __name__ == "__main__":
    main()
