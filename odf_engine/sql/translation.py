"""Translates queries for Flink, RisingWave and DataFusion into Spark SQL.

A construct without a translation is an error with its position. A translation whose result has another type,
or another meaning, is reported as a change. Semantics of the engines: the event time of the rows decides in
all of them. Flink and RisingWave run continuously. DataFusion reads only the new rows of a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec.structs import replace
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from odf_engine.errors import InvalidQuery
from odf_engine.metadata.model import Sql, SqlQueryStep
from odf_engine.sql.query_text import attach_query_excerpt, line_and_column
from odf_engine.sql.source_dialects import (
    AGGREGATE_TYPES,
    DIALECTS,
    FUNCTIONS,
    GROUP_AUXILIARY,
    LABELS,
    NOW,
    RENAMED,
    RESULTS,
    SOURCES,
    SPECIAL,
    WINDOW_COLUMNS,
    WINDOW_FUNCTIONS,
    SparkGenerator,
    cast_to,
)

TARGET: Final = "spark"


Columns = Mapping[str, str | None]
"""Types of columns by their lower-case names, as in Spark's DDL without parameters; None: unknown."""


class Translation(NamedTuple):
    """A translated query.

    Attributes:
        transform: the query for Spark.
        changes: how its results differ from the original's, as sentences.
    """

    transform: Sql
    changes: list[str]


def translate_query(
    transform: Sql, *, continuous: bool, inputs: Mapping[str, Columns] | None = None
) -> Translation:
    """Translate a query into Spark SQL.

    Args:
        transform: the query; one with ``query`` keeps this form.
        continuous: whether it is the query of a derivative dataset, and not a preprocess query.
        inputs: columns of inputs by their aliases, as far as they are known. With them, fewer changes are
            reported, because more types are known.

    Raises:
        InvalidQuery: there is no translation from this engine; or a construct has none, with its position
            and all others in the message.
    """
    engine, steps = transform.engine.lower(), transform.queries or []
    if engine not in DIALECTS:
        raise InvalidQuery(
            f"queries for '{transform.engine}' cannot be translated",
            where="transform",
            hint=f"translations exist for {', '.join(SOURCES)}",
        )
    if not steps and transform.query is not None:
        steps = [SqlQueryStep(query=transform.query)]
    relations: dict[str, Columns | None] = {name.lower(): columns for name, columns in (inputs or {}).items()}
    problems: list[_Problem] = []
    changes: list[str] = []
    translated: list[SqlQueryStep] = []
    for index, step in enumerate(steps):
        place = f"query step {index + 1} of {len(steps)}" if len(steps) > 1 else "query"
        text = _StepTranslator(engine, step.query, place, relations, continuous=continuous)
        query, alias = text.translate(step.alias)
        problems += text.problems
        changes += text.changes
        translated.append(SqlQueryStep(query=query, alias=alias))
    if problems:
        first, *others = problems
        more = "".join(f"\n{other.where}: {other.message}" for other in others)
        with attach_query_excerpt(steps):
            raise InvalidQuery(
                f"cannot be translated from {LABELS[engine]} to Spark: {first.message}{more}",
                where=first.where,
                hint=f"rewrite this part for engine: {TARGET}, or run {engine} in a container: "
                f"odf config set engines.{engine} container",
            )
    if transform.query is not None:
        result = replace(transform, engine=TARGET, version=None, query=translated[0].query)
    else:
        result = replace(transform, engine=TARGET, version=None, queries=translated)
    return Translation(result, list(dict.fromkeys(changes)))


class _Problem(NamedTuple):
    where: str
    message: str


@dataclass
class _TimeWindow:
    """A window of time in FROM: ``TUMBLE`` or ``HOP`` as a table function."""

    time: exp.Expr
    size: str
    slide: str | None
    grouped: bool = False

    def call(self) -> exp.Expr:
        arguments = [self.time.copy(), exp.Literal.string(self.size)]
        if self.slide is not None:
            arguments.append(exp.Literal.string(self.slide))
        return _spark_call("window", arguments)


_TRANSLATED: Final = "translated"
"""Mark of a function call that is already one of Spark."""


def _spark_call(name: str, arguments: Sequence[exp.Expr]) -> exp.Anonymous:
    call = exp.Anonymous(this=name, expressions=list(arguments))
    call.meta[_TRANSLATED] = True
    return call


@dataclass
class _Scope:
    """The sources of a SELECT by alias, and its windows in FROM."""

    sources: dict[str, Columns | None] = field(default_factory=dict)
    windows: dict[str, _TimeWindow] = field(default_factory=dict)

    def column_type(self, column: exp.Column) -> str | None:
        name = column.name.lower()
        for source, columns in self.sources.items():
            if columns is not None and name in columns and column.table.lower() in ("", source):
                return columns[name]
        return None


_INTEGERS: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_INTEGER: Final = frozenset(_INTEGERS)
_TYPE_NAMES: Final = {
    "VARCHAR": "STRING", "TEXT": "STRING", "CHAR": "STRING", "TIMESTAMPTZ": "TIMESTAMP", "BOOL": "BOOLEAN",
    "TIMESTAMPLTZ": "TIMESTAMP", "TIMESTAMPNTZ": "TIMESTAMP", "VARBINARY": "BINARY", "LONG": "BIGINT",
}  # fmt: skip
_RANK: Final = "rank"
"""Mark of a column that is the number of a row: INT in Spark, BIGINT in the other engines."""


class _StepTranslator:
    """Translates one step of a query.

    Attributes:
        problems: the constructs without a translation.
        changes: how the results differ.
    """

    def __init__(
        self,
        engine: str,
        query: str,
        place: str,
        relations: dict[str, Columns | None],
        *,
        continuous: bool,
    ) -> None:
        self._engine, self._query, self._place = engine, query, place
        self._relations, self._continuous = relations, continuous
        self._emits_on_close = False
        self.problems: list[_Problem] = []
        self.changes: list[str] = []

    def translate(self, alias: str | None) -> tuple[str, str | None]:
        """Return the query and its alias. Without a translation, ``problems`` is not empty."""
        dialect = DIALECTS[self._engine]()
        try:
            tokens, view = self._strip_clauses(dialect.tokenize(self._query))
            alias = view or alias
            trees = [root for root in dialect.parser().parse(tokens, self._query) if root is not None]
        except SqlglotError as error:
            details = (getattr(error, "errors", None) or [{}])[0]
            place = self._place
            if details.get("line"):
                place += f", line {details['line']}, column {details['col']}"
            text = str(details.get("description") or "invalid syntax").partition(" but got <")[0].rstrip(".")
            self.problems.append(_Problem(place, f"the query cannot be parsed: {text}"))
            return "", alias
        if len(trees) != 1 or not isinstance(trees[0], exp.Query):
            self.problems.append(_Problem(self._place, "it is not a single SELECT"))
            return "", alias
        tree = trees[0]
        columns = self._translate_query(tree)
        if alias is not None:
            self._relations[alias.lower()] = columns
        generator = SparkGenerator(dialect=Spark(), pretty=True, normalize_functions=False)
        return generator.generate(tree), alias

    def _strip_clauses(self, tokens: Sequence[Token]) -> tuple[list[Token], str | None]:
        """Return the tokens of the SELECT, and the name of the view if it is created by the statement."""
        tokens = list(tokens)
        view = None
        texts = [token.text.upper() for token in tokens]
        if texts[:1] == ["CREATE"]:
            start = 1 + (texts[1:2] == ["MATERIALIZED"])
            if texts[start : start + 1] == ["VIEW"] and texts[start + 2 : start + 3] == ["AS"]:
                view = tokens[start + 1].text
                tokens = tokens[start + 3 :]
        texts = [token.text.upper() for token in tokens]
        while texts and texts[-1] == ";":
            texts.pop()
            tokens.pop()
        if texts[-4:] == ["EMIT", "ON", "WINDOW", "CLOSE"]:
            tokens, self._emits_on_close = tokens[:-4], True
        for index, token in enumerate(tokens[:-1]):
            if token.text.upper() == "SESSION" and tokens[index + 1].text == "(":  # a keyword of sqlglot
                tokens[index] = Token(
                    TokenType.VAR,
                    token.text,
                    line=token.line,
                    col=token.col,
                    start=token.start,
                    end=token.end,
                )
        return self._unwrap_tables(tokens), view

    def _unwrap_tables(self, tokens: list[Token]) -> list[Token]:
        """Return the tokens with ``TABLE(TUMBLE(TABLE t, …))`` as ``TUMBLE(t, …)``."""
        drop: set[int] = set()
        for index in range(len(tokens) - 3):
            texts = [token.text.upper() for token in tokens[index : index + 5]]
            if texts[0] != "TABLE" or texts[1] != "(" or texts[2] not in WINDOW_FUNCTIONS or texts[3] != "(":
                continue
            depth = 0
            for end in range(index + 1, len(tokens)):
                depth += {"(": 1, ")": -1}.get(tokens[end].text, 0)
                if not depth:
                    drop |= {index, index + 1, end}
                    break
            if texts[4:] == ["TABLE"]:
                drop.add(index + 4)
        return [token for index, token in enumerate(tokens) if index not in drop]

    def _translate_query(self, query: exp.Expr) -> Columns | None:
        """Translate a query in place; return its columns, if they are known."""
        clause = query.args.get("with_")
        for expression in clause.expressions if clause is not None else ():
            self._relations[expression.alias.lower()] = self._translate_query(expression.this)
        if isinstance(query, exp.Subquery):
            return self._translate_query(query.this)
        if isinstance(query, exp.SetOperation):
            left, right = self._translate_query(query.this), self._translate_query(query.expression)
            self._visit_arguments(query, _Scope(), ("order", "limit"))
            return left if left is not None else right
        if not isinstance(query, exp.Select):
            self._report(query, f"{query.key.upper()} is not supported")
            return None
        return self._translate_select(query)

    def _translate_select(self, select: exp.Select) -> Columns | None:
        scope = _Scope()
        sources = [select.args["from_"].this] if select.args.get("from_") else []
        sources += [join.this for join in select.args.get("joins") or ()]
        for source in sources:
            self._add_source(source, scope)
        self._translate_laterals(select, scope)
        self._check_shape(select, sources)
        self._translate_group_windows(select, scope)
        for join in select.args.get("joins") or ():
            self._visit_arguments(join, scope, ("on",))
        self._visit_arguments(select, scope, ("where", "having", "qualify", "windows", "order", "limit"))
        for expression in select.args["group"].expressions if select.args.get("group") else ():
            self._visit(expression, scope)
        self._expand_ranks(select, scope)
        columns: dict[str, str | None] | None = {}
        for expression in list(select.expressions):
            kind = self._visit(expression, scope)
            if isinstance(expression, exp.Star) or (
                isinstance(expression, exp.Column) and isinstance(expression.this, exp.Star)
            ):
                known = self._star_columns(expression, scope)
                columns = None if known is None or columns is None else {**columns, **known}
            elif columns is not None:
                name = expression.alias_or_name.lower()
                if name in columns and self._engine != "risingwave":
                    self._report(
                        expression, f"two columns are named '{name}', and Spark ignores the case of names"
                    )
                columns[name] = kind
        if self._engine == "risingwave" and self._continuous and not self._emits_on_close:
            self._note_open_windows(select)
        return columns

    def _star_columns(self, star: exp.Expr, scope: _Scope) -> Columns | None:
        table = star.text("table").lower()
        chosen = [columns for name, columns in scope.sources.items() if table in ("", name)]
        known = [columns for columns in chosen if columns is not None]
        return (
            {key: kind for relation in known for key, kind in relation.items()}
            if len(known) == len(chosen)
            else None
        )

    def _add_source(self, source: exp.Expr, scope: _Scope) -> None:
        if isinstance(source, exp.Subquery):
            scope.sources[source.alias.lower() or f"#{len(scope.sources)}"] = self._translate_query(
                source.this
            )
            return
        if not isinstance(source, exp.Table):
            return
        if source.args.get("match_recognize") or source.find(exp.MatchRecognize):
            self._report(source, "MATCH_RECOGNIZE has no equivalent")
            return
        if source.args.get("version") is not None:
            self._visit(source.args["version"].expression, scope)
        name = source.alias_or_name.lower()
        if isinstance(source.this, exp.Anonymous):
            self._add_window_function(source, scope)
            return
        path = ".".join(part.name for part in source.parts)
        scope.sources[name] = self._relations.get(path.lower())

    def _add_window_function(self, source: exp.Table, scope: _Scope) -> None:
        """Replace ``TUMBLE(t, time, size)`` or ``HOP(t, time, slide, size)`` in FROM by its table."""
        call = source.this
        function, arguments = (
            call.name.upper(),
            [_unwrap_descriptor(expression) for expression in call.expressions],
        )
        lengths = {"TUMBLE": 3, "HOP": 4}
        if function not in lengths or len(arguments) != lengths[function]:
            self._report(call, f"the table function {function} has no equivalent")
            return
        intervals = [self._interval(argument) for argument in arguments[2:]]
        if not isinstance(arguments[0], exp.Column) or any(interval is None for interval in intervals):
            self._report(call, f"the arguments of {function} are not a table, a column and intervals")
            return
        size, slide = intervals[-1], intervals[0] if len(intervals) == 2 else None
        table = exp.Table(this=arguments[0].this.copy(), alias=source.args.get("alias"))
        source.replace(table)
        name = table.alias_or_name.lower()
        assert size is not None
        scope.windows[name] = _TimeWindow(arguments[1], size, slide)
        columns = self._relations.get(arguments[0].name.lower())
        times: Columns = dict.fromkeys(("window_start", "window_end", "window_time"), "TIMESTAMP")
        scope.sources[name] = None if columns is None else {**columns, **times}

    def _translate_laterals(self, select: exp.Select, scope: _Scope) -> None:
        """Translate ``a, LATERAL TABLE(rates(a.t)) AS r WHERE a.k = r.k`` to an as-of join."""
        joins = [*(select.args.get("joins") or ())]
        laterals = [join for join in joins if isinstance(join.this, exp.Lateral)]
        for join in laterals:
            call = join.this.this
            inner = call.expressions[0] if isinstance(call, exp.Anonymous) and call.expressions else None
            condition = select.args.get("where")
            if (
                not isinstance(inner, exp.Anonymous)
                or len(inner.expressions) != 1
                or (condition is None and join.args.get("on") is None)
            ):
                self._report(join, "this LATERAL has no equivalent")
                continue
            version = exp.Version(this="TIMESTAMP", expression=inner.expressions[0], kind="AS OF")
            table = exp.Table(
                this=exp.to_identifier(inner.name), version=version, alias=join.this.args.get("alias")
            )
            on = join.args.get("on")
            if on is None or isinstance(on, exp.Boolean):
                assert condition is not None
                on = condition.this.copy()
                select.set("where", None)
            join.replace(exp.Join(this=table, on=on, side=join.args.get("side")))
            scope.sources[table.alias_or_name.lower()] = self._relations.get(inner.name.lower())

    def _check_shape(self, select: exp.Select, sources: Sequence[exp.Expr]) -> None:
        """Report shapes that another engine evaluates over other rows."""
        if not self._continuous or self._engine != "datafusion":
            return
        if select.args.get("distinct") is not None:
            self._report(
                select, "DISTINCT: DataFusion compares only the new rows of a transaction, Spark all rows"
            )
        if len(sources) > 1:
            self._report(
                sources[1], "a join: DataFusion joins only the new rows of a transaction, Spark all rows"
            )
        if select.args.get("group") is not None or any(
            isinstance(function, exp.Anonymous) and function.name.lower() in AGGREGATE_TYPES
            for part in select.expressions
            for function in part.find_all(exp.Anonymous)
        ):
            self._report(
                select.args.get("group") or select,
                "an aggregation: DataFusion aggregates only the new rows of a transaction, Spark all rows",
            )

    def _note_open_windows(self, select: exp.Select) -> None:
        if any(True for function in select.find_all(exp.Anonymous) if function.name == "window"):
            self.changes.append(
                f"{self._place}: without EMIT ON WINDOW CLOSE, RisingWave emits changes of open windows; "
                "Spark emits a row when its window closes"
            )

    def _translate_group_windows(self, select: exp.Select, scope: _Scope) -> None:
        group = select.args.get("group")
        keys = list(group.expressions) if group is not None else []
        for key in keys:
            target = key
            if isinstance(key, exp.Literal) and not key.is_string:
                number = int(key.name)
                target = select.expressions[number - 1] if 0 < number <= len(select.expressions) else key
                target = target.unalias()
            if isinstance(key, exp.Anonymous) and key.name.upper() in WINDOW_FUNCTIONS:
                key.replace(self._group_window(key))
            elif (column := _find_window_column(target)) is not None:
                window = self._window_of(column, scope)
                if window is None:
                    continue
                if window.grouped:
                    key.pop()
                else:
                    window.grouped = True
                    key.replace(window.call())

    def _window_of(self, column: exp.Column, scope: _Scope) -> _TimeWindow | None:
        if column.table:
            return scope.windows.get(column.table.lower())
        return next(iter(scope.windows.values()), None)

    def _group_window(self, call: exp.Anonymous) -> exp.Expr:
        """Return Spark's window for ``TUMBLE(t, size)``, ``HOP(t, slide, size)`` or ``SESSION(t, gap)``."""
        function, arguments = call.name.upper(), call.expressions
        intervals = [self._interval(argument) for argument in arguments[1:]]
        if function == "CUMULATE" or any(interval is None for interval in intervals) or not intervals:
            self._report(call, f"{function} with these arguments has no equivalent")
            return call
        texts = [exp.Literal.string(interval or "") for interval in reversed(intervals)]
        name = "session_window" if function == "SESSION" else "window"
        return _spark_call(name, [arguments[0].copy(), *texts])

    def _interval(self, node: exp.Expr) -> str | None:
        if not isinstance(node, exp.Interval):
            return None
        value, unit = node.this, node.args.get("unit")
        text = value.name if isinstance(value, exp.Literal) else ""
        if unit is None:
            return text.lower() or None
        plain = text.lstrip("-").replace(".", "", 1).isdigit()
        return f"{text} {unit.name.lower()}" if plain and isinstance(unit, exp.Var) else None

    def _expand_ranks(self, select: exp.Select, scope: _Scope) -> None:
        """Cast columns of row numbers of a subquery to BIGINT, where they leave the subquery."""
        ranks = [
            (name, columns)
            for name, columns in scope.sources.items()
            if columns is not None and _RANK in columns.values()
        ]
        if not ranks:
            return
        items: list[exp.Expr] = []
        for expression in select.expressions:
            is_star = isinstance(expression, exp.Star)
            if is_star and len(scope.sources) == 1:
                items += [exp.column(exp.to_identifier(name)) for name in ranks[0][1]]
            else:
                items.append(expression)
        for index, item in enumerate(items):
            column = item.unalias()
            if isinstance(column, exp.Column) and scope.column_type(column) == _RANK:
                cast = cast_to(column.copy(), "BIGINT")
                items[index] = exp.alias_(cast, item.alias_or_name, quoted=_is_quoted(column))
        select.set("expressions", items)

    def _visit_arguments(self, node: exp.Expr, scope: _Scope, names: Sequence[str]) -> None:
        for name in names:
            value = node.args.get(name)
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, exp.Expr):
                    self._visit(part, scope)

    def _visit(self, node: exp.Expr, scope: _Scope) -> str | None:
        """Translate an expression in place; return its type, if it is known."""
        if isinstance(node, exp.Query):
            columns = self._translate_query(node)
            return next(iter(columns.values()), None) if columns else None
        types = [self._visit(expression, scope) for expression in list(node.iter_expressions())]
        match node:
            case exp.Column():
                return self._visit_column(node, scope)
            case exp.Literal():
                return "STRING" if node.is_string else "INT" if node.name.isdigit() else "DECIMAL"
            case exp.Cast():
                return self._visit_cast(node)
            case exp.Anonymous():
                return self._visit_function(node, types)
            case exp.Window():
                return self._visit_over(node, types)
            case exp.Div():
                return self._visit_division(node, types)
            case exp.Floor() | exp.Ceil() if node.args.get("to") is not None:
                return self._visit_time_floor(node)
            case exp.Extract():
                return self._visit_extract(node)
            case exp.Paren() | exp.Alias() | exp.Neg() | exp.Filter():
                return types[0] if types else None
            case exp.Case():
                return next(iter(set(types)), None) if len(set(types)) == 1 else None
            case exp.If():
                return types[-1]
            case exp.Add() | exp.Sub() | exp.Mul() | exp.Mod():
                return _wider(types)
            case exp.Predicate() | exp.Connector() | exp.Not():
                return "BOOLEAN"
        return None

    def _visit_column(self, node: exp.Column, scope: _Scope) -> str | None:
        name = node.name.lower()
        quoted = isinstance(node.this, exp.Identifier) and node.this.quoted
        if name in NOW and not node.table and not quoted and scope.column_type(node) is None:
            return self._visit_now(node, name)
        if name in WINDOW_COLUMNS and (window := self._window_of(node, scope)) is not None:
            base = exp.column("window") if window.grouped else window.call()
            part = "start" if name == "window_start" else "end"
            new: exp.Expr = (
                exp.column(part, table="window")
                if window.grouped
                else exp.Dot(this=base, expression=exp.to_identifier(part))
            )
            if name == "window_time":
                new = _minus_millisecond(new)
            self._replace(node, new, alias=node.name)
            return "TIMESTAMP"
        return scope.column_type(node)

    def _visit_now(self, node: exp.Expr, name: str) -> str | None:
        if self._continuous:
            self._report(node, f"{name.upper()} is not deterministic, so the result could not be verified")
        else:
            function = "current_date" if name == "current_date" else "current_timestamp"
            self._replace(node, exp.Anonymous(this=function))
        return "DATE" if name == "current_date" else "TIMESTAMP"

    def _visit_cast(self, node: exp.Cast) -> str | None:
        kind = node.to
        name = kind.this.name if hasattr(kind.this, "name") else str(kind.this)
        if name.startswith(("U", "INT128", "INT256")) and name not in ("UNKNOWN", "UUID", "USERDEFINED"):
            self._report(node, f"the unsigned type {kind.sql()} has no equivalent")
        if name in ("VARCHAR", "CHAR", "NCHAR", "NVARCHAR") and kind.expressions:
            self.changes.append(
                f"{self._where(node)}: {kind.sql()} cuts the text to this length, Spark's STRING does not"
            )
            kind.set("expressions", [])
            kind.set("this", exp.DataType.Type.TEXT)
        if name in ("TIMESTAMPNTZ", "TIMESTAMPTZ", "TIMESTAMPLTZ", "TIMESTAMP"):
            node.set("to", exp.DataType.build("TIMESTAMP", dialect=Spark))
            return "TIMESTAMP"
        if name in ("TIME", "TIMETZ", "INTERVAL", "JSON", "JSONB", "UUID", "USERDEFINED"):
            self._report(node, f"the type {kind.sql()} has no equivalent")
        return _TYPE_NAMES.get(name, name)

    def _visit_division(self, node: exp.Div, types: Sequence[str | None]) -> str | None:
        left, right = types[0], types[1]
        if left in _INTEGER and right in _INTEGER:
            kind = _wider(types) or "BIGINT"
            new: exp.Expr = exp.IntDiv(this=node.this, expression=node.expression)
            self._replace(node, new if kind == "BIGINT" else cast_to(new, kind))
            return kind
        if left in ("DOUBLE", "FLOAT", "DECIMAL") or right in ("DOUBLE", "FLOAT", "DECIMAL"):
            return _wider(types)
        self.changes.append(
            f"{self._where(node)}: `/` truncates integers in {LABELS[self._engine]} and returns DOUBLE in "
            "Spark; write `div` if both operands are integers"
        )
        return None

    def _visit_time_floor(self, node: exp.Expr) -> str | None:
        unit = node.args["to"].name
        if isinstance(node, exp.Ceil):
            self._report(node, "CEIL to a unit of time has no equivalent")
            return "TIMESTAMP"
        unit = exp.Literal.string(unit.lower())
        self._replace(node, exp.Anonymous(this="date_trunc", expressions=[unit, node.this]))
        return "TIMESTAMP"

    def _visit_extract(self, node: exp.Extract) -> str | None:
        if node.this.name.upper() in ("EPOCH", "JULIAN"):
            self._report(node, f"EXTRACT({node.this.name.upper()} …) has no equivalent of the same type")
        if self._engine == "flink":
            self._replace(node, cast_to(node.copy(), "BIGINT"))
            return "BIGINT"
        if self._engine == "risingwave":
            self.changes.append(f"{self._where(node)}: EXTRACT returns NUMERIC in RisingWave, INT in Spark")
        return "INT"

    def _visit_over(self, node: exp.Window, types: Sequence[str | None]) -> str | None:
        if self._engine == "datafusion":
            if self._continuous:
                self._report(
                    node, "OVER: DataFusion reads only the new rows of a transaction, Spark all rows"
                )
            elif node.args.get("order") is None:
                self._report(node, "OVER without ORDER BY has no defined order")
        constant = [item for item in node.args.get("partition_by") or () if isinstance(item, exp.Literal)]
        for item in constant:
            item.pop()
        order = node.args.get("order")
        for expression in order.expressions if order is not None else ():
            if expression.this.name.lower() == "event_time":
                # The event time is never null: Spark's default, which is not written.
                expression.set("nulls_first", not expression.args.get("desc"))
        return types[0] if types else None

    def _visit_function(self, node: exp.Anonymous, types: Sequence[str | None]) -> str | None:
        name = node.name.lower()
        if node.meta.get(_TRANSLATED):
            return None
        if name in NOW or name in ("now", "proctime", "localtimestamp", "random", "rand", "uuid"):
            if name in ("random", "rand", "uuid") and not self._continuous:
                node.set("this", "rand" if name == "random" else name)
                return None
            return self._visit_now(node, name)
        if self._engine == "flink" and name.upper() in GROUP_AUXILIARY:
            return self._visit_window_bound(node)
        if name in AGGREGATE_TYPES:
            return self._visit_aggregate(node, name, types)
        if name in ("row_number", "rank", "dense_rank"):
            return _RANK
        special = SPECIAL[self._engine].get(name)
        if special is not None:
            replacement = special(node)
            if replacement is None:
                self._report(node, f"{node.name} with these arguments has no equivalent")
            else:
                self._replace(node, replacement)
            return RESULTS.get(name)
        renamed = RENAMED[self._engine].get(name, name)
        if renamed not in FUNCTIONS:
            self._report(node, f"the function {node.name} has no known equivalent")
            return None
        node.set("this", renamed)
        kind = FUNCTIONS[renamed]
        return _wider(types) if kind == "=" else kind or None

    def _visit_window_bound(self, node: exp.Anonymous) -> str | None:
        """Translate ``TUMBLE_START(t, size)`` and the like to a field of Spark's window."""
        function, _, part = node.name.upper().rpartition("_")
        if part == "PROCTIME":
            self._report(node, f"{node.name} is not deterministic, so the result could not be verified")
            return None
        table = "session_window" if function == "SESSION" else "window"
        new: exp.Expr = exp.column("start" if part == "START" else "end", table=table)
        self._replace(node, _minus_millisecond(new) if part == "ROWTIME" else new)
        return "TIMESTAMP"

    def _visit_aggregate(self, node: exp.Anonymous, name: str, types: Sequence[str | None]) -> str | None:
        argument = types[0] if types else None
        engine, place = self._engine, self._where(node)
        label = LABELS[engine]
        if name in ("min", "max"):
            return argument
        if name == "sum":
            if argument in ("TINYINT", "SMALLINT", "INT", "FLOAT") and engine == "flink":
                self._cast(node, argument)
                return argument
            if argument is None and engine == "flink":
                self.changes.append(f"{place}: sum of an INT is INT in Flink and BIGINT in Spark")
            if argument == "BIGINT" and engine == "risingwave":
                self.changes.append(f"{place}: sum of a BIGINT is NUMERIC in RisingWave and BIGINT in Spark")
            if argument == "FLOAT" and engine == "risingwave":
                self._cast(node, "FLOAT")
                return "FLOAT"
            if argument in _INTEGER:
                return "BIGINT"
            return "DOUBLE" if argument == "FLOAT" else argument
        if name == "avg":
            if engine == "flink" and argument in _INTEGER:
                self._cast(node, argument or "BIGINT")
                return argument
            if argument is None and engine == "flink":
                self.changes.append(f"{place}: avg of integers is an integer in Flink and DOUBLE in Spark")
            elif argument in (None, *_INTEGERS) and engine == "risingwave":
                self.changes.append(f"{place}: avg of integers is NUMERIC in {label} and DOUBLE in Spark")
            return "DECIMAL" if argument == "DECIMAL" else "DOUBLE"
        return AGGREGATE_TYPES[name]

    def _cast(self, node: exp.Expr, kind: str) -> None:
        """Cast an aggregate, or the OVER around it, to the type that the other engine returns."""
        target = node.parent if isinstance(node.parent, exp.Window) and node.arg_key == "this" else node
        self._replace(target, cast_to(target.copy(), kind))

    def _replace(self, node: exp.Expr, new: exp.Expr, alias: str = "") -> None:
        """Replace a node; a column of SELECT without an alias keeps its name."""
        if alias and isinstance(node.parent, exp.Select) and node.arg_key == "expressions":
            new = exp.alias_(new, alias)
        node.replace(new)

    def _report(self, node: exp.Expr, message: str) -> None:
        self.problems.append(_Problem(self._where(node), message))

    def _where(self, node: exp.Expr) -> str:
        starts = [part.meta["start"] for part in node.walk() if "start" in part.meta]
        if not starts:
            return self._place
        line, column = line_and_column(self._query, min(starts))
        return f"{self._place}, line {line}, column {column}"


def _find_window_column(node: exp.Expr) -> exp.Column | None:
    """Return a bound of a window in an expression that has no other columns."""
    columns = list(node.find_all(exp.Column))
    if columns and all(column.name.lower() in WINDOW_COLUMNS for column in columns):
        return columns[0]
    return None


def _is_quoted(column: exp.Column) -> bool:
    return isinstance(column.this, exp.Identifier) and column.this.quoted


def _unwrap_descriptor(node: exp.Expr) -> exp.Expr:
    """Return the column of ``DESCRIPTOR(column)``."""
    if isinstance(node, exp.Anonymous) and node.name.upper() == "DESCRIPTOR" and node.expressions:
        return node.expressions[0]
    return node


def _minus_millisecond(node: exp.Expr) -> exp.Expr:
    interval = exp.Interval(this=exp.Literal.string("1"), unit=exp.Var(this="MILLISECOND"))
    return exp.Sub(this=node, expression=interval)


def _wider(types: Sequence[str | None]) -> str | None:
    if not types or None in types:
        return None
    for candidate in ("DOUBLE", "FLOAT", "DECIMAL", *reversed(_INTEGERS)):
        if candidate in types:
            return candidate
    return types[0]
