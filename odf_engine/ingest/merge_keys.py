"""Primary keys of the merge strategies: which columns they are, and that no row lacks or shares one.

Whether keys are sound is seen along the way of the merge itself, which costs next to nothing; only
when some are not is the input looked at again, for an error that shows rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from odf_engine.data.conform import find_columns
from odf_engine.errors import BadData, InvalidSchema
from odf_engine.ingest import sql
from odf_engine.ingest.diagnose import shown
from odf_engine.ingest.merge_base import POSITION, Inputs, normal

EXAMPLES: Final = 5


def key_columns(primary_key: Sequence[str], inputs: Inputs) -> list[str]:
    """The names of the key columns as the slice has them."""
    keys: list[str] = []
    for name, place in zip(primary_key, find_columns(inputs.names, list(primary_key)), strict=True):
        if place is None:
            raise InvalidSchema(
                f"the primary key column '{name}' is not there",
                where="merge.primaryKey",
                hint=f"the columns are {', '.join(inputs.names)}",
            )
        if pa.types.is_nested(inputs.schema.field(inputs.names[place]).type):
            raise InvalidSchema(f"column '{name}' is nested: it cannot be a key", where="merge.primaryKey")
        keys.append(inputs.names[place])
    if not keys:
        raise InvalidSchema("the primary key has no columns", where="merge.primaryKey")
    return keys


def check_keys(keys: list[str], inputs: Inputs) -> str:
    """A query for the new rows with each key once.

    Raises:
        BadData: a key that is null, or that rows have which are not alike.
    """
    parts = {"n": normal(inputs)}
    listed, names = sql.columns(keys), sql.columns(inputs.names)
    rows = inputs.rows(parts, f"SELECT {names} FROM n WHERE {sql.any_null(keys)} LIMIT {EXAMPLES}")
    if rows:
        _refuse("has no value in rows", keys, rows)
    different = {
        "kinds": f"SELECT DISTINCT {names} FROM n",
        "double": f"SELECT {listed} FROM kinds GROUP BY {listed} HAVING count(*) > 1 LIMIT {EXAMPLES}",
    }
    rows = inputs.rows(
        parts | different,
        f"SELECT {sql.columns(inputs.names, 'k')} FROM kinds k LEFT SEMI JOIN double d "
        f"ON {sql.same(keys, 'k', 'd')} ORDER BY {sql.columns(keys, 'k')} LIMIT {EXAMPLES}",
    )
    if rows:
        _refuse("stands in several different rows", keys, rows)
    counts = {"counts": f"SELECT count(*) AS times FROM n GROUP BY {listed}"}
    copies = inputs.rows(parts | counts, "SELECT sum(times - 1) AS copies FROM counts")[0]["copies"]
    inputs.reporter.line(f"{copies:,} rows were exact copies of others and count once", "warning")
    number = f"row_number() OVER (PARTITION BY {listed} ORDER BY {POSITION}) AS odf_copy"
    numbered = f"SELECT *, {number} FROM ({normal(inputs)})"
    return f"SELECT {names}, {POSITION} FROM ({numbered}) WHERE odf_copy = 1"


def _refuse(problem: str, keys: list[str], rows: list[dict[str, Any]]) -> None:
    examples = " | ".join(shown(", ".join(f"{name}={value}" for name, value in row.items())) for row in rows)
    raise BadData(
        f"the primary key {', '.join(keys)} {problem}: {examples}",
        hint="choose a primary key that tells rows apart, or filter the rows in the preprocess query",
    )
