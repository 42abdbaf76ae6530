"""What tells the rows of a derivative dataset apart: the columns that its query groups by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odf_engine.metadata.model import SetTransform


def grouped_by(transform: SetTransform | None) -> list[str]:
    """The columns of the result that the last grouping of a query is by; empty where that is not plain.

    A grouping by a window, or by the event time itself, makes rows that nothing changes any more: they have
    no current state. Steps after the grouping may leave rows out and rename columns.
    """
    if transform is None:
        return []
    sql = transform.transform
    steps = [(step.alias, step.query) for step in sql.queries or []] or [(None, sql.query or "")]
    from sqlglot import exp, parse_one  # only here: it takes a while to import
    from sqlglot.errors import SqlglotError

    known: dict[str, Any] = {}
    found: list[str] | None = None
    try:
        for alias, text in steps:
            query = parse_one(text, dialect="spark")
            found = _keys(query, known, exp)
            if alias is not None:
                known[alias.casefold()] = found
    except (SqlglotError, RecursionError):
        return []
    return found or []


Known = Mapping[str, list[str] | None]
"""What the steps before are told apart by, by their names in small letters; None where that is not plain."""


def _keys(query: Any, known: Known, exp: Any) -> list[str] | None:
    if not isinstance(query, exp.Query):
        return None
    known = dict(known)
    for part in query.ctes:
        known[part.alias.casefold()] = _keys(part.this, known, exp)
    query = query.unnest()
    if not isinstance(query, exp.Select):
        return None
    group = query.args.get("group")
    return _passed_on(query, known, exp) if group is None else _grouping(query, group, exp)


def _grouping(query: Any, group: Any, exp: Any) -> list[str] | None:
    """The output columns that are what a SELECT groups by."""
    outputs = [(each.unalias(), each.alias_or_name) for each in query.expressions]
    if any(group.args.get(kind) for kind in ("rollup", "cube", "grouping_sets")):
        return None
    if group.args.get("all"):
        return [name for made, name in outputs if not made.find(exp.AggFunc)]
    names: list[str] = []
    for each in group.expressions:
        name = _output_of(each, outputs, exp)
        if name is None:
            return None
        names.append(name)
    return names


def _output_of(term: Any, outputs: list[tuple[Any, str]], exp: Any) -> str | None:
    if isinstance(term, exp.Literal) and term.is_int:
        place = int(term.this) - 1
        return outputs[place][1] if 0 <= place < len(outputs) else None
    text = _plain(term, exp)
    found = [name for made, name in outputs if name and _plain(made, exp) == text]
    named = [name for _, name in outputs if name.casefold() == term.name.casefold()]
    return next(iter(found or (named if isinstance(term, exp.Column) else [])), None)


def _plain(term: Any, exp: Any) -> str:
    """An expression as text that is the same however its columns are written."""

    def bare(node: Any) -> Any:
        return exp.column(node.name.casefold(), quoted=True) if isinstance(node, exp.Column) else node

    return term.transform(bare).sql(dialect="spark")


def _passed_on(query: Any, known: Known, exp: Any) -> list[str] | None:
    """What a SELECT that goes row by row leaves of the columns that tell its rows apart."""
    if any(query.args.get(part) for part in ("joins", "laterals", "distinct", "pivots")):
        return None
    if any(each.find(exp.AggFunc, exp.Explode) for each in query.expressions):
        return None
    table = next((query.args[name] for name in ("from_", "from") if query.args.get(name)), None)
    if table is None or not isinstance(table.this, exp.Table | exp.Subquery):
        return None
    source = table.this
    if isinstance(source, exp.Table):
        below = known.get(source.name.casefold())
    else:
        below = _keys(source.this, known, exp)
    if below is None:
        return None
    names: dict[str, str] = {}
    for each in query.expressions:
        if each.is_star:
            names |= {name.casefold(): name for name in below}
        elif isinstance(each.unalias(), exp.Column):
            names.setdefault(each.unalias().name.casefold(), each.alias_or_name)
    found = [names.get(name.casefold()) for name in below]
    return [name for name in found if name is not None] if None not in found else None
