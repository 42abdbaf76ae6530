"""The chain of Java's throwables behind an exception of Spark, as plain data."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

_DEEPEST: Final = 20
_SUMMARY: Final = re.compile(r"\(line (\d+), position (\d+)\)")
_PARSER: Final = re.compile(r"\(line (\d+), pos (\d+)\)")


@dataclass(frozen=True)
class Fragment:
    """The part of a query that an error is about; line and column count from 1."""

    text: str
    line: int
    column: int


@dataclass(frozen=True)
class Cause:
    """One throwable.

    Attributes:
        kind: name of its Java class.
        message: as it stands, which may be many lines.
        condition: Spark's name for it, such as ``CAST_INVALID_INPUT``; empty for foreign ones.
        state: SQLSTATE, such as ``22018``.
        parameters: what the message was made of, by name.
        fragment: the part of the query that it is about, when Spark knows.
    """

    kind: str
    message: str
    condition: str = ""
    state: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    fragment: Fragment | None = None


def causes_of(error: BaseException) -> list[Cause]:
    """The chain behind an exception, outermost first; empty when Java says nothing."""
    thrown = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    causes: list[Cause] = []
    try:
        while thrown is not None and len(causes) < _DEEPEST:
            causes.append(_cause(thrown))
            thrown = thrown.getCause()
    except (Py4JError, OSError):
        return causes  # Java died meanwhile: what was learned so far is what there is
    if not causes and isinstance(error, PySparkException):
        causes.append(Cause(type(error).__name__, str(error), error.getCondition() or ""))
    return causes


def _cause(thrown: Any) -> Cause:
    from py4j.java_gateway import is_instance_of
    from pyspark import SparkContext

    kind = str(thrown.getClass().getName())
    message = str(thrown.getMessage() or "")
    gateway: Any = SparkContext._gateway
    if not is_instance_of(gateway, thrown, "org.apache.spark.SparkThrowable"):
        return Cause(kind, message)
    condition = str(thrown.getCondition() or "")
    parameters = dict(thrown.getMessageParameters())
    return Cause(
        kind, message, condition, str(thrown.getSqlState() or ""), parameters, _fragment(thrown, message)
    )


def _fragment(thrown: Any, message: str) -> Fragment | None:
    for context in thrown.getQueryContext():
        if str(context.contextType()) == "SQL":
            match = _SUMMARY.search(str(context.summary()))
            text = str(context.fragment())
            if match is None and not text:
                continue  # an expression that no part of the query stands for
            line, column = (int(match[1]), int(match[2])) if match else (1, 1)
            return Fragment(text, line, column)
    # The parser counts columns from 0, and says so in its message alone.
    match = _PARSER.search(message)
    return Fragment("", int(match[1]), int(match[2]) + 1) if match else None
