"""Column lineage of queries: steps, subqueries, joins, unions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from odf_engine.metadata.model import SqlQueryStep
from odf_engine.sql.expression_lineage import (
    GENERATORS,
    WINDOWS,
    ColumnNotFound,
    LineageUnresolved,
    Scope,
    default_column_name,
    expand_star,
    expression_sources,
    function_name,
    parse_query,
)
from odf_engine.sql.lineage_model import (
    ColumnLineage,
    InputColumn,
    OutputColumn,
    RowDependencies,
    SqlRelation,
    UnresolvedColumns,
    ValueSources,
    as_row_dependencies,
    input_relations,
    merge_sources,
    unknown_lineage,
    with_transformation,
)


def trace_columns(
    queries: Sequence[SqlQueryStep],
    inputs: Mapping[str, Sequence[str] | None],
    *,
    outputs: Sequence[str] | None = None,
    times: Mapping[str, str] | None = None,
) -> ColumnLineage:
    """Return the input columns that each column of a query's result depends on.

    Args:
        queries: the steps; each can read the inputs, and the earlier steps by their aliases.
        inputs: column names of each input by its name in the query, or None if they are unknown.
        outputs: column names of the result, if they are known. They resolve ``SELECT *`` and columns without
            a name.
        times: event time column of each input that is joined FOR SYSTEM_TIME AS OF.
    """
    try:
        relation = resolve_query(queries, input_relations(inputs), times or {})
    except LineageUnresolved as error:
        return unknown_lineage(inputs, outputs, str(error))
    except RecursionError:
        return unknown_lineage(inputs, outputs, "the query is nested too deeply")
    columns: dict[str, list[InputColumn]] = {}
    for name, value in relation.column_sources(outputs).items():
        columns[name] = [InputColumn(*column, transformation) for column, transformation in value.items()]
    return ColumnLineage(columns, [InputColumn(*row) for row in relation.rows])


def find_unknown_column(query: str, inputs: Mapping[str, Sequence[str] | None]) -> str | None:
    """Return a column of a query that no input has, or None if all exist or the query cannot be resolved.

    Args:
        query: the query.
        inputs: as in :func:`trace_columns`.
    """
    try:
        resolve_query([SqlQueryStep(query=query)], input_relations(inputs), {})
    except ColumnNotFound as error:
        *qualifiers, name = error.parts
        is_known = len(qualifiers) > 1 or (not qualifiers and name.casefold() in _CONSTANTS)
        return None if is_known else ".".join(error.parts)
    except (LineageUnresolved, RecursionError):
        pass
    return None


_CONSTANTS: Final = frozenset({
    "current_catalog", "current_database", "current_date", "current_schema", "current_time",
    "current_timestamp", "current_timezone", "current_user", "localtimestamp", "now", "session_user", "user",
})  # fmt: skip
"""Functions that Spark also accepts without parentheses."""

_SELECT: Final = frozenset({
    "with_", "expressions", "hint", "distinct", "from_", "joins", "laterals", "where", "group", "having",
    "windows", "distribute", "sort", "cluster", "order", "limit", "offset",
})  # fmt: skip
_SET: Final = frozenset({"with_", "this", "expression", "distinct", "order", "limit", "offset"})
_SUBQUERY: Final = frozenset({
    "with_", "this", "alias", "joins", "laterals", "order", "limit", "offset", "pivots", "sample", "sort",
})  # fmt: skip
_TABLE: Final = frozenset({
    "this", "db", "catalog", "alias", "joins", "laterals", "version", "sample", "pivots", "hints",
})  # fmt: skip
_JOIN: Final = frozenset({"this", "on", "using", "side", "kind", "method", "hint"})


def resolve_query(
    queries: Sequence[SqlQueryStep], tables: Mapping[str, SqlRelation], times: Mapping[str, str]
) -> SqlRelation:
    """Resolve the relation that a query returns.

    Args:
        queries: the steps.
        tables: the inputs by lower-case name.
        times: event time column of each input that is joined FOR SYSTEM_TIME AS OF.

    Raises:
        LineageUnresolved: a part of the query is not supported.
    """
    relations = dict(tables)
    resolver = _LineageResolver({name.casefold(): column for name, column in times.items()})
    result: SqlRelation | None = None
    for step in queries:
        names = [
            out.name for relation in relations.values() for out in relation.columns if out.name is not None
        ]
        result = resolver.query(parse_query(step.query, names), Scope(dict(relations), resolver.query))
        if step.alias is not None:
            relations[step.alias.casefold()] = result
    if result is None:
        raise LineageUnresolved("the query has no steps")
    return result


def _require_supported(node: exp.Expr, supported: frozenset[str]) -> None:
    for key, value in node.args.items():
        if value and key not in supported:
            raise LineageUnresolved(f"{key.strip('_').replace('_', ' ').upper()} is not supported")


class _LineageResolver:
    """Resolves the relations of queries; ``times`` as in :func:`resolve_query`, with lower-case names."""

    def __init__(self, times: Mapping[str, str]) -> None:
        self._times = times

    def query(self, node: exp.Expr, scope: Scope) -> SqlRelation:
        """Return the relation of a query."""
        self._add_common_tables(node, scope)
        match node:
            case exp.Select():
                return self._select(node, scope)
            case exp.SetOperation():
                return self._set_operation(node, scope)
            case exp.Subquery():
                _require_supported(node, _SUBQUERY)
                if node.args.get("joins") or node.args.get("laterals") or node.args.get("pivots"):
                    raise LineageUnresolved("joins in parentheses are not supported here")
                relation = self.query(node.this, self._sibling_scope(scope))
                return self._add_ordering(node, relation, self._sibling_scope(scope))
            case exp.Values():
                return self._values(node)
            case exp.Table():
                return self._table(node, scope)
        raise LineageUnresolved(f"{node.key.upper()} is not supported")

    def _sibling_scope(self, scope: Scope) -> Scope:
        """Return a scope with the tables and the outer scope of another one, without the sources of its
        FROM.
        """
        return Scope(dict(scope.tables), self.query, outer=scope.outer)

    def _add_common_tables(self, node: exp.Expr, scope: Scope) -> None:
        clause = node.args.get("with_")
        if clause is None:
            return
        if clause.args.get("recursive"):
            raise LineageUnresolved("WITH RECURSIVE is not supported")
        for expression in clause.expressions:
            relation = self.query(expression.this, scope.subquery_scope())
            scope.tables[expression.alias.casefold()] = _apply_column_aliases(
                relation, expression.args.get("alias")
            )

    def _set_operation(self, node: exp.SetOperation, scope: Scope) -> SqlRelation:
        _require_supported(node, _SET)
        left = self.query(node.this, scope.subquery_scope())
        right = self.query(node.expression, scope.subquery_scope())
        rows: RowDependencies = {**left.rows, **right.rows}
        if not isinstance(node, exp.Union):
            rows |= as_row_dependencies(merge_sources(left.all_sources(), right.all_sources()), "filter")
        uses_right = not isinstance(node, exp.Except)
        if left.open is None and right.open is None:
            if len(left.columns) != len(right.columns):
                raise LineageUnresolved("the sides of a union have different numbers of columns")
            outs = [
                replace(one, value=merge_sources(one.value, other.value if uses_right else {}), fields=None)
                for one, other in zip(left.columns, right.columns, strict=True)
            ]
            relation = SqlRelation(outs, rows)
        else:
            relation = self._union_of_unknown_width(left, right, rows, uses_right)
        if node.args.get("distinct"):
            rows |= as_row_dependencies(relation.all_sources(), "group_by")
        return self._add_ordering(node, replace(relation, rows=rows), self._sibling_scope(scope))

    def _union_of_unknown_width(
        self, left: SqlRelation, right: SqlRelation, rows: RowDependencies, uses_right: bool
    ) -> SqlRelation:
        """Return a union of relations whose number of columns is unknown."""
        if not left.columns and not right.columns and left.open and right.open:
            inputs = dict.fromkeys([*left.open.inputs, *right.open.inputs])
            if len(inputs) == 1 and not left.open.value and not right.open.value:
                return SqlRelation([], rows, UnresolvedColumns(tuple(inputs)))
        value = merge_sources(left.all_sources(), right.all_sources() if uses_right else {})
        return SqlRelation([], rows, UnresolvedColumns(value=with_transformation(value, "unknown")))

    def _add_ordering(self, node: exp.Expr, relation: SqlRelation, scope: Scope) -> SqlRelation:
        """Add the dependencies of ORDER BY, SORT BY, DISTRIBUTE BY and CLUSTER BY."""
        scope.sources = [("", relation), *scope.sources]
        for key in ("order", "sort", "distribute", "cluster"):
            clause = node.args.get(key)
            for expression in clause.expressions if clause is not None else ():
                scope.rows.update(
                    as_row_dependencies(self._sort_key(expression, relation, scope).value, "sort")
                )
        return replace(relation, rows={**relation.rows, **scope.rows})

    def _sort_key(self, node: exp.Expr, relation: SqlRelation, scope: Scope) -> OutputColumn:
        node = node.this if isinstance(node, exp.Ordered) else node
        if isinstance(node, exp.Literal) and not node.is_string:
            return _column_at(node, relation)
        if isinstance(node, exp.Var | exp.Identifier) and node.name.casefold() == "all":
            return OutputColumn(None, relation.all_sources())
        return expression_sources(node, scope)

    def _select(self, node: exp.Select, scope: Scope) -> SqlRelation:
        _require_supported(node, _SELECT)
        if (clause := node.args.get("from_")) is not None:
            self._add_source(clause.this, scope)
        self._add_joins(node, scope)
        scope.windows = {window.name.casefold(): window for window in node.args.get("windows") or ()}
        group = node.args.get("group")
        self._add_filter(
            node.args.get("where"), scope
        )  # WHERE cannot refer to aliases, so it comes before them
        self._add_windows(group, scope)
        relation = self._projection(node, scope)
        self._add_grouping(group, relation, scope)
        self._add_filter(node.args.get("having"), replace(scope, sources=[("", relation), *scope.sources]))
        if node.args.get("distinct"):
            scope.rows.update(as_row_dependencies(relation.all_sources(), "group_by"))
        ordered = self._add_ordering(node, relation, scope)
        return replace(ordered, rows=dict(scope.rows))

    def _add_filter(self, clause: exp.Expr | None, scope: Scope) -> None:
        if clause is not None:
            scope.rows.update(as_row_dependencies(expression_sources(clause.this, scope).value, "filter"))

    def _add_windows(self, group: exp.Expr | None, scope: Scope) -> None:
        """Add the columns ``window`` and ``session_window``, which refer to a window in GROUP BY."""
        calls = [
            function
            for function in (group.find_all(exp.Anonymous) if group else ())
            if function_name(function) in WINDOWS
        ]
        for call in calls:
            scope.sources.append(("", SqlRelation([expression_sources(call, scope)])))

    def _projection(self, node: exp.Select, scope: Scope) -> SqlRelation:
        """Return the columns of a SELECT list. Later columns can refer to earlier ones."""
        outs: list[OutputColumn] = []
        unresolved: list[UnresolvedColumns] = []
        for expression in node.expressions:
            selected = self._select_item(expression, scope)
            outs += selected.columns
            unresolved += [selected.open] if selected.open is not None else []
            for out in selected.columns:
                if isinstance(expression, exp.Alias | exp.Aliases) and out.name:
                    scope.aliases.setdefault(out.name.casefold(), out)
        remaining = None
        if unresolved:
            inputs = tuple(name for item in unresolved for name in item.inputs)
            but = frozenset.intersection(*(item.excluded for item in unresolved))
            remaining = UnresolvedColumns(
                tuple(dict.fromkeys(inputs)), merge_sources(*(item.value for item in unresolved)), but
            )
        return SqlRelation(outs, open=remaining)

    def _select_item(self, node: exp.Expr, scope: Scope) -> SqlRelation:
        if isinstance(node, exp.Aliases):
            value = expression_sources(node.this, scope).value
            return SqlRelation([OutputColumn(expression.name, value) for expression in node.expressions])
        if node.is_star and isinstance(node, exp.Star | exp.Column):
            return expand_star(node, scope)
        out = expression_sources(node, scope)
        if function_name(node) in GENERATORS:
            return SqlRelation([], open=UnresolvedColumns(value=out.value))
        name = default_column_name(node)
        text = "" if name else node.sql("spark", normalize_functions=False)
        return SqlRelation([replace(out, name=name, text=text)])

    def _add_grouping(self, group: exp.Expr | None, relation: SqlRelation, scope: Scope) -> None:
        if group is None:
            return
        for expression in self._grouping_expressions(group):
            out = (
                _column_at(expression, relation)
                if isinstance(expression, exp.Literal)
                else expression_sources(expression, scope)
            )
            windowed = any(function_name(call) in WINDOWS for call in expression.find_all(exp.Anonymous))
            scope.rows.update(as_row_dependencies(out.value, "window" if windowed else "group_by"))
        if group.args.get("all"):
            for out in relation.columns:
                unaggregated: ValueSources = {
                    column: transformation
                    for column, transformation in out.value.items()
                    if transformation != "aggregation"
                }
                scope.rows.update(as_row_dependencies(unaggregated, "group_by"))

    def _grouping_expressions(self, node: exp.Expr) -> Iterator[exp.Expr]:
        for expression in node.iter_expressions():
            if isinstance(expression, exp.Rollup | exp.Cube | exp.GroupingSets | exp.Tuple | exp.Paren):
                yield from self._grouping_expressions(expression)
            else:
                yield expression

    def _add_joins(self, node: exp.Expr, scope: Scope) -> None:
        for join in node.args.get("joins") or ():
            self._add_join(join, scope)
        for lateral in node.args.get("laterals") or ():
            scope.sources.append(self._lateral(lateral, scope))

    def _add_join(self, join: exp.Join, scope: Scope) -> None:
        _require_supported(join, _JOIN)
        before = list(scope.sources)
        self._add_source(join.this, scope)
        after = scope.sources[len(before) :]
        names = [identifier.name for identifier in join.args.get("using") or ()]
        if join.method == "NATURAL":
            names = self._common_names(before, after)
        for name in names:
            self._merge_joined_column(name, before, after, scope)
        if (on := join.args.get("on")) is not None:
            scope.rows.update(as_row_dependencies(expression_sources(on, scope).value, "join"))
        if join.kind in ("SEMI", "ANTI"):
            scope.sources = before

    def _common_names(
        self, before: list[tuple[str, SqlRelation]], after: list[tuple[str, SqlRelation]]
    ) -> list[str]:
        if any(relation.open for _, relation in [*before, *after]):
            raise LineageUnresolved("NATURAL JOIN is not supported unless all columns are known")
        names = [out.name for _, relation in before for out in relation.columns if out.name]
        return [name for name in dict.fromkeys(names) if any(source.find(name) for _, source in after)]

    def _merge_joined_column(
        self,
        name: str,
        before: list[tuple[str, SqlRelation]],
        after: list[tuple[str, SqlRelation]],
        scope: Scope,
    ) -> None:
        """Merge a column of USING or of a NATURAL JOIN from both sides."""
        sides = [Scope(scope.tables, self.query, sources=source) for source in (before, after)]
        sides[0].using_columns = scope.using_columns
        columns = [side.resolve([name]) for side in sides]
        value = merge_sources(*(out.value for out in columns))
        scope.rows.update(as_row_dependencies(value, "join"))
        scope.using_columns = {**scope.using_columns, name.casefold(): OutputColumn(name, value)}

    def _add_source(self, node: exp.Expr, scope: Scope) -> None:
        """Add the relation in FROM or JOIN to the sources of the scope."""
        if isinstance(node, exp.Lateral):
            scope.sources.append(self._lateral(node, scope))
            return
        if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table) and not node.alias:
            _require_supported(node, _SUBQUERY)  # brackets around a join
            self._add_source(node.this, scope)
            self._add_joins(node, scope)
            return
        name = node.alias_or_name if isinstance(node, exp.Table | exp.Subquery) else node.alias
        if isinstance(node, exp.Table):
            relation = self._table(node, scope)
        elif isinstance(node, exp.Subquery):
            _require_supported(node, _SUBQUERY)
            inner = self._sibling_scope(scope)
            self._add_common_tables(node, inner)
            relation = self._add_ordering(node, self.query(node.this, inner), self._sibling_scope(inner))
        else:
            relation = self.query(node, scope.subquery_scope())
        relation = self._pivoted(node, relation)
        scope.rows.update(relation.rows)
        relation = replace(_apply_column_aliases(relation, node.args.get("alias")), rows={})
        scope.sources.append((name.casefold() or " ", relation))
        self._add_joins(node, scope)

    def _table(self, node: exp.Table, scope: Scope) -> SqlRelation:
        _require_supported(node, _TABLE)
        if not isinstance(node.this, exp.Identifier):
            value = expression_sources(node.this, scope).value
            return SqlRelation([], open=UnresolvedColumns(value=with_transformation(value, "transformation")))
        name = ".".join(part.name for part in node.parts)
        relation = scope.tables.get(name.casefold())
        if relation is None:
            raise LineageUnresolved(f"input '{name}' not found")
        if (version := node.args.get("version")) is not None:
            if version.expression is None:
                raise LineageUnresolved(f"no time follows AS OF for '{name}'")
            rows = as_row_dependencies(expression_sources(version.expression, scope).value, "join")
            time = relation.find(self._times.get(name.casefold(), "")) if self._times else None
            rows |= as_row_dependencies(time.value if time else {}, "join")
            relation = replace(relation, rows={**relation.rows, **rows})
        return relation

    def _pivoted(self, node: exp.Expr, relation: SqlRelation) -> SqlRelation:
        """Return the relation after PIVOT or UNPIVOT: any column may depend on any other."""
        if not node.args.get("pivots"):
            return relation
        value = with_transformation(relation.all_sources(), "aggregation")
        return SqlRelation(
            [], {**relation.rows, **as_row_dependencies(value, "group_by")}, UnresolvedColumns(value=value)
        )

    def _values(self, node: exp.Values) -> SqlRelation:
        rows = [
            expression.expressions if isinstance(expression, exp.Tuple) else [expression]
            for expression in node.expressions
        ]
        if any(value.find(exp.Column) for row in rows for value in row):
            raise LineageUnresolved("VALUES with columns is not supported")
        return SqlRelation(
            [OutputColumn(f"col{position}", {}) for position, _ in enumerate(rows[0] if rows else (), 1)]
        )

    def _lateral(self, node: exp.Lateral, scope: Scope) -> tuple[str, SqlRelation]:
        alias = node.args.get("alias")
        name = (alias.name if alias is not None else "").casefold() or " "
        if isinstance(node.this, exp.Query):
            relation = self.query(node.this, scope.subquery_scope())
            scope.rows.update(relation.rows)
            return name, replace(_apply_column_aliases(relation, alias), rows={})
        value = with_transformation(expression_sources(node.this, scope).value, "transformation")
        columns = [column.name for column in alias.columns] if alias is not None else []
        if columns:
            return name, SqlRelation([OutputColumn(column, value) for column in columns])
        return name, SqlRelation([], open=UnresolvedColumns(value=value))


def _apply_column_aliases(relation: SqlRelation, alias: exp.Expr | None) -> SqlRelation:
    names = [column.name for column in alias.columns] if isinstance(alias, exp.TableAlias) else []
    renamed = relation.rename_columns(names) if names else relation
    if renamed is None:
        raise LineageUnresolved(f"the numbers of columns and names differ: {', '.join(names)}")
    return renamed


def _column_at(node: exp.Expr, relation: SqlRelation) -> OutputColumn:
    """Return the column at a position of the SELECT list, from 1."""
    if (
        relation.open is not None
        or not node.name.isdecimal()
        or not 0 < int(node.name) <= len(relation.columns)
    ):
        return OutputColumn(None, relation.all_sources())
    return relation.columns[int(node.name) - 1]
