"""What the value of an expression comes from, as the query says it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sqlglot import exp

from odf_engine.metadata.sql_parsing import NotFollowed
from odf_engine.metadata.sql_relations import How, Out, Relation, Rows, Value, as_rows, merged, raised

AGGREGATES: Final = frozenset({
    "any", "any_value", "approx_count_distinct", "approx_percentile", "approx_top_k", "array_agg", "avg",
    "bit_and", "bit_or", "bit_xor", "bitmap_and_agg", "bitmap_construct_agg", "bitmap_or_agg", "bool_and",
    "bool_or", "collect_list", "collect_set", "corr", "count", "count_if", "count_min_sketch",
    "covar_pop", "covar_samp", "every", "first", "first_value", "grouping", "grouping_id",
    "histogram_numeric", "hll_sketch_agg", "hll_union_agg", "kll_sketch_agg_bigint",
    "kll_sketch_agg_double", "kll_sketch_agg_float", "kurtosis", "last", "last_value", "listagg", "max",
    "max_by", "mean", "median", "min", "min_by", "mode", "percentile", "percentile_approx",
    "percentile_cont", "percentile_disc", "regr_avgx", "regr_avgy", "regr_count", "regr_intercept",
    "regr_r2", "regr_slope", "regr_sxx", "regr_sxy", "regr_syy", "schema_of_variant_agg", "skewness",
    "some", "std", "stddev", "stddev_pop", "stddev_samp", "string_agg", "sum", "theta_sketch_agg",
    "theta_union_agg", "try_avg", "try_sum", "var_pop", "var_samp", "variance",
})  # fmt: skip
"""Spark's functions that put the values of many rows together."""

WINDOWS: Final = ("window", "session_window")
GENERATORS: Final = ("explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer",
                     "stack", "json_tuple", "variant_explode", "variant_explode_outer")  # fmt: skip
"""Functions that make rows, and columns with names of their own."""

_WITH_UNITS: Final = (
    "timestampdiff", "timestampadd", "datediff", "dateadd", "date_add", "date_diff", "timediff",
)  # fmt: skip
_UNITS: Final = frozenset({
    "YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DAYOFYEAR", "HOUR", "MINUTE", "SECOND", "MILLISECOND",
    "MICROSECOND",
})  # fmt: skip


@dataclass
class Scope:
    """What an expression can name.

    Attributes:
        tables: what FROM can name: relations by their names in small letters.
        sources: the relations of this SELECT, by the names that its columns can be qualified with.
        joined: columns of joins with USING: what several sources have together.
        aliases: columns of this SELECT by their names in small letters, as far as they are known.
        named: the clauses of WINDOW by their names in small letters.
        outer: the scope around a subquery.
        bound: the names of the parameters of lambdas around, in small letters.
        rows: what was found to decide about rows.
        follow: follows a subquery.
    """

    tables: dict[str, Relation]
    follow: Callable[[exp.Expr, Scope], Relation]
    sources: list[tuple[str, Relation]] = field(default_factory=list)
    joined: dict[str, Out] = field(default_factory=dict)
    aliases: dict[str, Out] = field(default_factory=dict)
    named: dict[str, exp.Expr] = field(default_factory=dict)
    outer: Scope | None = None
    bound: frozenset[str] = frozenset()
    rows: Rows = field(default_factory=dict)

    def inner(self) -> Scope:
        """The scope of a subquery."""
        return Scope(dict(self.tables), self.follow, outer=self)

    def source(self, name: str) -> Relation | None:
        """The relation of this name here."""
        found = [relation for known, relation in self.sources if known == name.casefold()]
        return found[0] if len(found) == 1 else None

    def resolve(self, parts: Sequence[str]) -> Out:
        """What a name stands for.

        Raises:
            NotFollowed: nothing has it.
        """
        found = self._resolve(parts)
        if found is None:
            raise NotFollowed(f"there is no column '{'.'.join(parts)}'")
        return found

    def _resolve(self, parts: Sequence[str]) -> Out | None:
        if parts[0].casefold() in self.bound:
            return Out(parts[0], {})
        if (found := self._qualified(parts) or self._plain(parts)) is not None:
            return found
        around = self.outer._resolve(parts) if self.outer is not None else None
        return _together([*self._opened(parts), *([around] if around is not None else [])])

    def _qualified(self, parts: Sequence[str]) -> Out | None:
        found: list[Out] = []
        for name, relation in self.sources:
            if len(parts) > 1 and name == parts[0].casefold():
                out = relation.find(parts[1]) or relation.opened(parts[1])
                found += [_field(out, parts[2:])] if out is not None else []
        return _together(found)

    def _plain(self, parts: Sequence[str]) -> Out | None:
        name = parts[0].casefold()
        if name in self.joined:
            return _field(self.joined[name], parts[1:])
        outs = [out for _, relation in self.sources if (out := relation.find(name)) is not None]
        if not outs and name in self.aliases:
            outs = [self.aliases[name], *self._opened(parts[:1])]
        return _together([_field(out, parts[1:]) for out in outs])

    def _opened(self, parts: Sequence[str]) -> list[Out]:
        found = [out for _, relation in self.sources if (out := relation.opened(parts[0])) is not None]
        if len(found) > 1:  # one of them has it
            found = [replace(out, value=raised(out.value, "unknown")) for out in found]
        return [_field(out, parts[1:]) for out in found]


def _field(out: Out, names: Sequence[str]) -> Out:
    for name in names:
        out = out.field(name)
    return out


def _together(outs: Sequence[Out]) -> Out | None:
    if len(outs) < 2:
        return outs[0] if outs else None
    return Out(outs[0].name, merged(*(out.value for out in outs)))


def name_of(node: exp.Expr) -> str | None:
    """What Spark calls the column of an expression, where that is certain."""
    if isinstance(node, exp.Alias):
        return node.alias
    if isinstance(node, exp.Column | exp.Dot):
        last = node.this if isinstance(node, exp.Column) else node.expression
        return last.name if isinstance(last, exp.Identifier) else None
    if function(node) in WINDOWS:
        return function(node)
    return None


def function(node: exp.Expr) -> str:
    """The name of the function that is called, in small letters; empty when it is something else."""
    return node.name.casefold() if isinstance(node, exp.Anonymous) else ""


def out_of(node: exp.Expr, scope: Scope) -> Out:
    """What an expression comes from.

    Raises:
        NotFollowed: it has something that is not understood.
    """
    match node:
        case exp.Alias() | exp.Paren():
            return out_of(node.this, scope)
        case exp.Column() if isinstance(node.this, exp.Star):
            return Out(None, star(node, scope).whole())
        case exp.Column():
            return scope.resolve([part.name for part in node.parts])
        case exp.Star():
            return Out(None, star(node, scope).whole())
        case exp.Identifier() if node.name.casefold() in scope.bound:
            return Out(node.name, {})
        case exp.Dot() if isinstance(node.expression, exp.Identifier):
            return out_of(node.this, scope).field(node.expression.name)
        case exp.Lambda():
            names = {each.name.casefold() for each in node.expressions}
            inner = replace(scope, bound=scope.bound | names)  # shares what it finds
            return Out(None, raised(out_of(node.this, inner).value, "transformation"))
        case exp.Window():
            return Out(None, _over(node, scope))
        case exp.Query():
            return Out(None, _subquery(node, scope))
        case exp.PropertyEQ() | exp.Kwarg():
            return out_of(node.expression, scope)
        case exp.Anonymous():
            return _called(node, scope)
        case exp.Identifier():
            raise NotFollowed(f"what '{node.name}' means is not understood")
    how: How = "aggregation" if isinstance(node, _AGGREGATES) else "transformation"
    return Out(None, raised(merged(*(out_of(each, scope).value for each in _parts(node))), how))


_AGGREGATES: Final = (exp.AggFunc, exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)


def _parts(node: exp.Expr) -> Iterator[exp.Expr]:
    """The expressions that an expression is made of, but for types."""
    for each in node.iter_expressions():
        if isinstance(each, exp.Where | exp.Order | exp.Ordered | exp.Distinct | exp.Tuple | exp.Having):
            yield from _parts(each)
        elif not isinstance(each, exp.DataType | exp.Var | exp.Literal):
            yield each


def _called(node: exp.Anonymous, scope: Scope) -> Out:
    name = function(node)
    if name == "count" and any(isinstance(each, exp.Star) for each in node.expressions):
        return Out(None, {})
    given = [each for each in _parts(node) if each is not node.this]
    if name in _WITH_UNITS and len(given) == 3 and given[0].name.upper() in _UNITS:
        del given[0]
    parts = [out_of(each, scope) for each in given]
    whole = merged(*(part.value for part in parts))
    if name in WINDOWS:
        value = raised(whole, "transformation")
        return Out(name, value, {each: Out(each, value) for each in ("start", "end")})
    fields = None
    if name == "struct":
        named = [name_of(each) or f"col{at}" for at, each in enumerate(node.expressions, 1)]
        fields = {key.casefold(): replace(part, name=key) for key, part in zip(named, parts, strict=False)}
    elif name == "named_struct":
        fields = _named_struct(node, scope)
    stars = any(isinstance(each, exp.Star | exp.Column) and each.is_star for each in node.expressions)
    how: How = "aggregation" if name in AGGREGATES else "transformation"
    return Out(None, raised(whole, how), None if stars else fields)


def _named_struct(node: exp.Anonymous, scope: Scope) -> dict[str, Out] | None:
    names, values = node.expressions[::2], node.expressions[1::2]
    if len(names) != len(values) or not all(isinstance(each, exp.Literal) for each in names):
        return None
    return {
        key.name.casefold(): replace(out_of(value, scope), name=key.name)
        for key, value in zip(names, values, strict=True)
    }


def _over(node: exp.Window, scope: Scope) -> Value:
    """A function over a window of rows: what orders a ranking is what the rank comes from."""
    clauses: list[exp.Expr] = [node]
    alias = node.args.get("alias")
    while alias is not None:
        clause = scope.named.get(alias.name.casefold())
        if clause is None:
            raise NotFollowed(f"there is no window '{alias.name}'")
        clauses.append(clause)
        alias = clause.args.get("alias")
    value = raised(out_of(node.this, scope).value, "aggregation")
    for clause in clauses:
        parts = [
            part
            for part in _parts(clause)
            if part is not clause.this and part is not clause.args.get("alias")
        ]
        sides = [*parts]
        if (spec := clause.args.get("spec")) is not None:
            sides = [part for part in sides if part is not spec] + list(_parts(spec))
        around = merged(*(out_of(part, scope).value for part in sides))
        scope.rows.update(as_rows(around, "window"))
        if not value:
            order = clause.args.get("order")
            ordering = [] if order is None else [out_of(part, scope).value for part in _parts(order)]
            value = raised(merged(*ordering), "aggregation")
    return value


def _subquery(node: exp.Query, scope: Scope) -> Value:
    relation = scope.follow(node, scope.inner())
    scope.rows.update(relation.rows)
    return raised(relation.whole(), "transformation")


def star(node: exp.Expr, scope: Scope) -> Relation:
    """The columns that `*`, `t.*` or `structure.*` stand for.

    Raises:
        NotFollowed: nothing has this name.
    """
    qualifiers = [part.name for part in node.parts[:-1]] if isinstance(node, exp.Column) else []
    mark = node.this if isinstance(node, exp.Column) else node
    if any(mark.args.get(each) for each in ("replace", "rename")):
        raise NotFollowed("`* REPLACE` and `* RENAME` cannot be followed")
    relation = _starred(qualifiers, scope)
    names = [each.parts for each in mark.args.get("except_") or () if isinstance(each, exp.Column)]
    return relation.without(parts[-1].name for parts in names if len(parts) == 1)


def _starred(qualifiers: Sequence[str], scope: Scope) -> Relation:
    from odf_engine.metadata.sql_relations import Open

    if not qualifiers:
        return all_of(scope)
    if len(qualifiers) == 1 and (relation := scope.source(qualifiers[0])) is not None:
        return relation
    out = scope.resolve(qualifiers)
    if out.fields is not None:
        return Relation(list(out.fields.values()))
    return Relation([], open=Open(value=raised(out.value, "transformation")))


def all_of(scope: Scope) -> Relation:
    """Everything that the sources have, as `*` shows it: columns of USING once and first."""
    from odf_engine.metadata.sql_relations import Open

    shown = [relation.without(scope.joined) for name, relation in scope.sources if name]
    outs = [*scope.joined.values(), *(out for relation in shown for out in relation.outs)]
    opens = [relation.open for relation in shown if relation.open is not None]
    opened = None
    if opens:
        inputs = tuple(dict.fromkeys(name for each in opens for name in each.inputs))
        but = frozenset.intersection(*(each.but for each in opens))
        opened = Open(inputs, merged(*(each.value for each in opens)), but)
    return Relation(outs, open=opened)
