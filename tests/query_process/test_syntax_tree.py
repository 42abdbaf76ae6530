"""The check of queries by clients, with all functions, views and macros of the installed DuckDB."""

from __future__ import annotations

import json

import duckdb
import pytest

from odf_engine.query_process.syntax_tree import SYNTAX_TREE, find_refused

TABLE_FUNCTIONS = {"generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest"}
"""The table functions of DuckDB that clients can call."""


def refusal(sql: str) -> str:
    """Return the message of a refused query that can read the table ``people``, or ""."""
    ((tree,),) = duckdb.execute(SYNTAX_TREE, [sql]).fetchall()
    report = find_refused(json.loads(tree), ["people"], str)
    return report.message if report else ""


@pytest.mark.parametrize(
    "sql", ["FROM people", *(f"SELECT * FROM people, {name}(1)" for name in sorted(TABLE_FUNCTIONS))]
)
def test_other_queries_are_not_refused(sql: str) -> None:
    assert refusal(sql) == ""


def test_all_other_table_functions_of_duckdb_are_refused() -> None:
    query = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type LIKE 'table%'"
    functions = {name for (name,) in duckdb.execute(query).fetchall()}
    assert functions >= TABLE_FUNCTIONS | {"duckdb_settings", "read_csv", "read_text", "query"}
    for function in functions - TABLE_FUNCTIONS:
        for name in (function, f'main."{function.upper()}"'):
            message = refusal(f"SELECT (SELECT count(*) FROM {name}() AS t) FROM people")
            assert message == f"clients cannot call the table function '{function}'"


def test_all_views_of_duckdb_are_refused() -> None:
    views = duckdb.execute("SELECT schema_name, view_name FROM duckdb_views() WHERE internal").fetchall()
    assert ("main", "duckdb_views") in views
    for schema, view in views:
        queries = [f"SELECT * FROM {schema}.{view}", f"FROM system.{schema}.{view}"]
        if schema != "information_schema":
            # It is not the table expression, which is the table of another query.
            expression = f"WITH {view} AS (SELECT 1) SELECT * FROM {view}"
            queries += [f"FROM {view}", f"SELECT * FROM ({expression}), {view}", f"DESCRIBE {view}"]
        for query in queries:
            assert f"'{view}' reads the catalog of this server" in refusal(query)


def test_all_macros_of_duckdb_that_read_its_catalog_are_refused() -> None:
    query = "FROM duckdb_functions() SELECT DISTINCT function_name WHERE macro_definition ILIKE '%from%'"
    macros = duckdb.execute(f"{query} AND function_type = 'macro' AND internal").fetchall()
    assert ("pg_get_viewdef",) in macros
    for (macro,) in macros:
        assert f"'{macro}' reads the catalog of this server" in refusal(f"SELECT {macro}(1) FROM people")
