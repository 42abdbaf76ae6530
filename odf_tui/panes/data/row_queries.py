"""Queries in the dialect of DuckDB that sort and filter all rows of a table."""

from __future__ import annotations

from typing import Final

CONDITIONS: Final = {
    "equal": "{column} = {value}",
    "other": "{column} IS DISTINCT FROM {value}",
    "less": "{column} < {value}",
    "greater": "{column} > {value}",
    "null": "{column} IS NULL",
    "filled": "{column} IS NOT NULL",
}
"""Conditions by the names of tests."""


def sort_query(table: str, column: str, *, down: bool) -> str:
    """Return the query for all rows of a table in the order of a column. Nulls come last."""
    order = "DESC" if down else "ASC"
    return f"SELECT * FROM {_quoted(table)} ORDER BY {_quoted(column)} {order} NULLS LAST"


def filter_query(table: str, column: str, test: str, row: str) -> str:
    """Return the query for the rows of a table that pass a test.

    Args:
        table: the name of the table.
        column: the tested column.
        test: a test of :data:`CONDITIONS`.
        row: the clause that selects the row with the value to compare with.
    """
    name = _quoted(column)
    value = f"(SELECT {name} FROM {_quoted(table)} {row})"
    return f"SELECT * FROM {_quoted(table)} WHERE {CONDITIONS[test].format(column=name, value=value)}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
