"""Column lineage of expressions, on trees parsed by sqlglot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from odf_engine.sql.lineage_model import (
    OutputColumn,
    RowDependencies,
    SqlRelation,
    TransformationType,
    UnresolvedColumns,
    ValueSources,
    as_row_dependencies,
    merge_sources,
    with_transformation,
)
from odf_engine.sql.query_text import one_line_summary


class LineageUnresolved(Exception):
    """The lineage of the query cannot be resolved; the message has the reason."""


class ColumnNotFound(LineageUnresolved):
    """No relation has a column.

    Attributes:
        parts: its name with its qualifiers.
    """

    def __init__(self, parts: Sequence[str]) -> None:
        super().__init__(f"column '{'.'.join(parts)}' not found")
        self.parts = parts


_MAX_MESSAGE_QUERY: Final = 40
_PHRASES: Final = (
    ("FOR", "SYSTEM_TIME", "AS", "OF"), ("WITHIN", "GROUP"), ("IGNORE", "NULLS"), ("RESPECT", "NULLS"),
    ("NULLS", "FIRST"), ("NULLS", "LAST"), ("GROUPING", "SETS"), ("WITH", "ROLLUP"), ("WITH", "CUBE"),
    ("CURRENT", "ROW"),
)  # fmt: skip


class _Parser(Spark.Parser):
    """Spark's grammar that keeps every function name as written, instead of sqlglot's own classes.

    Only ARRAY keeps its class: a subscript after another expression would be parsed as a new array.
    """

    FUNCTIONS = {name: Spark.Parser.FUNCTIONS[name] for name in ("ARRAY",)}  # noqa: RUF012 (as sqlglot has it)
    NO_PAREN_FUNCTIONS = {}  # noqa: RUF012


def parse_query(query: str, columns: Iterable[str]) -> exp.Query:
    """Parse one query.

    Args:
        query: SQL text.
        columns: names of columns that the query may use.

    Raises:
        LineageUnresolved: it is not a single query, or contains syntax that the tree loses.
    """
    spark = Spark()
    try:
        words = _windows_as_identifiers(spark.tokenize(query))
        check_joins(words)
        trees = [tree for tree in _Parser(dialect=spark).parse(words, query) if tree is not None]
    except SqlglotError as error:
        raise LineageUnresolved(f"the query cannot be parsed: {_parse_error_message(error, query)}") from None
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise LineageUnresolved(f"not a single SELECT: {one_line_summary(query, _MAX_MESSAGE_QUERY)}")
    if any(word.token_type == TokenType.PIPE_GT for word in words):
        raise LineageUnresolved("pipe operators (|>) are not supported")
    ambiguous = {name.upper() for name in columns} & _AMBIGUOUS_KEYWORDS
    for word in words:
        if word.text.upper() in ambiguous and word.token_type != TokenType.IDENTIFIER:
            raise LineageUnresolved(
                f"'{word.text}' may be a column or a keyword: quote the column as `{word.text}`"
            )
    _check_complete(words, trees[0])
    return trees[0]


_MAX_OPEN_JOINS: Final = 12


def check_joins(words: Sequence[Token]) -> None:
    """Check that parsing ends in reasonable time: it doubles with each join whose condition follows later.

    Raises:
        LineageUnresolved: too many consecutive joins have no condition.
    """
    count = 0
    for index, word in enumerate(words):
        if word.token_type in (TokenType.ON, TokenType.USING):
            count = 0
        elif word.token_type == TokenType.JOIN and words[index - 1].token_type != TokenType.CROSS:
            count += 1
        if count > _MAX_OPEN_JOINS:
            raise LineageUnresolved(f"more than {_MAX_OPEN_JOINS} joins have no condition")


_AMBIGUOUS_KEYWORDS: Final = frozenset({"ALL", "ANY", "AS", "DISTINCT", "FETCH", "INTERVAL", "NOT", "SELECT"})
"""Keywords that Spark accepts as column names, and the parser does not."""


def _parse_error_message(error: SqlglotError, query: str) -> str:
    errors = getattr(error, "errors", None)
    if not errors or not errors[0].get("description"):
        return one_line_summary(query, _MAX_MESSAGE_QUERY)
    first = errors[0]
    described = first["description"].partition(" but got <")[0].rstrip(".")
    return f"line {first['line']}, column {first['col']}: {described}"


def _windows_as_identifiers(words: Sequence[Token]) -> list[Token]:
    """Return the tokens with ``window`` as an identifier, except in the clause ``WINDOW name AS (…)``."""
    result = list(words)
    for index, word in enumerate(words):
        if word.token_type != TokenType.WINDOW:
            continue
        after = [token.token_type for token in words[index + 1 : index + 4]]
        if after[1:] != [TokenType.ALIAS, TokenType.L_PAREN]:
            result[index] = Token(
                TokenType.VAR, word.text, line=word.line, col=word.col, start=word.start, end=word.end
            )
    return result


def _check_complete(words: Sequence[Token], tree: exp.Expr) -> None:
    """Check that the tree contains every identifier of the text at least as often as the text.

    Raises:
        LineageUnresolved: an identifier is lost.
    """
    tree_counts: Counter[str] = Counter()
    for node in tree.walk():
        if not isinstance(node, exp.Literal):
            tree_counts.update(value.casefold() for value in node.args.values() if isinstance(value, str))
    grammar = _clause_tokens(words)
    names = [
        word.text.casefold()
        for index, word in enumerate(words)
        if word.token_type in (TokenType.VAR, TokenType.IDENTIFIER) and index not in grammar
    ]
    for name, count in Counter(names).items():
        if count > tree_counts[name]:
            raise LineageUnresolved(f"'{name}' cannot be resolved")


def _clause_tokens(words: Sequence[Token]) -> set[int]:
    """Return the indexes of the tokens that belong to a clause or name a function."""
    indexes: set[int] = set()
    texts = [word.text.upper() for word in words]
    for start in range(len(texts)):
        if texts[start + 1 : start + 2] == ["("]:
            indexes.add(start)
        for phrase in _PHRASES:
            if tuple(texts[start : start + len(phrase)]) == phrase:
                indexes.update(range(start, start + len(phrase)))
    return indexes


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
"""Spark's aggregate functions."""
WINDOWS: Final = ("window", "session_window")
GENERATORS: Final = ("explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer",
                     "stack", "json_tuple", "variant_explode", "variant_explode_outer")  # fmt: skip
"""Generator functions: they produce rows and name their own columns."""
_WITH_UNITS: Final = (
    "timestampdiff", "timestampadd", "datediff", "dateadd", "date_add", "date_diff", "timediff",
)  # fmt: skip
_UNITS: Final = frozenset({
    "YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DAYOFYEAR", "HOUR", "MINUTE", "SECOND", "MILLISECOND",
    "MICROSECOND",
})  # fmt: skip


@dataclass
class Scope:
    """The names that an expression can refer to.

    Attributes:
        tables: relations that FROM can refer to, by lower-case name.
        resolve_subquery: resolves a subquery.
        sources: relations in FROM of this SELECT, with their qualifiers.
        using_columns: columns of USING, which several sources share.
        aliases: columns of this SELECT by lower-case name, in the order of the SELECT list.
        windows: clauses of WINDOW by lower-case name.
        outer: the scope around a subquery.
        lambda_parameters: lower-case names of enclosing lambda parameters.
        rows: row dependencies found so far.
    """

    tables: dict[str, SqlRelation]
    resolve_subquery: Callable[[exp.Expr, Scope], SqlRelation]
    sources: list[tuple[str, SqlRelation]] = field(default_factory=list)
    using_columns: dict[str, OutputColumn] = field(default_factory=dict)
    aliases: dict[str, OutputColumn] = field(default_factory=dict)
    windows: dict[str, exp.Expr] = field(default_factory=dict)
    outer: Scope | None = None
    lambda_parameters: frozenset[str] = frozenset()
    rows: RowDependencies = field(default_factory=dict)

    def subquery_scope(self) -> Scope:
        """Return the scope of a subquery."""
        return Scope(dict(self.tables), self.resolve_subquery, outer=self)

    def find_source(self, name: str) -> SqlRelation | None:
        """Return the relation with this qualifier, if exactly one has it."""
        relations = [relation for known, relation in self.sources if known == name.casefold()]
        return relations[0] if len(relations) == 1 else None

    def resolve(self, parts: Sequence[str]) -> OutputColumn:
        """Resolve a qualified name.

        Raises:
            ColumnNotFound: no relation has such a column.
        """
        column = self._resolve(parts)
        if column is None:
            raise ColumnNotFound(parts)
        return column

    def _resolve(self, parts: Sequence[str]) -> OutputColumn | None:
        if parts[0].casefold() in self.lambda_parameters:
            return OutputColumn(parts[0], {})
        if (column := self._qualified(parts) or self._unqualified(parts)) is not None:
            return column
        around = self.outer._resolve(parts) if self.outer is not None else None
        return _merge_columns([*self._unresolved(parts), *([around] if around is not None else [])])

    def _qualified(self, parts: Sequence[str]) -> OutputColumn | None:
        output_columns: list[OutputColumn] = []
        for name, relation in self.sources:
            if len(parts) > 1 and name == parts[0].casefold():
                out = relation.find(parts[1]) or relation.unresolved_column(parts[1])
                output_columns += [_nested_field(out, parts[2:])] if out is not None else []
        return _merge_columns(output_columns)

    def _unqualified(self, parts: Sequence[str]) -> OutputColumn | None:
        name = parts[0].casefold()
        if name in self.using_columns:
            return _nested_field(self.using_columns[name], parts[1:])
        outs = [out for _, relation in self.sources if (out := relation.find(name)) is not None]
        if not outs and name in self.aliases:
            outs = [self.aliases[name], *self._unresolved(parts[:1])]
        return _merge_columns([_nested_field(out, parts[1:]) for out in outs])

    def _unresolved(self, parts: Sequence[str]) -> list[OutputColumn]:
        outputs = [
            out for _, relation in self.sources if (out := relation.unresolved_column(parts[0])) is not None
        ]
        if len(outputs) > 1:  # exactly one of them has the column
            outputs = [replace(out, value=with_transformation(out.value, "unknown")) for out in outputs]
        return [_nested_field(out, parts[1:]) for out in outputs]


def _nested_field(out: OutputColumn, names: Sequence[str]) -> OutputColumn:
    for name in names:
        out = out.field(name)
    return out


def _merge_columns(outs: Sequence[OutputColumn]) -> OutputColumn | None:
    if len(outs) < 2:
        return outs[0] if outs else None
    return OutputColumn(outs[0].name, merge_sources(*(out.value for out in outs)))


def default_column_name(node: exp.Expr) -> str | None:
    """Return Spark's name for the column of an expression, or None if that is uncertain."""
    if isinstance(node, exp.Alias):
        return node.alias
    if isinstance(node, exp.Column | exp.Dot):
        last = node.this if isinstance(node, exp.Column) else node.expression
        return last.name if isinstance(last, exp.Identifier) else None
    if function_name(node) in WINDOWS:
        return function_name(node)
    return None


def function_name(node: exp.Expr) -> str:
    """Return the lower-case name of a called function, or "" for any other expression."""
    return node.name.casefold() if isinstance(node, exp.Anonymous) else ""


def expression_sources(node: exp.Expr, scope: Scope) -> OutputColumn:
    """Return the sources of an expression.

    Raises:
        LineageUnresolved: a part of it is not supported.
    """
    match node:
        case exp.Alias() | exp.Paren():
            return expression_sources(node.this, scope)
        case exp.Column() if isinstance(node.this, exp.Star):
            return OutputColumn(None, expand_star(node, scope).all_sources())
        case exp.Column():
            return scope.resolve([part.name for part in node.parts])
        case exp.Star():
            return OutputColumn(None, expand_star(node, scope).all_sources())
        case exp.Identifier() if node.name.casefold() in scope.lambda_parameters:
            return OutputColumn(node.name, {})
        case exp.Dot() if isinstance(node.expression, exp.Identifier):
            return expression_sources(node.this, scope).field(node.expression.name)
        case exp.Lambda():
            names = {expression.name.casefold() for expression in node.expressions}
            # the copy shares the lists and dictionaries of the scope
            inner = replace(scope, lambda_parameters=scope.lambda_parameters | names)
            return OutputColumn(
                None, with_transformation(expression_sources(node.this, inner).value, "transformation")
            )
        case exp.Window():
            return OutputColumn(None, _window_sources(node, scope))
        case exp.Query():
            return OutputColumn(None, _subquery_sources(node, scope))
        case exp.PropertyEQ() | exp.Kwarg():
            return expression_sources(node.expression, scope)
        case exp.Anonymous():
            return _function_sources(node, scope)
        case exp.Identifier():
            raise LineageUnresolved(f"'{node.name}' is not supported")
    transformation: TransformationType = "aggregation" if isinstance(node, _AGGREGATES) else "transformation"
    return OutputColumn(
        None,
        with_transformation(
            merge_sources(*(expression_sources(operand, scope).value for operand in _operands(node))),
            transformation,
        ),
    )


_AGGREGATES: Final = (exp.AggFunc, exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)


def _operands(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the operands of an expression, without types and literals."""
    for expression in node.iter_expressions():
        if isinstance(
            expression, exp.Where | exp.Order | exp.Ordered | exp.Distinct | exp.Tuple | exp.Having
        ):
            yield from _operands(expression)
        elif not isinstance(expression, exp.DataType | exp.Var | exp.Literal):
            yield expression


def _function_sources(node: exp.Anonymous, scope: Scope) -> OutputColumn:
    name = function_name(node)
    if name == "count" and any(isinstance(expression, exp.Star) for expression in node.expressions):
        return OutputColumn(None, {})
    arguments = [operand for operand in _operands(node) if operand is not node.this]
    if name in _WITH_UNITS and len(arguments) == 3 and arguments[0].name.upper() in _UNITS:
        del arguments[0]
    parts = [expression_sources(argument, scope) for argument in arguments]
    sources = merge_sources(*(part.value for part in parts))
    if name in WINDOWS:
        value = with_transformation(sources, "transformation")
        return OutputColumn(name, value, {end: OutputColumn(end, value) for end in ("start", "end")})
    fields = None
    if name == "struct":
        named = [
            default_column_name(item) or f"col{position}" for position, item in enumerate(node.expressions, 1)
        ]
        fields = {key.casefold(): replace(part, name=key) for key, part in zip(named, parts, strict=False)}
    elif name == "named_struct":
        fields = _named_struct(node, scope)
    stars = any(
        isinstance(expression, exp.Star | exp.Column) and expression.is_star
        for expression in node.expressions
    )
    transformation: TransformationType = "aggregation" if name in AGGREGATES else "transformation"
    return OutputColumn(None, with_transformation(sources, transformation), None if stars else fields)


def _named_struct(node: exp.Anonymous, scope: Scope) -> dict[str, OutputColumn] | None:
    names, values = node.expressions[::2], node.expressions[1::2]
    if len(names) != len(values) or not all(isinstance(name, exp.Literal) for name in names):
        return None
    return {
        key.name.casefold(): replace(expression_sources(value, scope), name=key.name)
        for key, value in zip(names, values, strict=True)
    }


def _window_sources(node: exp.Window, scope: Scope) -> ValueSources:
    """Return the sources of a window function. A ranking has the sources of its ORDER BY."""
    clauses: list[exp.Expr] = [node]
    alias = node.args.get("alias")
    while alias is not None:
        clause = scope.windows.get(alias.name.casefold())
        if clause is None:
            raise LineageUnresolved(f"window '{alias.name}' not found")
        clauses.append(clause)
        alias = clause.args.get("alias")
    value = with_transformation(expression_sources(node.this, scope).value, "aggregation")
    for clause in clauses:
        parts = [
            part
            for part in _operands(clause)
            if part is not clause.this and part is not clause.args.get("alias")
        ]
        operands = [*parts]
        if (spec := clause.args.get("spec")) is not None:
            operands = [part for part in operands if part is not spec] + list(_operands(spec))
        clause_sources = merge_sources(*(expression_sources(part, scope).value for part in operands))
        scope.rows.update(as_row_dependencies(clause_sources, "window"))
        if not value:
            order = clause.args.get("order")
            ordering = (
                [] if order is None else [expression_sources(part, scope).value for part in _operands(order)]
            )
            value = with_transformation(merge_sources(*ordering), "aggregation")
    return value


def _subquery_sources(node: exp.Query, scope: Scope) -> ValueSources:
    relation = scope.resolve_subquery(node, scope.subquery_scope())
    scope.rows.update(relation.rows)
    return with_transformation(relation.all_sources(), "transformation")


def expand_star(node: exp.Expr, scope: Scope) -> SqlRelation:
    """Return the columns of ``*``, ``t.*`` or ``structure.*``.

    Raises:
        LineageUnresolved: the qualifier is unknown.
    """
    qualifiers = [part.name for part in node.parts[:-1]] if isinstance(node, exp.Column) else []
    star = node.this if isinstance(node, exp.Column) else node
    if any(star.args.get(option) for option in ("replace", "rename")):
        raise LineageUnresolved("`* REPLACE` and `* RENAME` are not supported")
    relation = _resolve_star(qualifiers, scope)
    names = [
        excluded.parts for excluded in star.args.get("except_") or () if isinstance(excluded, exp.Column)
    ]
    return relation.drop_columns(parts[-1].name for parts in names if len(parts) == 1)


def _resolve_star(qualifiers: Sequence[str], scope: Scope) -> SqlRelation:
    if not qualifiers:
        return all_columns(scope)
    if len(qualifiers) == 1 and (relation := scope.find_source(qualifiers[0])) is not None:
        return relation
    out = scope.resolve(qualifiers)
    if out.fields is not None:
        return SqlRelation(list(out.fields.values()))
    return SqlRelation([], open=UnresolvedColumns(value=with_transformation(out.value, "transformation")))


def all_columns(scope: Scope) -> SqlRelation:
    """Return the columns of ``*``: the shared columns of USING once and first."""
    relations = [relation.drop_columns(scope.using_columns) for name, relation in scope.sources if name]
    outs = [*scope.using_columns.values(), *(out for relation in relations for out in relation.columns)]
    unresolved = [relation.open for relation in relations if relation.open is not None]
    remaining = None
    if unresolved:
        inputs = tuple(dict.fromkeys(name for item in unresolved for name in item.inputs))
        but = frozenset.intersection(*(item.excluded for item in unresolved))
        remaining = UnresolvedColumns(inputs, merge_sources(*(item.value for item in unresolved)), but)
    return SqlRelation(outs, open=remaining)
