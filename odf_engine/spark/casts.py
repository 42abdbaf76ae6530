"""Values as their declared types: SQL expressions that give the value, or an error that names it.

A value that does not fit is never a null: the job stops with the column, the type and the value.
What is written here decides how text is read, so that CSV and JSON are read alike:

- white space around anything but a STRING does not matter;
- BOOLEAN is true/false, t/f, yes/no, y/n, 1/0;
- a DECIMAL must not lose digits, a DOUBLE or FLOAT must not become infinite;
- a DATE is ``2024-01-31``, or a midnight such as ``2024-01-31T00:00:00Z``;
- a TIMESTAMP has at least a whole date; without an offset it is in UTC. A bare year, a time of day
  or a number is an error, since Spark would make surprising moments of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import types as st

from odf_engine.errors import InvalidManifest
from odf_engine.spark.errors import MARK, SEPARATOR
from odf_engine.spark.types import spark_type

_SHOWN: Final = 200
_MIDNIGHT: Final = r"^\\d{4}-\\d{1,2}-\\d{1,2}([T ]00:00(:00([.]0+)?)?(Z|[+-]00:?00)?)?$"
_MOMENT: Final = r"^\\d{4}-\\d{1,2}-\\d{1,2}([T ].*)?$"
_STRFTIME: Final = {
    "Y": "yyyy", "y": "yy", "m": "MM", "d": "dd", "e": "d", "H": "HH", "I": "hh", "M": "mm", "S": "ss",
    "f": "SSSSSS", "p": "a", "b": "MMM", "B": "MMMM", "a": "EEE", "A": "EEEE", "j": "DDD",
    "z": "xx", "Z": "VV", "F": "yyyy-MM-dd", "T": "HH:mm:ss", "%": "%",
}  # fmt: skip
_UNSIGNED: Final = {
    pa.uint8(): "TINYINT UNSIGNED",
    pa.uint16(): "SMALLINT UNSIGNED",
    pa.uint32(): "INT UNSIGNED",
    pa.uint64(): "BIGINT UNSIGNED",
}
_BOUNDS: Final = {pa.uint8(): 255, pa.uint16(): 65535, pa.uint32(): 2**32 - 1, pa.uint64(): 2**64 - 1}


@dataclass(frozen=True)
class Formats:
    """How dates and time stamps are written, in Spark's patterns; None for ISO 8601."""

    date: str | None = None
    timestamp: str | None = None

    @classmethod
    def of(cls, date: str | None, timestamp: str | None) -> Formats:
        """From a manifest: ``rfc3339``, a pattern of Spark, or one with per cent signs.

        Raises:
            InvalidManifest: a per cent sign before a letter that means nothing.
        """
        return cls(_pattern(date), _pattern(timestamp))


def identifier(name: str) -> str:
    """A name as SQL writes it."""
    return "`" + name.replace("`", "``") + "`"


def text(value: str) -> str:
    """A text as SQL writes it."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def from_text(field: pa.Field, formats: Formats) -> str:
    """The expression for a column that was read as STRING, as its declared type."""
    column = identifier(field.name)
    kind = spark_type(field.type, field.name)
    if isinstance(kind, st.StringType):
        return _finished(column, field)
    sql = kind.simpleString()
    value = _bounded(field, _parsed(column, kind, sql, formats))
    return _finished(_or_error(column, column, field, sql, value), field)


def fits(name: str, kind: st.DataType, formats: Formats) -> str:
    """The condition that a value of text may be guessed to be of a type; null for null.

    Stricter than :func:`from_text`: 007 and numbers too long for a DOUBLE are no numbers, and 1 is
    no BOOLEAN.
    """
    column = identifier(name)
    fitting = f"{_parsed(column, kind, kind.simpleString(), formats)} IS NOT NULL"
    match kind:
        case st.BooleanType():
            fitting = f"lower(trim({column})) IN ('true', 'false')"
        case st.LongType() | st.DoubleType():
            odd = r"^ *[+-]?0\\d|\\d{16}\\d*[.eE]|\\d{19}|[dDfF] *$"
            fitting = f"{fitting} AND {column} NOT RLIKE '{odd}'"
    return f"if({column} IS NULL, NULL, {fitting})"


def from_typed(field: pa.Field, held: st.DataType) -> str:
    """The expression for a column that was read as some type, as its declared type."""
    column = identifier(field.name)
    kind = spark_type(field.type, field.name)
    if held == kind:
        return _finished(column, field)
    sql = kind.simpleString()
    value = f"try_cast({column} AS {sql})"
    if isinstance(held, st.FractionalType) and isinstance(kind, st.IntegralType | st.DecimalType):
        value = f"if({value} = {column}, {value}, NULL)"
    value = _bounded(field, value)
    return _finished(_or_error(column, f"CAST({column} AS STRING)", field, sql, value), field)


def _parsed(column: str, kind: st.DataType, sql: str, formats: Formats) -> str:
    plain = f"try_cast({column} AS {sql})"
    match kind:
        case st.DateType() if formats.date:
            return f"try_to_date({column}, {text(formats.date)})"
        case st.DateType():
            usual = f"(substring({column}, 5, 1) = '-' AND length({column}) BETWEEN 8 AND 10)"
            other = f"trim({column}) RLIKE '{_MIDNIGHT}'"
            return f"if({usual} OR {other}, {plain}, NULL)"
        case st.TimestampType() | st.TimestampNTZType() if formats.timestamp:
            return f"try_cast(try_to_timestamp({column}, {text(formats.timestamp)}) AS {sql})"
        case st.TimestampType() | st.TimestampNTZType():
            usual = f"(substring({column}, 5, 1) = '-' AND length({column}) >= 8)"
            other = f"trim({column}) RLIKE '{_MOMENT}'"
            return f"if({usual} OR {other}, {plain}, NULL)"
        case st.DecimalType():
            wide = f"try_cast({column} AS DECIMAL(38, {38 - (kind.precision - kind.scale)}))"
            return f"if({plain} = {wide}, {plain}, NULL)"
        case st.DoubleType() | st.FloatType():
            infinite = f"abs({plain}) = CAST('Infinity' AS {sql})"
            said = f"trim({column}) RLIKE '(?i)^[+-]?inf(inity)?$'"
            return f"if({infinite} AND NOT {said}, NULL, {plain})"
        case st.BinaryType():
            return f"CAST({column} AS BINARY)"
    return plain


def _bounded(field: pa.Field, value: str) -> str:
    largest = _BOUNDS.get(field.type)
    return value if largest is None else f"if({value} BETWEEN 0 AND {largest}, {value}, NULL)"


def _or_error(column: str, shown: str, field: pa.Field, sql: str, value: str) -> str:
    kind = _UNSIGNED.get(field.type, sql.upper())
    message = text(SEPARATOR.join((MARK, field.name, kind, "")))
    failed = f"raise_error(concat({message}, left({shown}, {_SHOWN})))"
    return f"if({column} IS NULL, NULL, coalesce({value}, {failed}))"


def _finished(value: str, field: pa.Field) -> str:
    column = identifier(field.name)
    if not field.nullable:
        message = text(SEPARATOR.join((MARK, field.name, "NOT NULL", "")))
        value = f"coalesce({value}, raise_error({message}))"
    return value if value == column else f"{value} AS {column}"


def _pattern(written: str | None) -> str | None:
    if not written or written.lower() == "rfc3339":
        return None
    if "%" not in written:
        return written
    parts = []
    for percent, letter, literal in re.findall(r"(%)(?:[-.]?\d?)(.)|([^%]+)", written):
        if not percent:
            parts.append(
                "'" + literal.replace("'", "''") + "'" if re.search("[A-Za-z']", literal) else literal
            )
        elif letter in _STRFTIME:
            parts.append(_STRFTIME[letter])
        else:
            raise InvalidManifest(
                f"the format '{written}' has a %{letter}, which means nothing",
                hint="write it as a pattern of Spark, such as `yyyy-MM-dd HH:mm:ss`",
            )
    return "".join(parts)
