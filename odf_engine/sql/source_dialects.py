"""Dialects of Flink, RisingWave and DataFusion: grammars, and their functions in Spark SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.dialects.postgres import Postgres
from sqlglot.dialects.spark import Spark
from sqlglot.parser import Parser
from sqlglot.tokens import Tokenizer


class _Flink(Dialect):
    """Flink SQL. All functions keep their names as written, here and in the other dialects."""

    class Tokenizer(Tokenizer):
        IDENTIFIERS = ["`"]  # noqa: RUF012 (as sqlglot has it)
        QUOTES = ["'"]  # noqa: RUF012

    class Parser(Parser):
        FUNCTIONS = {}  # noqa: RUF012
        NO_PAREN_FUNCTIONS = {}  # noqa: RUF012


class _RisingWave(Postgres):
    class Parser(Postgres.Parser):
        FUNCTIONS = {}  # noqa: RUF012
        NO_PAREN_FUNCTIONS = {}  # noqa: RUF012


class _DataFusion(Postgres):
    class Tokenizer(Postgres.Tokenizer):
        IDENTIFIERS = ['"', "`"]  # noqa: RUF012

    class Parser(Postgres.Parser):
        FUNCTIONS = {}  # noqa: RUF012
        NO_PAREN_FUNCTIONS = {}  # noqa: RUF012


class SparkGenerator(Spark.Generator):
    TRANSFORMS = {  # noqa: RUF012
        **Spark.Generator.TRANSFORMS,
        exp.Version: lambda self, node: f"FOR SYSTEM_TIME AS OF {self.sql(node, 'expression')}",
    }


DIALECTS: Final[Mapping[str, type[Dialect]]] = {
    "flink": _Flink, "risingwave": _RisingWave, "datafusion": _DataFusion,
}  # fmt: skip
SOURCES: Final = tuple(DIALECTS)
"""The engines whose queries can be translated."""
LABELS: Final = {"flink": "Flink", "risingwave": "RisingWave", "datafusion": "DataFusion"}


def cast_to(node: exp.Expr, kind: str) -> exp.Cast:
    return exp.Cast(this=node, to=exp.DataType.build(kind, dialect=Spark))


WINDOW_FUNCTIONS: Final = frozenset({"TUMBLE", "HOP", "SESSION", "CUMULATE"})
WINDOW_COLUMNS: Final = frozenset({"window_start", "window_end", "window_time"})
GROUP_AUXILIARY: Final = frozenset(
    f"{window}_{part}"
    for window in ("TUMBLE", "HOP", "SESSION")
    for part in ("START", "END", "ROWTIME", "PROCTIME")
)
NOW: Final = frozenset({
    "current_date", "current_time", "current_timestamp", "current_row_timestamp", "localtime",
    "localtimestamp", "now", "proctime",
})  # fmt: skip
AGGREGATE_TYPES: Final[Mapping[str, str | None]] = {
    "count": "BIGINT", "sum": None, "avg": None, "min": None, "max": None, "stddev": "DOUBLE",
    "stddev_pop": "DOUBLE", "stddev_samp": "DOUBLE", "var_pop": "DOUBLE", "var_samp": "DOUBLE",
    "variance": "DOUBLE",
}  # fmt: skip
FUNCTIONS: Final[Mapping[str, str]] = {
    # Same name, arguments and meaning in Spark; the result type, "=" for the argument type, "" unknown.
    **dict.fromkeys(
        ("abs", "coalesce", "greatest", "least", "nullif", "lag", "lead", "first_value", "last_value", "mod"),
        "=",
    ),
    **dict.fromkeys(
        ("acos", "asin", "atan", "atan2", "cos", "cot", "degrees", "exp", "ln", "log10", "log2", "pi", "pow",
         "power", "radians", "sin", "sqrt", "tan", "tanh", "cosh", "sinh", "cbrt"),
        "DOUBLE",
    ),
    **dict.fromkeys(
        ("ascii", "bit_length", "char_length", "character_length", "dayofmonth", "dayofweek", "dayofyear",
         "hour", "minute", "month", "octet_length", "quarter", "second", "year", "length"),
        "INT",
    ),
    **dict.fromkeys(
        ("btrim", "concat", "concat_ws", "date_format", "from_unixtime", "get_json_object", "initcap", "left",
         "lower", "lpad", "ltrim", "md5", "overlay", "repeat", "replace", "reverse", "right", "rpad", "rtrim",
         "sha1", "sha2", "split_part", "substr", "substring", "translate", "trim", "upper", "hex",
         "regexp_replace", "regexp_extract", "eth_decode_event", "eth_try_decode_event"),
        "STRING",
    ),
    **dict.fromkeys(("eth_event_selector", "unhex"), "BINARY"),
    **dict.fromkeys(
        ("date_trunc", "timestampadd", "to_timestamp", "timestamp_seconds", "timestamp_millis",
         "timestamp_micros", "timestamp"),
        "TIMESTAMP",
    ),
    **dict.fromkeys(("make_date", "to_date", "date"), "DATE"),
    **dict.fromkeys(("unix_timestamp", "timestampdiff"), "BIGINT"),
    **dict.fromkeys(("ceil", "floor", "round", "sign", "if", "array", "named_struct", "struct", "element_at",
                     "nvl", "cardinality"), ""),
    **dict.fromkeys(("startswith", "endswith", "contains", "isnan"), "BOOLEAN"),
}  # fmt: skip
RENAMED: Final[Mapping[str, Mapping[str, str]]] = {
    "flink": {"ifnull": "nvl", "ceiling": "ceil"},
    "risingwave": {"starts_with": "startswith", "ceiling": "ceil", "date_part": "date_part"},
    "datafusion": {
        "to_timestamp_seconds": "timestamp_seconds", "to_timestamp_millis": "timestamp_millis",
        "to_timestamp_micros": "timestamp_micros", "starts_with": "startswith", "ends_with": "endswith",
        "ifnull": "nvl", "make_array": "array", "current_date": "current_date",
    },
}  # fmt: skip
RESULTS: Final[Mapping[str, str]] = {
    "arrow_cast": "TIMESTAMP", "concat": "STRING", "json_get_str": "STRING", "json_get_int": "BIGINT",
    "json_get_float": "DOUBLE", "json_get_bool": "BOOLEAN", "timestampdiff": "INT",
}  # fmt: skip
_Rewrite = Callable[[exp.Anonymous], exp.Expr | None]


def _concat_without_nulls(node: exp.Anonymous) -> exp.Expr:
    # `concat` of Postgres and DataFusion ignores nulls, `concat` of Spark returns null.
    return exp.Anonymous(this="concat_ws", expressions=[exp.Literal.string(""), *node.expressions])


def _timestampdiff(node: exp.Anonymous) -> exp.Expr:
    # BIGINT in Spark.
    return cast_to(node.copy(), "INT")


_ARROW_TYPES: Final = {
    "Int8": "TINYINT", "Int16": "SMALLINT", "Int32": "INT", "Int64": "BIGINT", "Float32": "FLOAT",
    "Float64": "DOUBLE", "Utf8": "STRING", "Utf8View": "STRING", "LargeUtf8": "STRING", "Boolean": "BOOLEAN",
    "Date32": "DATE", "Binary": "BINARY",
}  # fmt: skip


def _arrow_cast(node: exp.Anonymous) -> exp.Expr | None:
    if len(node.expressions) != 2 or not isinstance(node.expressions[1], exp.Literal):
        return None
    text = node.expressions[1].name
    kind = "TIMESTAMP" if text.startswith(("Timestamp(Milli", "Timestamp(Micro", "Timestamp(Sec")) else None
    kind = kind or _ARROW_TYPES.get(text)
    return None if kind is None else cast_to(node.expressions[0], kind)


def _json_get(kind: str) -> _Rewrite:
    def rewrite(node: exp.Anonymous) -> exp.Expr | None:
        document, *path = node.expressions
        if not path or not all(isinstance(key, exp.Literal) for key in path):
            return None
        steps = "".join(
            f".{key.name}"
            if key.is_string and key.name.isidentifier()
            else f"['{key.name}']"
            if key.is_string
            else f"[{key.name}]"
            for key in path
        )
        text = exp.Anonymous(this="get_json_object", expressions=[document, exp.Literal.string("$" + steps)])
        return text if kind == "STRING" else cast_to(text, kind)

    return rewrite


SPECIAL: Final[Mapping[str, Mapping[str, _Rewrite]]] = {
    "flink": {"timestampdiff": _timestampdiff},
    "risingwave": {"concat": _concat_without_nulls},
    "datafusion": {
        "concat": _concat_without_nulls,
        "arrow_cast": _arrow_cast,
        "json_get_str": _json_get("STRING"),
        "json_get_int": _json_get("BIGINT"),
        "json_get_float": _json_get("DOUBLE"),
        "json_get_bool": _json_get("BOOLEAN"),
    },
}
