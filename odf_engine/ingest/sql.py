"""Pieces of Spark SQL for the merge strategies."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyarrow import types

from odf_engine.spark.casts import identifier, text
from odf_engine.spark.types import spark_type


def columns(names: Iterable[str], table: str = "") -> str:
    """Columns separated by commas, each with its table before it if one is given."""
    return ", ".join(column(name, table) for name in names)


def column(name: str, table: str = "") -> str:
    """A column, with its table or struct before it if one is given."""
    return f"{table}.{identifier(name)}" if table else identifier(name)


def struct(values: Iterable[tuple[str, str]]) -> str:
    """A struct of named expressions."""
    return "named_struct(" + ", ".join(f"{text(name)}, {value}" for name, value in values) + ")"


def same(names: Iterable[str], left: str, right: str) -> str:
    """Whether columns of two tables are equal; nulls equal nulls, and not a number equals itself."""
    pairs = (f"{column(name, left)} <=> {column(name, right)}" for name in names)
    return "(" + (" AND ".join(pairs) or "TRUE") + ")"


def equal(names: Iterable[str], left: str, right: str) -> str:
    """Whether columns of two tables are equal and not null."""
    return " AND ".join(f"{column(name, left)} = {column(name, right)}" for name in names)


def any_null(names: Iterable[str]) -> str:
    """Whether one of the columns is null."""
    return "(" + " OR ".join(f"{column(name)} IS NULL" for name in names) + ")"


def null(kind: pa.DataType, name: str) -> str:
    """A null of a type."""
    return f"CAST(NULL AS {spark_type(kind, name).simpleString()})"


def in_milliseconds(value: str, kind: pa.DataType, depth: int = 0) -> str:
    """An expression with all time stamps in it cut to milliseconds in UTC, as slices hold them."""
    if not _has_timestamp(kind):
        return value
    if types.is_timestamp(kind):
        return f"timestamp_millis(unix_millis(CAST({value} AS TIMESTAMP)))"
    if types.is_struct(kind):
        members = [
            (member.name, in_milliseconds(column(member.name, value), member.type, depth)) for member in kind
        ]
        return f"if({value} IS NULL, NULL, {struct(members)})"
    item = f"x{depth}"
    return f"transform({value}, {item} -> {in_milliseconds(item, kind.value_type, depth + 1)})"


def _has_timestamp(kind: pa.DataType) -> bool:
    if types.is_struct(kind):
        return any(_has_timestamp(member.type) for member in kind)
    if types.is_list(kind) or types.is_large_list(kind):
        return _has_timestamp(kind.value_type)
    return types.is_timestamp(kind)
