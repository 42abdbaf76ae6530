"""The DataFusion process (``python -m``): runs one query and streams its rows.

See :mod:`odf_engine.query_process.query_request` for its messages.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
import pyarrow as pa
from datafusion import DataFrame, RuntimeEnvBuilder, SessionConfig, SessionContext, SQLOptions, udf

from odf_engine.query_process.query_request import (
    LISTED_EXTENSION,
    PROPERTIES,
    ErrorReport,
    QueryRequest,
    QueryStep,
    QueryTable,
    ResultProperties,
)
from odf_engine.query_process.row_lineage import NotRowByRow, column, is_row_wise, quoted, track_rows

_SETTINGS: Final = {
    # Names are case-sensitive, also without quotes.
    "datafusion.sql_parser.enable_ident_normalization": "false",
    "datafusion.execution.parquet.schema_force_view_types": "false",
    "datafusion.execution.time_zone": "+00:00",
    # The statistics of files do not count NaN, which is greater than every number in a query.
    "datafusion.execution.collect_statistics": "false",
    "datafusion.catalog.information_schema": "false",
}
_PLANS: Final = ("Explain", "Analyze", "DescribeTable")
"""Plans of statements that SQLOptions allow."""
_STATEMENT: Final = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(ALTER|BEGIN|COPY|CREATE|DELETE|DESC|DESCRIBE|DROP|EXECUTE|EXPLAIN|INSERT|PREPARE"
    r"|RESET|SET|SHOW|TRUNCATE|UPDATE|USE)\b",
    re.IGNORECASE | re.DOTALL,
)
_LITERAL: Final = re.compile(r'Utf8\("(.*?)"\)', re.DOTALL)
_NONREPEATABLE: Final = re.compile(
    r"\b(now|random|rand|uuid|current_date|current_time|current_timestamp|today|version|input_file_name"
    r"|file_row_index)\(\)"
)
_PREFIXES: Final = re.compile(
    r"^(?:DataFusion error|Error during planning|Schema error|Execution error|Arrow error"
    r"|Invalid argument error|This feature is not implemented|Optimizer rule '\w+' failed|type_coercion"
    r"|Parquet error|External error|External|Internal error|Error|SQL error): *(?:caused by\s*)?"
)
_PARSER: Final = re.compile(
    r'ParserError\("(.*?)(?: at Line: (\d+), Column: (\d+)(?::? ?.*)?)?"\)', re.DOTALL
)
_NO_TABLE: Final = re.compile(r"table '(?:datafusion\.public\.|datafusion\.)?(.*?)' not found")
_NO_FIELD: Final = re.compile(r"No field named (.*?)\.(?:\s|$)")
_SIMILAR_FIELD: Final = re.compile(r"Did you mean '(.*?)'\?")
_FIELDS: Final = re.compile(r"Valid fields are (.*?)\.?\s*$", re.DOTALL)
_QUALIFIER: Final = re.compile(r'(?:"[^"]*"|\w+)\.')
_DENIED: Final = re.compile(r"(?:DDL|DML|Statement) not supported: (\w+)|Unsupported SQL statement: (.*)")
_VALUE: Final = re.compile(
    r"Arrow error|Cast error|Divide by zero|Execution error|Parser error|Compute error|Overflow",
    re.IGNORECASE,
)


class _Failure(Exception):
    """The query failed."""

    def __init__(self, report: ErrorReport) -> None:
        super().__init__(report.message)
        self.report = report


def main() -> None:
    """Run the query of the request, and exit with 0 after its last row."""
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=QueryRequest)
    threading.Thread(target=_exit_at_end_of_input, daemon=True).start()
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # A library could print to standard output.
    try:
        _Run(request).write_rows(output)
    except _Failure as failure:
        _exit(failure.report)
    except BrokenPipeError:  # The job has all rows that it needs.
        os._exit(0)


def _exit(report: ErrorReport) -> NoReturn:
    sys.stderr.flush()
    os.write(2, b"\n" + msgspec.json.encode(report) + b"\n")
    os._exit(1)


def _exit_at_end_of_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


class _Run:
    """Runs the query of one request."""

    def __init__(self, request: QueryRequest) -> None:
        self._request = request
        self._step = ""

    def write_rows(self, output: Any) -> None:
        """Write the rows as an Arrow IPC stream."""
        try:
            frame, properties = self._tracked_frame() if self._request.tracked else self._plain_frame()
            reader = pa.RecordBatchReader.from_stream(frame)
            schema = reader.schema.with_metadata({PROPERTIES: msgspec.json.encode(properties)})
            with pa.ipc.new_stream(output, schema) as writer:
                output.flush()
                for batch in reader:
                    writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
                    output.flush()
            output.close()
            os._exit(0)  # Threads of the library, and the one that reads the input, could delay the end.
        except (_Failure, BrokenPipeError):
            raise
        except OSError as error:
            raise _Failure(_report(str(error), "")) from None
        except Exception as error:  # The library raises `Exception` itself, and `ValueError`.
            raise _Failure(_report(str(error), self._step)) from None

    def _tracked_frame(self) -> tuple[DataFrame, ResultProperties]:
        planned = self._context()
        for table in self._request.tables:
            _register_empty(planned, table)
        plan = self._plan(planned).logical_plan()
        _check_repeatable(plan)
        context = self._context()
        names = [f"input {number}" for number in range(len(self._request.tables))]
        for name, table in zip(names, self._request.tables, strict=True):
            _register(context, table, name)
        places = {table.name: name for name, table in zip(names, self._request.tables, strict=True)}
        try:
            found = track_rows(
                plan, self._request.tables, lambda table: context.table(quoted(places[table.name]))
            )
        except NotRowByRow as error:
            raise _Failure(ErrorReport("state", str(error))) from None
        return found.frame, ResultProperties(found.ordered, is_row_wise(plan))

    def _plain_frame(self) -> tuple[DataFrame, ResultProperties]:
        context = self._context()
        for table in self._request.tables:
            _register(context, table, table.name)
        frame = self._plan(context)
        plan = frame.logical_plan()
        ordered = type(plan.to_variant()).__name__ == "Sort"
        return frame, ResultProperties(ordered, is_row_wise(plan))

    def _context(self) -> SessionContext:
        """Return a context with the settings of all queries, and without any table."""
        config = SessionConfig(_SETTINGS).with_target_partitions(1).with_information_schema(False)
        runtime = (
            RuntimeEnvBuilder()
            .with_fair_spill_pool(self._request.memory)
            .with_temp_file_path(self._request.scratch)
        )
        context = SessionContext(config, runtime)
        if self._request.system_time is not None:
            data_type = pa.timestamp("ms", "UTC")
            value = pa.array([self._request.system_time]).cast(data_type)
            context.register_udf(udf(lambda: value, [], data_type, "stable", name="system_time"))
        return context

    def _plan(self, context: SessionContext) -> DataFrame:
        """Return the last step; the others become views. Nothing runs."""
        steps = self._request.steps
        frame = None
        for number, step in enumerate(steps, 1):
            self._step = f" step {number} of {len(steps)}" if len(steps) > 1 else ""
            frame = self._plan_step(context, step)
            if step.alias is not None:
                context.register_view(quoted(step.alias), frame)
        assert frame is not None
        self._step = ""  # An error while it runs can be in any step.
        return frame

    def _plan_step(self, context: SessionContext, step: QueryStep) -> DataFrame:
        # The library's own errors for other statements are less clear, but its options deny all of them.
        if (found := _STATEMENT.match(step.query)) is not None:
            message = f"a query must be a SELECT, not {found[1].upper()}"
            raise _Failure(ErrorReport("query", message, where=f"query{self._step}"))
        options = SQLOptions()
        options = options.with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
        frame = context.sql_with_options(step.query, options)
        kind = type(frame.logical_plan().to_variant()).__name__
        if kind in _PLANS:
            raise _Failure(ErrorReport("query", f"a query must be a SELECT, not {kind.upper()}"))
        return frame


def _check_repeatable(plan: Any) -> None:
    found = _NONREPEATABLE.search(_LITERAL.sub("", plan.display_indent()))
    if found is not None:
        hint = "use system_time() for the time of the transaction, and columns of the inputs otherwise"
        message = f"{found[0]} is not deterministic, so the result cannot be verified"
        raise _Failure(ErrorReport("query", message, where="query", hint=hint))


def _register(context: SessionContext, table: QueryTable, name: str) -> None:

    if table.folder is None:
        _register_empty(context, table, name)
        return
    order = [[column(table.offset).sort(ascending=True, nulls_first=False)]] if table.offset else None
    schema = pa.ipc.read_schema(pa.py_buffer(table.schema))
    context.register_parquet(
        quoted(name),
        f"{Path(table.folder).as_uri()}/",  # in a path, characters such as * would be a pattern
        parquet_pruning=not any(map(pa.types.is_floating, schema.types)),
        file_extension=LISTED_EXTENSION,
        schema=schema,
        file_sort_order=order,
    )


def _register_empty(context: SessionContext, table: QueryTable, name: str | None = None) -> None:
    schema = pa.ipc.read_schema(pa.py_buffer(table.schema))
    empty = schema.empty_table().to_batches() or [pa.RecordBatch.from_pylist([], schema=schema)]
    context.register_record_batches(quoted(name or table.name), [empty])


def _report(text: str, step: str) -> ErrorReport:
    """Return the report of an error of the library."""
    where = f"query{step}"
    if (parser := _PARSER.search(text)) is not None:
        if parser[2] is not None:
            where += f", line {parser[2]}, column {parser[3]}"
        return ErrorReport("query", _decapitalize(parser[1].replace('\\"', '"').replace("\\'", "'")), where)
    if (denied := _DENIED.search(text)) is not None:
        statement = denied[1] or denied[2].split()[0]
        return ErrorReport("query", f"a query must be a SELECT, not {statement}", where)
    if (missing := _NO_TABLE.search(text)) is not None:
        return ErrorReport("query", f"table '{missing[1]}' not found", where, table=missing[1])
    if (field := _NO_FIELD.search(text)) is not None:
        name = field[1].strip('"')
        similar, fields = _SIMILAR_FIELD.search(text), _FIELDS.search(text)
        hint = f"did you mean {similar[1]}? " if similar else ""
        hint += f"columns: {_QUALIFIER.sub('', fields[1])}; " if fields else ""
        hint += "names are case-sensitive"
        return ErrorReport("query", f"column '{name}' not found", where, hint)
    lowered = text.casefold()
    if "resources exhausted" in lowered:
        hint = "increase the limit: odf config set datafusion.memory SIZE"
        return ErrorReport("other", _message(text), where, hint)
    if "object store error" in lowered or "parquet error" in lowered:
        return ErrorReport("other", f"an input cannot be read: {_message(text)}")
    return ErrorReport("value" if _VALUE.search(text) else "query", _message(text), where)


def _message(text: str) -> str:
    """Return the innermost cause of an error as a sentence."""
    text = text.rpartition("caused by")[2].strip()
    while (prefix := _PREFIXES.match(text)) is not None and prefix.end():
        text = text[prefix.end() :]
    return _decapitalize(" ".join(text.split()).removesuffix("."))


def _decapitalize(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


if __name__ == "__main__":
    main()
