"""Translation of Spark's exceptions into user-facing errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData, Cancelled, InvalidQuery, OdfError
from odf_engine.spark.runtime.jvm import SparkFailed, wait_for_exit

_MAX_CAUSES: Final = 20
_SUMMARY_POSITION: Final = re.compile(r"\(line (\d+), position (\d+)\)")
_PARSER_POSITION: Final = re.compile(r"\(line (\d+), pos (\d+)\)")


@dataclass(frozen=True)
class QueryFragment:
    """The part of a query that an error refers to; line and column count from 1."""

    text: str
    line: int
    column: int


@dataclass(frozen=True)
class JavaThrowable:
    """One Java throwable.

    Attributes:
        kind: name of its Java class.
        message: unmodified, possibly of many lines.
        condition: Spark's error condition, such as ``CAST_INVALID_INPUT``, or "" for other throwables.
        state: SQLSTATE, such as ``22018``.
        parameters: message parameters by name.
        fragment: the part of the query that it refers to, if Spark reports one.
    """

    kind: str
    message: str
    condition: str = ""
    state: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    fragment: QueryFragment | None = None


def throwable_chain(error: BaseException) -> list[JavaThrowable]:
    """Return the chain of causes of an exception, outermost first, or [] if Java provides none."""
    # Deferred, as everywhere in this module: starting Spark imports it before PySpark.
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    thrown = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    causes: list[JavaThrowable] = []
    try:
        while thrown is not None and len(causes) < _MAX_CAUSES:
            causes.append(_cause(thrown))
            thrown = thrown.getCause()
    except (Py4JError, OSError):
        return causes  # Java has exited: return the causes read so far
    if not causes and isinstance(error, PySparkException):
        causes.append(JavaThrowable(type(error).__name__, str(error), error.getCondition() or ""))
    return causes


def _cause(thrown: Any) -> JavaThrowable:
    from py4j.java_gateway import is_instance_of
    from pyspark import SparkContext

    kind = str(thrown.getClass().getName())
    message = str(thrown.getMessage() or "")
    gateway: Any = SparkContext._gateway
    if not is_instance_of(gateway, thrown, "org.apache.spark.SparkThrowable"):
        return JavaThrowable(kind, message)
    condition = str(thrown.getCondition() or "")
    parameters = dict(thrown.getMessageParameters())
    return JavaThrowable(
        kind, message, condition, str(thrown.getSqlState() or ""), parameters, _fragment(thrown, message)
    )


_INTERNAL: Final = re.compile(r"\bodf_[a-z]")
"""Matches the queries over batches and states, whose tables and columns begin with ``odf_``."""


def _fragment(thrown: Any, message: str) -> QueryFragment | None:
    for context in thrown.getQueryContext():
        if str(context.contextType()) == "SQL":
            query = context.sqlText()
            if query.isDefined() and _INTERNAL.search(str(query.get())):
                continue  # its position is not one in the query of the user
            match = _SUMMARY_POSITION.search(str(context.summary()))
            text = str(context.fragment())
            if match is None and not text:
                continue  # an expression without a position in the query
            line, column = (int(match[1]), int(match[2])) if match else (1, 1)
            return QueryFragment(text, line, column)
    # The parser counts columns from 0, and reports them only in its message.
    match = _PARSER_POSITION.search(message)
    return QueryFragment("", int(match[1]), int(match[2]) + 1) if match else None


BAD_VALUE_PREFIX: Final = "odf:bad-value"
"""Prefix of the message by which a job reports a bad value (see :mod:`odf_engine.spark.sql_types`)."""
SEPARATOR: Final = "\x1f"
"""Separates the parts of such a message."""
_CODE: Final = re.compile(r"^\s*\[[A-Z_0-9.]+\]\s*")
_TAIL: Final = re.compile(r"\s*(SQLSTATE: \w+|== (SQL|DataFrame)|Parse Mode:|; line \d+ pos).*", re.DOTALL)
_ADVICE: Final = re.compile(
    r"\s*(If necessary,? set .*?bypass this error|Search path: .*?\]|Verify the .*?"
    r"|Please,? refer to .*? for a fix|Please increase heap size .*? in Spark configuration)\.",
    re.DOTALL,
)
_CONTEXT_STOPPED: Final = re.compile(r"stopped SparkContext|SparkContext (was|has been) shut down")
_OUT_OF_MEMORY: Final = (3, 52)
"""Exit codes of Spark's process after it ran out of memory: of Java, and of Spark's tasks."""
_EXECUTOR_OUT_OF_MEMORY: Final = re.compile(r"ExecutorLostFailure .* code 52\b", re.DOTALL)
_WINDOWS: Final = ("TUMBLE", "HOP", "SESSION", "TUMBLE_START", "TUMBLE_END", "TUMBLE_ROWTIME")


class RejectedRow(BadData):
    """A row of external data that violates the declared schema.

    Attributes:
        record: text of the row, if known.
        column: name of the column, if known.
        value: the invalid value as text, if known.
        expected: declared type of the column, if known.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        where: str | None = None,
        record: str | None = None,
        column: str | None = None,
        value: str | None = None,
        expected: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, where=where)
        self.record = record
        self.column = column
        self.value = value
        self.expected = expected


class QueryError(InvalidQuery):
    """A query that Spark rejects.

    Attributes:
        line: line in the query, from 1, or None if unknown.
        column: column in that line, from 1.
        fragment: the failing expression, or "" if unknown.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        where: str | None = None,
        line: int | None = None,
        column: int | None = None,
        fragment: str = "",
    ) -> None:
        super().__init__(message, hint=hint, where=where)
        self.line = line
        self.column = column
        self.fragment = fragment


@contextmanager
def translate_errors(reporter: Reporter | None = None) -> Iterator[None]:
    """Translate exceptions of Spark in the block into an :class:`OdfError`.

    Raises:
        Cancelled: the reporter was cancelled; this applies to any exception.
        QueryError: the query is invalid.
        RejectedRow: a row or value is invalid.
        SparkFailed: any other failure.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, OSError, EOFError) as error:
        if reporter is not None and reporter.cancelled:
            raise Cancelled from None
        raise to_user_error(error) from error


def to_user_error(error: BaseException) -> OdfError:
    """Return the user-facing error for an exception of Spark."""
    causes = throwable_chain(error)
    if any(_CONTEXT_STOPPED.search(cause.message) for cause in causes):
        return _process_lost(wait_for_exit(10, kill=True))
    if not causes:
        return _process_lost(wait_for_exit(2, kill=False))
    for cause in reversed(causes):
        for rule in (
            _bad_row,
            _bad_query,
            _bad_event,
            _bad_value,
            _missing_file,
            _out_of_resources,
            _cancelled_job,
        ):
            if (translated := rule(cause)) is not None:
                return translated
    deepest = causes[-1]
    return SparkFailed(
        f"Spark failed: {clean_message(deepest.message) or deepest.kind.rpartition('.')[2]}",
        hint="see the log `.odf/spark.log`",
    )


def _process_lost(exit_code: int | None) -> SparkFailed:
    """Return the error for a Spark process that does not respond, with the reason in its exit code."""
    if exit_code in _OUT_OF_MEMORY:
        return _out_of_memory()
    return SparkFailed(
        "Spark's process has exited or does not respond",
        hint="try again: Spark restarts; see the log `.odf/spark.log`",
    )


def _out_of_memory() -> SparkFailed:
    return SparkFailed(
        "Spark ran out of memory",
        hint="increase it: `odf config set spark.driverMemory 4g` and `odf worker stop`, then try again",
    )


def clean_message(message: str) -> str:
    """Return a message of Spark as one line without codes, plans and configuration advice."""
    text = _ADVICE.sub("", _TAIL.sub("", _CODE.sub("", message)))
    line = " ".join(part.strip() for part in text.split("\n") if part.strip()).rstrip(". ")
    return truncate(line)


def truncate(text: str, max_length: int = 300) -> str:
    """Truncate a text to ``max_length`` characters, with an ellipsis."""
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def lower_first_word(sentence: str) -> str:
    """Lower the first letter of a sentence, as after a colon; words in capitals stay."""
    return sentence if sentence[1:2].isupper() else sentence[:1].lower() + sentence[1:]


def unquote_name(text: str) -> str:
    """Return an identifier from a message of Spark without its outer quotes."""
    return text.strip("'\"")


def _bad_row(cause: JavaThrowable) -> OdfError | None:
    parameters = cause.parameters
    match cause.condition:
        case "USER_RAISED_EXCEPTION" if parameters["errorMessage"].startswith(BAD_VALUE_PREFIX):
            return _parse_bad_value(parameters["errorMessage"])
        case "MALFORMED_CSV_RECORD":
            record = parameters["badRecord"]
            return RejectedRow(
                f"a row has more or fewer values than columns: {truncate(record)}",
                record=record,
                hint="check the separator and quotes of the manifest, or the row itself",
            )
        case "CANNOT_PARSE_JSON_FIELD":
            return _value_error(
                # Only the outer type: nested values are not read as their declared types here.
                unquote_name(parameters["fieldName"]),
                unquote_name(parameters["dataType"]).partition("<")[0],
                parameters["fieldValue"],
            )
        case condition if condition.startswith("MALFORMED_RECORD_IN_PARSING"):
            return RejectedRow("a row does not match the schema")
    if cause.kind.startswith("com.fasterxml.jackson"):
        return RejectedRow(
            f"a line is not JSON: {truncate(cause.message.splitlines()[0].partition(' (start marker')[0])}",
            hint="write one JSON object per line",
        )
    if cause.kind == "org.xml.sax.SAXParseException":
        if "accessExternalDTD" in cause.message:
            return RejectedRow(
                "a value is XML with an external DTD, which queries cannot read",
                hint="remove the DOCTYPE in the query, such as regexp_replace(x, '<!DOCTYPE[^>]*>', '')",
            )
        return RejectedRow(f"a value is not valid XML: {lower_first_word(clean_message(cause.message))}")
    return None


_EVENT_ERROR: Final = re.compile(r"ethereum\.abi\.(SignatureError|DecodeError): (.*)")


def _bad_event(cause: JavaThrowable) -> OdfError | None:
    """Return the error of a function that decodes events; see :mod:`odf_engine.spark.query_functions`."""
    match = _EVENT_ERROR.search(cause.message) if cause.kind.endswith("PythonException") else None
    if match is None:
        return None
    if match[1] == "SignatureError":
        hint = (
            "write it as in Solidity: event Transfer(address indexed from, address indexed to, uint256 value)"
        )
        return QueryError(match[2], hint=hint)
    hint = "filter the logs by topic0 and address, or use eth_try_decode_event, which returns NULL"
    return BadData(f"a log cannot be decoded: {match[2]}", hint=hint)


def _parse_bad_value(message: str) -> RejectedRow:
    """Parse an error that a job reported through :mod:`odf_engine.spark.sql_types`."""
    _, column, expected, value = message.split(SEPARATOR, 3)
    if expected == "NOT NULL":
        return RejectedRow(
            f"column `{column}` is declared NOT NULL, but a row has no value for it",
            column=column,
            expected=expected,
            hint="remove NOT NULL from the schema, or filter out such rows in the preprocess query",
        )
    return _value_error(column, expected, value)


def _value_error(column: str, expected: str, value: str) -> RejectedRow:
    return RejectedRow(
        f"column `{column}` has the value '{truncate(value)}', which is not {with_article(expected)}",
        column=column,
        value=value,
        expected=expected,
        hint=f"declare `{column}` STRING and convert it in the preprocess query, or correct the data",
    )


def with_article(type_name: str) -> str:
    """Return the name of a type with its indefinite article."""
    return f"an {type_name}" if type_name[0] in "AEIO" else f"a {type_name}"


def _bad_query(cause: JavaThrowable) -> OdfError | None:
    if "Intervals greater than a month" in cause.message:
        return QueryError(
            "a window must have a fixed length, which months do not have",
            hint="use days or weeks, or GROUP BY date_trunc('MONTH', event_time) without a window",
        )
    pattern = cause.condition.startswith(("INVALID_DATETIME_PATTERN", "INCONSISTENT_BEHAVIOR"))
    if not (pattern or cause.state.startswith(("42", "0A", "21")) or "ParseException" in cause.kind):
        return None
    message, hint = _query_message(cause)
    fragment = cause.fragment
    if fragment is None:
        return QueryError(message, hint=hint)
    if fragment.text and fragment.text.strip("`") not in message:
        message = f"{message}, in `{truncate(fragment.text)}`"
    return QueryError(
        message,
        hint=hint,
        where=f"line {fragment.line}, column {fragment.column}",
        line=fragment.line,
        column=fragment.column,
        fragment=fragment.text,
    )


def _query_message(cause: JavaThrowable) -> tuple[str, str | None]:
    parameters = cause.parameters
    match cause.condition:
        case "PARSE_SYNTAX_ERROR" if parameters["error"] == "';'":
            return "only one statement is allowed: a second one begins after ';'", (
                "write the statements as steps under `queries:`"
            )
        case "PARSE_SYNTAX_ERROR":
            return f"syntax error at or near {parameters['error']}{parameters['hint']}", None
        case "UNRESOLVED_COLUMN.WITH_SUGGESTION":
            return f"column {parameters['objectName']} not found", f"did you mean {parameters['proposal']}?"
        case "UNRESOLVED_COLUMN.WITHOUT_SUGGESTION":
            return f"column {parameters['objectName']} not found", (
                "check the syntax: as Spark reads it, the query has no FROM clause"
            )
        case "AMBIGUOUS_REFERENCE":
            which = parameters["referenceNames"].strip("[]").replace(", ", " or ")
            return f"column {parameters['name']} is ambiguous", f"qualify the column: {which}"
        case "AGGREGATE_FUNCTION_WITH_NONDETERMINISTIC_EXPRESSION":
            expression = unquote_name(parameters["sqlExpr"])
            return f"{expression} is not deterministic, so the result cannot be verified", (
                "use system_time() for the time of the transaction, and columns of the inputs otherwise"
            )
        case "MISSING_AGGREGATION":
            expression = unquote_name(parameters["expression"])
            return f"{expression} is neither grouped by nor aggregated", (
                f"add it to GROUP BY, or aggregate it, such as max({expression})"
            )
        case "UNBOUND_SQL_PARAMETER":
            return "the query cannot have parameters", "write the values into the query"
        case "UNRESOLVABLE_TABLE_VALUED_FUNCTION":
            return (f"table function {parameters['name']} not found", "read the inputs by their aliases")
        case "INVALID_SUBQUERY_EXPRESSION.STREAMING_QUERY":
            return "subqueries over inputs are not supported in expressions", (
                "join the input with a time bound, or aggregate it in a separate dataset"
            )
        case "UNRESOLVED_FIELD.WITH_SUGGESTION":
            return f"field {parameters['fieldName']} not found", f"did you mean {parameters['proposal']}?"
        case "FIELD_NOT_FOUND":
            return f"field {parameters['fieldName']} not found", f"fields: {parameters['fields']}"
        case "TABLE_OR_VIEW_NOT_FOUND":
            return f"table or view {parameters['relationName']} not found", None
        case "UNRESOLVED_ROUTINE":
            name = parameters["routineName"]
            window = name.strip("`").upper() in _WINDOWS
            return f"function {name} not found", (
                "write windows as `window(event_time, '1 day')`, as Spark does" if window else None
            )
    return lower_first_word(clean_message(cause.message)), None


def _bad_value(cause: JavaThrowable) -> OdfError | None:
    """Translate a value that an expression rejects (SQLSTATE class 22), or an error raised by the query."""
    if cause.condition == "USER_RAISED_EXCEPTION":
        return RejectedRow(f"the query raised an error: {truncate(cause.parameters['errorMessage'])}")
    if not cause.state.startswith("22"):
        return None
    fragment = cause.fragment
    if cast := _invalid_cast(cause):
        value, expected = cast
        message = f"the value {truncate(value)} is not {with_article(expected)}"
        error = RejectedRow(message, value=value.strip("'"), expected=expected)
        error.hint = "use `try_cast` in the query to convert such values to NULL"
    else:
        first, *more = clean_message(cause.message).split(". ")
        error = RejectedRow(lower_first_word(first))
        if cause.condition.startswith("INVALID_INTERVAL_FORMAT"):
            error.hint = "write an interval such as '1 day' or '15 minutes'"
            return error
        # Spark does not report which expression overflowed
        if cause.condition == "ARITHMETIC_OVERFLOW" and fragment is None:
            hint = "use a larger type, such as sum(CAST(… AS DECIMAL(38, 0)))"
            return RejectedRow("a sum, or another aggregate, overflows its type", where="query", hint=hint)
        error.hint = next((lower_first_word(advice) for advice in more if advice.startswith("Use ")), None)
    if fragment is not None:
        error.where = f"query, line {fragment.line}, column {fragment.column}"
        error.message += f", in `{truncate(fragment.text)}`" if fragment.text else ""
    return error


def _invalid_cast(cause: JavaThrowable) -> tuple[str, str] | None:
    """Return the value that a cast rejects, in quotes if it is a text, and the type."""
    known = cause.parameters
    match cause.condition:
        case "CAST_INVALID_INPUT":
            return known["expression"], unquote_name(known["targetType"])
        case "CAST_OVERFLOW":
            return known["value"].rstrip("LSBDF"), unquote_name(known["targetType"])
        case "NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION":
            return known["value"], f"DECIMAL({known['precision']},{known['scale']})"
        case "NUMERIC_VALUE_OUT_OF_RANGE.WITHOUT_SUGGESTION":
            return known["originalValue"], f"DECIMAL({known['precision']},{known['scale']})"
        case _:
            return None


def _missing_file(cause: JavaThrowable) -> OdfError | None:
    if cause.condition != "FAILED_READ_FILE.FILE_NOT_EXIST":
        return None
    path = Path(unquote(urlsplit(cause.parameters["path"]).path))
    return SparkFailed(
        f"Spark cannot find the file {path.resolve()}",
        hint="on a cluster, share the workspace and the pulled files between all machines, under the "
        "same paths",
    )


def _out_of_resources(cause: JavaThrowable) -> OdfError | None:
    if cause.kind == "java.lang.OutOfMemoryError" or "OutOfMemory" in cause.condition:
        return _out_of_memory()
    if _EXECUTOR_OUT_OF_MEMORY.search(cause.message):
        return SparkFailed(
            "an executor of the cluster ran out of memory",
            hint="increase it: `odf config set spark.conf.spark.executor.memory 4g` and `odf worker "
            "stop`, then try again",
        )
    if "No space left on device" in cause.message:
        return SparkFailed("the disk is full", hint="free disk space and try again")
    return None


def _cancelled_job(cause: JavaThrowable) -> OdfError | None:
    if "cancelled" in cause.message and cause.kind == "org.apache.spark.SparkException":
        return Cancelled("the Spark job was cancelled")
    return None
