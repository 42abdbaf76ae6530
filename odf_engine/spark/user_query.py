"""Execution of user-written SQL: confinement, ad-hoc queries, FOR SYSTEM_TIME AS OF."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import ParseException, PySparkException
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from odf_engine.errors import InvalidQuery, InvalidSchema, NotFound, OdfError, Unsupported, UsageError
from odf_engine.metadata.model import DatasetVocabulary, Sql, SqlQueryStep
from odf_engine.spark.errors import QueryError, to_user_error, translate_errors
from odf_engine.spark.plan_rewrite import PlanBuilder, merge_sessions_first, node_name, to_list
from odf_engine.spark.sql_types import arrow_schema, identifier
from odf_engine.spark.stateful.temporal_tables import AsOfTable, StepJoin, StepJoins
from odf_engine.sql.query_text import TableName, attach_query_excerpt, make_names_unique, tokenize
from odf_engine.sql.table_functions import RewrittenQuery
from odf_engine.sql.variables import find_variable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_ALLOWED: Final = frozenset({
    # Tables and their aliases
    "LocalRelation", "NamedStreamingRelation", "OneRowRelation", "SubqueryAlias", "UnresolvedInlineTable",
    "UnresolvedRelation", "UnresolvedSubqueryColumnAliases", "UnresolvedTVFAliases",
    "UnresolvedTableValuedFunction",
    # Clauses of a SELECT, and pipe operators
    "Aggregate", "Distinct", "Filter", "Generate", "GlobalLimit", "LimitAll", "LocalLimit", "Offset",
    "PipeOperator", "Pivot", "Project", "RepartitionByExpression", "Sample", "Sort",
    "UnresolvedBinBy", "UnresolvedEventTimeWatermark", "UnresolvedHaving", "UnresolvedHint",
    "UnresolvedQualify", "UnresolvedWith", "Unpivot", "WithWindowDefinition",
    # Combinations of tables
    "AsOfJoin", "Except", "Intersect", "Join", "LateralJoin", "NearestByJoin", "Union",
})  # fmt: skip
"""Node types of a parsed plan that a query may contain."""
_CATALYST: Final = "org.apache.spark.sql.catalyst."
_REJECTED: Final = {
    "ScriptTransformation": (
        "programs are not allowed in a query",
        "use SQL functions, or run the program in a Pipe step of `prepare`",
    ),
    "PlanWithUnresolvedIdentifier": ("IDENTIFIER() cannot name a table", "write the name of the table"),
    "RelationTimeTravel": ("a view has no earlier versions", "remove VERSION or TIMESTAMP AS OF"),
    "RelationChanges": ("a view has no history of changes", "remove CHANGES"),
}
"""Rejected node types, with message and hint."""
_WALKER: Final = """\
public Object apply(Object root) {
    StringBuilder names = new StringBuilder();
    java.util.List found = new java.util.ArrayList();
    java.util.Map seen = new java.util.IdentityHashMap();
    java.util.Deque waiting = new java.util.ArrayDeque();
    waiting.push(root);
    while (!waiting.isEmpty()) {
        Object each = waiting.pop();
        if (seen.put(each, each) != null) continue;
        if (each instanceof org.apache.spark.sql.catalyst.plans.QueryPlan) {
            names.append(each.getClass().getName()).append('\\n');
            found.add(each);
        }
        scala.collection.Iterator parts = scala.collection.Iterator$.MODULE$.empty();
        if (each instanceof scala.collection.Iterable) parts = ((scala.collection.Iterable) each).iterator();
        else if (each instanceof scala.Product) parts = ((scala.Product) each).productIterator();
        while (parts.hasNext()) {
            Object part = parts.next();
            if (part != null) waiting.push(part);
        }
    }
    found.add(0, names.toString());
    return found;
}
"""
"""Java code that finds every plan in a plan: in children, expressions, collections and any other field.

Spark's own methods omit fields, such as the definitions of named windows. The result is a list: the class
names of the plans, one per line, then the plans. A call from Python for each field would be too slow.
"""


def check_confined(
    session: SparkSession, plan: Any, views: Collection[str], *, clauses: bool = False
) -> None:
    """Check that a parsed query runs no program and reads only the given views.

    Args:
        session: the session that parsed it.
        plan: Spark's logical plan, not analyzed.
        views: names that it may read.
        clauses: whether FOR SYSTEM_TIME AS OF is allowed.

    Raises:
        QueryError: the query is not confined; with line and column.
    """
    tables, cte_names = referenced_tables(session, plan, clauses=clauses)
    names = cte_names | {name.casefold() for name in views}
    for parts, node in tables:
        if len(parts) != 1 or parts[0].casefold() not in names:
            named = ".".join(f"`{part}`" for part in parts)
            raise confinement_error(node, f"table or view {named} not found", None)


def check_analyzed(session: SparkSession, frame: DataFrame) -> None:
    """Check that the analyzed plan of a query contains no program.

    The analysis can add nodes that the parsed plan does not contain.

    Raises:
        QueryError: it contains one; with line and column.
    """
    java: Any = frame._jdf
    for kind, node in _nodes(session, java.queryExecution().analyzed()):
        if kind in _REJECTED:
            raise confinement_error(node(), *_REJECTED[kind])


def referenced_tables(
    session: SparkSession, plan: Any, *, clauses: bool = False
) -> tuple[list[tuple[tuple[str, ...], Any]], AbstractSet[str]]:
    """Return the tables that a parsed query refers to, in any order, and the names of its WITH clauses.

    Args:
        session: the session that parsed it.
        plan: Spark's logical plan, not analyzed.
        clauses: whether FOR SYSTEM_TIME AS OF is allowed.

    Returns:
        The parts of each name with its plan node, and the case-folded names of the WITH clauses.

    Raises:
        QueryError: it runs a program, or could refer to tables not found here; with line and column.
    """
    tables: list[tuple[tuple[str, ...], Any]] = []
    cte_names: set[str] = set()
    for kind, node in _nodes(session, plan):
        if kind not in _ALLOWED and not (clauses and kind == "RelationTimeTravel"):
            raise confinement_error(node(), *_REJECTED.get(kind, (f"a query cannot contain {kind}", None)))
        if kind == "UnresolvedRelation":
            tables.append((tuple(_items(node().multipartIdentifier())), node()))
        if kind == "UnresolvedWith":
            cte_names.update(child.alias().casefold() for child in _items(node().innerChildren()))
    return tables, cte_names


def _nodes(session: SparkSession, plan: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the type of each node of a plan, with a function that returns the node."""
    nodes = _walker(session._jvm, session.sparkContext._gateway).apply(plan)
    for index, name in enumerate(nodes.get(0).splitlines(), 1):
        package, _, kind = name.rpartition(".")
        yield kind if package.startswith(_CATALYST) else name, partial(nodes.get, index)


@lru_cache(maxsize=1)
def _walker(java: Any, gateway: Any) -> Any:
    """Return :data:`_WALKER` compiled, as a ``java.util.function.Function``."""
    interfaces = gateway.new_array(java.java.lang.Class, 1)
    interfaces[0] = java.java.lang.Class.forName("java.util.function.Function")
    evaluator = java.org.codehaus.janino.ClassBodyEvaluator()
    # Two threads may compile it at once, and Py4J finds methods by the name of the class.
    evaluator.setClassName(f"odf.Walker{uuid.uuid4().hex}")
    evaluator.setParentClassLoader(java.java.lang.Thread.currentThread().getContextClassLoader())
    evaluator.setImplementedInterfaces(interfaces)
    evaluator.cook(_WALKER)
    constructor = evaluator.getClazz().getDeclaredConstructors()[0]
    return constructor.newInstance(gateway.new_array(java.java.lang.Object, 0))


def _items(sequence: Any) -> Iterator[Any]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


def confinement_error(node: Any, message: str, hint: str | None) -> QueryError:
    """Return an error with the position of a node in the query."""
    origin = node.origin()
    line, start = origin.line(), origin.startPosition()
    if line.isEmpty() or start.isEmpty():
        return QueryError(message, hint=hint)
    position = (line.get(), start.get() + 1)
    place = f"line {position[0]}, column {position[1]}"
    return QueryError(message, hint=hint, where=place, line=position[0], column=position[1])


SYNTAX_EXAMPLE: Final = (
    "FROM trades AS t JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r ON t.currency = r.currency"
)
_NAME: Final = r"(?:\w+|`[^`'\\]*`)"
_CLAUSE: Final = re.compile(
    r"""(?P<other>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\n]*|/\*.*?\*/)"""
    rf"|\b(?P<clause>FOR\s+SYSTEM_TIME\s+AS\s+OF)(?P<space>\s+)(?P<time>{_NAME}(?:\s*\.\s*{_NAME})*)"
    r"(?![\w.]|\s*[(.])(?P<after>[ ]?)",
    re.IGNORECASE | re.DOTALL,
)


def temporal_tables(
    session: SparkSession,
    transform: Sql,
    inputs: Mapping[str, tuple[Sequence[str], DatasetVocabulary]],
    event_time: str,
) -> dict[str, AsOfTable]:
    """Return the temporal tables of a query by lower-case name.

    Args:
        session: a session of Spark.
        transform: the query.
        inputs: columns and vocabulary of each input by name.
        event_time: event time column of the tables that the query computes.

    Raises:
        InvalidQuery: a temporal table is neither an input nor computed by the query, or its key has no
            columns, or a column that the input lacks.
    """
    input_names = {name.lower(): name for name in inputs}
    declared, steps = transform.temporal_tables or [], transform.queries or []
    has_computed = any(table.name.lower() not in input_names for table in declared)
    computed = _computed_tables(session, steps) if has_computed else {}
    tables: dict[str, AsOfTable] = {}
    for table in declared:
        name = input_names.get(table.name.lower())
        if name is None and not any(table.name.lower() in names for names in computed.values()):
            known = {"inputs": inputs, **computed}
            raise InvalidQuery(
                f"the temporal table '{table.name}' is not an input, a step or a WITH table of the query",
                where="temporalTables",
                hint="; ".join(f"{kind}: {', '.join(names)}" for kind, names in known.items() if names),
            )
        # The columns of a computed table are known only when the query is analyzed.
        columns, vocab = (table.primary_key, None) if name is None else inputs[name]
        spelling = {column.lower(): column for column in columns}
        missing_keys = [key for key in table.primary_key if key.lower() not in spelling]
        if missing_keys or not table.primary_key:
            raise InvalidQuery(
                f"the primary key of the temporal table '{name or table.name}' has no columns"
                if not missing_keys
                else f"the input '{name}' has no column '{missing_keys[0]}', which the primary key of its "
                "temporal table names",
                where="temporalTables",
                hint=f"columns: {', '.join(columns)}" if columns else "name its columns: primaryKey: [...]",
            )
        keys = tuple(dict.fromkeys(spelling[key.lower()] for key in table.primary_key))
        time = event_time if vocab is None else vocab.event_time_column
        tables[table.name.lower()] = AsOfTable(name or table.name, keys, time, of_query=name is None)
    return tables


def _computed_tables(session: SparkSession, steps: Sequence[SqlQueryStep]) -> dict[str, list[str]]:
    """Return the lower-case names of the tables that a query computes: steps, and tables of WITH clauses."""
    names: set[str] = set()
    for plan in _parsed_steps(session, steps):
        with suppress(QueryError):  # the query reports it when it runs
            names |= referenced_tables(session, plan, clauses=True)[1]
    aliases = [step.alias.lower() for step in steps if step.alias]
    return {"steps": aliases, "WITH tables": sorted(names)}


def _parsed_steps(session: SparkSession, steps: Sequence[SqlQueryStep]) -> Iterator[Any]:
    """Yield the parsed plans of the steps that have no syntax error."""
    for step in steps:
        with suppress(PySparkException, InvalidQuery):
            yield parse_select(session, quote_as_of_times(_query_text(step)), "query")


def joins_computed_table(
    session: SparkSession, steps: Sequence[SqlQueryStep], tables: Mapping[str, AsOfTable]
) -> bool:
    """Return whether a query joins tables FOR SYSTEM_TIME AS OF that it computes itself.

    Args:
        session: a session of Spark.
        steps: the query.
        tables: temporal tables by lower-case name.

    Raises:
        Unsupported: it also joins inputs.
    """
    names = {
        ".".join(to_list(node().relation().multipartIdentifier())).lower()
        for plan in _parsed_steps(session, steps)
        for kind, node in _nodes(session, plan)
        if kind == "RelationTimeTravel" and node_name(node().relation()) == "UnresolvedRelation"
    }
    joined = [table for name, table in tables.items() if name in names]
    computed, inputs = ([table.name for table in joined if table.of_query is own] for own in (True, False))
    if computed and inputs:
        raise Unsupported(
            f"the query joins '{computed[0]}', which it computes itself, and the input '{inputs[0]}' FOR "
            "SYSTEM_TIME AS OF: a retraction would have another effect in each of them",
            where="query",
            hint=f"compute the join of '{inputs[0]}' in a separate dataset, and use that as an input",
        )
    return bool(computed)


def uses_as_of_join(steps: Sequence[SqlQueryStep]) -> bool:
    """Return whether a query has an as-of join."""
    return any(match["clause"] for step in steps for match in _CLAUSE.finditer(step.query))


def quote_as_of_times(query: str) -> str:
    """Return the query with the time of each AS OF clause as string literal.

    Line numbers stay, and column numbers where possible.
    """
    return _CLAUSE.sub(_quote_time, query)


def _quote_time(match: re.Match[str]) -> str:
    if match["other"]:
        return match[0]
    space = match["space"]
    return f"{match['clause']}{space.removesuffix(' ')}'{match['time']}'"


def rewrite_as_of_joins(
    session: SparkSession, plan: Any, tables: Mapping[str, AsOfTable], views: Collection[str]
) -> tuple[Any, dict[str, StepJoin]]:
    """Return the parsed query with each AS OF clause replaced by a condition of its join.

    Returns:
        The query, and the joins of tables that the query computes by an alias that marks them.

    Args:
        session: the session that parsed it.
        plan: Spark's logical plan, not analyzed, of a :func:`quote_as_of_times` query.
        tables: temporal tables by lower-case name.
        views: all names that the query may read.

    Raises:
        InvalidQuery: a clause that is not on a temporal table on the right side of a JOIN … ON.
    """
    rewriter = _Rewriter(session, tables, views)
    return rewriter.rewrite(plan), rewriter.step_joins


class _Rewriter(PlanBuilder):
    def __init__(
        self, session: SparkSession, tables: Mapping[str, AsOfTable], views: Collection[str]
    ) -> None:
        super().__init__(session)
        self.step_joins: dict[str, StepJoin] = {}
        self._tables = tables
        self._names = {name.lower() for name in views}
        self._parser = self.session._jsparkSession.sessionState().sqlParser()

    def rewrite(self, plan: Any) -> Any:
        name = plan.nodeName()
        if name == "UnresolvedWith":
            return self._rewrite_with(plan)
        if name == "Join" and (clause := _find_clause(plan.right())) is not None:
            return self._rewrite_join(plan, *clause)
        if name == "RelationTimeTravel":
            raise InvalidQuery(
                "FOR SYSTEM_TIME AS OF is allowed only on the right of a JOIN",
                where="query",
                hint=SYNTAX_EXAMPLE,
            )
        children = to_list(plan.children())
        rewritten = [self.rewrite(child) for child in children]
        if all(new is old for new, old in zip(rewritten, children, strict=True)):
            return plan
        return self.with_children(plan, rewritten)

    def _rewrite_with(self, plan: Any) -> Any:
        self._names |= {relation._1().lower() for relation in to_list(plan.cteRelations())}
        relations = [
            self.java.scala.Tuple3(relation._1(), self.rewrite(relation._2()), relation._3())
            for relation in to_list(plan.cteRelations())
        ]
        unresolved = self.catalyst.plans.logical.UnresolvedWith
        return unresolved(self.rewrite(plan.child()), self.seq(relations), plan.allowRecursion())

    def _rewrite_join(self, plan: Any, alias: str, clause: Any) -> Any:
        table = self._find_table(clause)
        is_using = plan.joinType().toString().startswith("UsingJoin")
        kind = "USING" if is_using else plan.joinType().sql()
        if kind not in ("INNER", "LEFT OUTER"):
            raise InvalidQuery(
                f"the temporal table '{table.name}' cannot be joined with {kind}",
                where="query",
                hint=SYNTAX_EXAMPLE,
            )
        if plan.condition().isEmpty():
            raise InvalidQuery(
                f"the join of the temporal table '{table.name}' has no condition",
                where="query",
                hint="compare the complete key: ON "
                f"{' AND '.join(f'… = {alias}.{key}' for key in table.keys)}",
            )
        analysis = self.catalyst.analysis
        time = self._parser.parseMultipartIdentifier(clause.timestamp().get().value().toString())
        if table.of_query:
            # StepJoins reads the time from this condition.
            bound = self.expressions.IsNotNull(analysis.UnresolvedAttribute(time))
            marker = f"odf_as_of_{uuid.uuid4().hex}"
            self.step_joins[marker] = StepJoin(table, clause)
            relation = self._named(clause.relation(), marker)
        else:
            bound = self.expressions.LessThanOrEqual(
                analysis.UnresolvedAttribute(self.seq([alias, table.time])),
                analysis.UnresolvedAttribute(time),
            )
            relation = self.replace_view(clause.relation(), table.view)
        right = self._named(relation, alias)
        condition = self.expressions.And(plan.condition().get(), bound)
        return self.catalyst.plans.logical.Join(
            self.rewrite(plan.left()),
            right,
            plan.joinType(),
            self.java.scala.Option.apply(condition),
            plan.hint(),
        )

    def _named(self, plan: Any, alias: str) -> Any:
        return self.catalyst.plans.logical.SubqueryAlias(self.catalyst.AliasIdentifier(alias), plan)

    def replace_view(self, relation: Any, view: str) -> Any:
        """Return the relation under the name of another view."""
        unresolved = self.catalyst.analysis.UnresolvedRelation
        return unresolved(self.seq([view]), relation.options(), relation.isStreaming())

    def _find_table(self, clause: Any) -> AsOfTable:
        relation = clause.relation()
        parts = to_list(relation.multipartIdentifier()) if node_name(relation) == "UnresolvedRelation" else []
        name = ".".join(parts)
        table = self._tables.get(name.lower())
        if table is not None and clause.timestamp().isDefined():
            return table
        if name.lower() in self._names:
            hint = f"declare its key: temporalTables: [{{name: {name}, primaryKey: [...]}}]"
            message = f"'{name}' is joined FOR SYSTEM_TIME AS OF, but is not a temporal table"
        else:
            message, hint = f"table '{name}' not found, which is joined FOR SYSTEM_TIME AS OF", SYNTAX_EXAMPLE
        raise InvalidQuery(message, where="query", hint=hint)


def _find_clause(plan: Any) -> tuple[str, Any] | None:
    """Return the alias and the AS OF clause of the right side of a join, or None without such a clause."""
    alias = None
    while plan.nodeName() == "SubqueryAlias":
        alias = alias or plan.alias()
        plan = plan.child()
    if plan.nodeName() != "RelationTimeTravel":
        return None
    relation = plan.relation()
    if alias is None:
        alias = relation.multipartIdentifier().last() if node_name(relation) == "UnresolvedRelation" else ""
    return alias, plan


def run_query(
    session: SparkSession,
    views: Mapping[str, DataFrame],
    steps: Sequence[SqlQueryStep],
    tables: Mapping[str, AsOfTable] | None = None,
) -> DataFrame:
    """Return the lazy result of a query with one or more steps.

    Each step can read the views and, by their aliases, the earlier steps. The last step has no alias and is
    the result.

    Args:
        session: session of the job, which owns the views.
        views: frames by the name in the query.
        steps: in order.
        tables: temporal tables by lower-case name. Each input among them needs a view named
            :attr:`AsOfTable.view`, which replaces it in as-of joins.

    Raises:
        InvalidQuery: not a single SELECT, a syntax error, an unknown name, or a type error; with line and
            column (see :class:`odf_engine.spark.errors.QueryError`).
    """
    _check_aliases(views, steps)
    names = list(views)
    with translate_errors():
        for name, frame in views.items():
            frame.createOrReplaceTempView(identifier(name))
    *others, last = steps
    for number, step in enumerate(others, 1):
        place = f"query step {number} of {len(steps)}"
        frame = _run_step(session, step, place, names, tables or {})
        with translate_errors():
            frame.createOrReplaceTempView(identifier(str(step.alias)))
        names.append(str(step.alias))
    place = f"query step {len(steps)} of {len(steps)}" if others else "query"
    return _run_step(session, last, place, names, tables or {})


def _check_aliases(views: Mapping[str, DataFrame], steps: Sequence[SqlQueryStep]) -> None:
    if not steps:
        raise InvalidQuery("the query has no steps", hint="write `query:` or `queries:`")
    *others, last = steps
    if last.alias is not None:
        raise InvalidQuery(
            f"the last step of the query has the alias `{last.alias}`, so the query has no result",
            hint="remove its alias",
        )
    names = {name.lower() for name in views}
    for number, step in enumerate(others, 1):
        if step.alias is None:
            raise InvalidQuery(
                f"step {number} of the query has no alias, so later steps cannot read it",
                hint="add an `alias`; only the last step has none",
            )
        if step.alias.lower() in names:
            raise InvalidQuery(
                f"the alias `{step.alias}` of step {number} already exists", hint="choose another alias"
            )
        names.add(step.alias.lower())


def _run_step(
    session: SparkSession,
    step: SqlQueryStep,
    location: str,
    views: Sequence[str],
    tables: Mapping[str, AsOfTable],
) -> DataFrame:
    query, as_of = _query_text(step), uses_as_of_join([step])
    try:
        if as_of:
            return _run_as_of_joins(session, query, location, views, tables)
        plan = parse_select(session, query, location)
        check_confined(session, plan, views)
        return _checked_frame(session, plan)
    except (PySparkException, QueryError) as error:
        translated = to_user_error(error) if isinstance(error, PySparkException) else error
        error_where = (
            f"{location}, {translated.where}"
            if isinstance(translated, QueryError) and translated.where
            else location
        )
        translated.where = error_where
        if "time travel" in translated.message:
            translated.message = "FOR SYSTEM_TIME AS OF requires the event time column of the rows"
            translated.hint = SYNTAX_EXAMPLE
        if as_of and translated.message == _REJECTED["RelationTimeTravel"][0]:
            translated.message = (
                "FOR SYSTEM_TIME AS OF is not supported in a subquery of an expression or LATERAL"
            )
            translated.hint = "compute the join in WITH or in an earlier step, and read that in the subquery"
        if as_of and translated.hint is None and isinstance(error, ParseException):
            translated.hint = SYNTAX_EXAMPLE
        if translated.hint is None and "table or view" in translated.message:
            translated.hint = f"use one of: {', '.join(f'`{name}`' for name in views)}"
        raise translated from (None if translated is error else error)
    except (InvalidQuery, Unsupported) as error:
        if error.where == "query":
            error.where = location
        elif error.where is not None and error.where.startswith("line "):
            error.where = f"{location}, {error.where}"
        raise


def _run_as_of_joins(
    session: SparkSession, query: str, location: str, views: Sequence[str], tables: Mapping[str, AsOfTable]
) -> DataFrame:
    _check_named(query)
    plan = parse_select(session, quote_as_of_times(query), location)
    check_confined(session, plan, views, clauses=True)
    plan, step_joins = rewrite_as_of_joins(session, plan, tables, views)
    check_confined(session, plan, [*views, *(table.view for table in tables.values())])
    frame = _checked_frame(session, plan)
    return StepJoins(session, step_joins).rewrite(frame) if step_joins else frame


def _checked_frame(session: SparkSession, plan: Any) -> DataFrame:
    frame = PlanBuilder(session).to_frame(plan)
    check_analyzed(session, frame)
    return frame


def _query_text(step: SqlQueryStep) -> str:
    return re.sub(r"(\s*;)+\s*\Z", "", step.query)


def _check_named(query: str) -> None:
    """Check that no AS OF clause follows a subquery, which Spark's grammar does not allow."""
    tokens = tokenize(query)
    for before, token, following in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if before.text == ")" and (token.text.upper(), following.text.upper()) == ("FOR", "SYSTEM_TIME"):
            line = query.count("\n", 0, token.start) + 1
            column = token.start - query.rfind("\n", 0, token.start)
            raise QueryError(
                "FOR SYSTEM_TIME AS OF cannot follow a subquery",
                hint="give the subquery a name in WITH, or make it an earlier step, and declare the name in "
                "temporalTables",
                where=f"line {line}, column {column}",
                line=line,
                column=column,
            )


def parse_select(session: SparkSession, query: str, position_text: str) -> Any:
    """Parse a query; a command is rejected by name.

    The returned plan is the one to run: parsing the text again could return an unchecked plan.

    Raises:
        InvalidQuery: a command, or a variable of the environment, of Java or of Spark.
        ParseException: a syntax error.
    """
    if (variable := find_variable(query, external=True)) is not None:
        position = (variable.line, variable.column)
        position_text = f"line {position[0]}, column {position[1]}"
        raise QueryError(
            variable.message, hint=variable.hint, where=position_text, line=position[0], column=position[1]
        )
    java_session: Any = session._jsparkSession
    parser = java_session.sessionState().sqlParser()
    try:
        parser.parseQuery(query)
        return parser.parsePlan(query)  # it keeps the text, which errors show
    except ParseException as error:
        try:
            parser.parsePlan(query)
        except ParseException:
            raise error from None
        verb = (re.findall(r"\w+", query) or ["it"])[0].upper()
        raise InvalidQuery(
            f"only a single SELECT is allowed, not {verb}",
            where=position_text,
            hint="write a SELECT: a query cannot change settings, tables or files",
        ) from None


FindTable = Callable[[str], "DataFrame"]
"""Returns the rows of a table by name; raises `NotFound` and other errors of the table."""
_POSITION: Final = re.compile(r"line (\d+), column (\d+)")
_COLUMNS: Final = "show the columns: odf schema NAME; show the definition: odf show NAME"
_RANGE_ROWS: Final = 500_000
"""Maximum number of rows of a partition of the table function `range`."""
_MAX_RANGE_PARTITIONS: Final = 10_000
_OTHER_STATEMENTS: Final = {
    "DESCRIBE": _COLUMNS,
    "DESC": _COLUMNS,
    "SHOW": "list the datasets: odf list",
    "EXPLAIN": "run the query itself: its job log lists the datasets that it reads",
}
"""Other statements, with a hint at the command for the same purpose."""


class AdHocQuery:
    """One query as written by a user.

    Args:
        sql: the query.
        dataset_names: names of all datasets.

    Raises:
        InvalidQuery: the syntax of a table function is invalid.
    """

    def __init__(self, sql: str, dataset_names: Collection[str]) -> None:
        self.sql = sql
        with attach_query_excerpt([SqlQueryStep(query=sql)]):
            self._query = RewrittenQuery(sql, dataset_names)

    @property
    def rewritten(self) -> RewrittenQuery:
        """The query with the names of datasets in backquotes."""
        return self._query

    def run(self, session: SparkSession, find: FindTable) -> DataFrame:
        """Return the lazy result.

        Args:
            session: a session for this query alone; the datasets become views of it.
            find: returns the rows of a dataset.

        Raises:
            InvalidQuery: not a query, a syntax error, an unknown name, or a type error.
        """
        first = next((token.text.upper() for token in tokenize(self.sql) if token.text != "("), "")
        if first in _OTHER_STATEMENTS:
            raise InvalidQuery(f"a query must be a SELECT, not {first}", hint=_OTHER_STATEMENTS[first])
        for call in self._query.unknown:
            _raise_not_found(find, call.name, lambda error, call=call: self._error_at(call, error))
        with translate_errors():
            plan = parse_select(session, self._query.text, "query")
            _create_views(session, plan, find)
            frame = PlanBuilder(session).to_frame(plan)
            check_analyzed(session, frame)
            if "session_window" in self.sql.lower():
                frame = merge_sessions_first(frame)
            return to_storable(frame)

    def _error_at(self, name: TableName, error: OdfError) -> QueryError:
        line, column = self._query.position_of(name)
        place = f"line {line}, column {column}"
        return QueryError(error.message, hint=error.hint, where=place, line=line, column=column)


def count_range_partitions(frame: DataFrame) -> int:
    """Return the number of partitions of the table function `range`: the rows of each must fit in memory."""
    with translate_errors():
        frame_in_java: Any = frame._jdf
        leaves = to_list(frame_in_java.queryExecution().analyzed().collectLeaves())
        rows = (int(str(leaf.numElements())) for leaf in leaves if node_name(leaf) == "Range")
        return min(max(rows, default=0) // _RANGE_ROWS + 1, _MAX_RANGE_PARTITIONS)


def to_storable(frame: DataFrame) -> DataFrame:
    """Return the result with unique column names, and with values that a Parquet file can store."""
    with translate_errors():
        names = make_names_unique(frame.columns)
        frame = frame.toDF(*names) if names != frame.columns else frame
        unsupported = [field.name for field in frame.schema if not _is_storable(field)]
        return frame.withColumns({name: sf.col(identifier(name)).cast("string") for name in unsupported})


def _is_storable(field: st.StructField) -> bool:
    if _contains_type(field.dataType, st.NullType | st.DayTimeIntervalType):
        return False
    try:
        arrow_schema(st.StructType([field]))
    except InvalidSchema:
        return False
    return True


def _contains_type(data_type: st.DataType, types: Any) -> bool:
    if isinstance(data_type, st.ArrayType):
        return _contains_type(data_type.elementType, types)
    if isinstance(data_type, st.MapType):
        return _contains_type(data_type.keyType, types) or _contains_type(data_type.valueType, types)
    if isinstance(data_type, st.StructType):
        return any(_contains_type(field.dataType, types) for field in data_type)
    return isinstance(data_type, types)


def _create_views(session: SparkSession, plan: Any, find: FindTable) -> None:
    """Create a view of each dataset that a query refers to."""
    tables, cte_names = referenced_tables(session, plan)
    created: set[str] = set()
    for parts, node in tables:
        name = ".".join(parts)
        if name.casefold() in created:
            continue
        if len(parts) > 1:  # a format and a path, or a name that no dataset can have
            _raise_not_found(
                find, name, lambda error, node=node: confinement_error(node, error.message, error.hint)
            )
        try:
            frame = find(name)
        except NotFound as error:
            if name.casefold() in cte_names:
                continue
            raise confinement_error(node, error.message, error.hint) from None
        except (InvalidQuery, InvalidSchema, UsageError) as error:
            raise confinement_error(node, error.message, error.hint) from None
        created.add(name.casefold())
        frame.createOrReplaceTempView(identifier(name))


def _raise_not_found(find: FindTable, name: str, locate: Callable[[OdfError], QueryError]) -> None:
    """Call ``find`` for a name that is not a dataset's, and raise its error with a position."""
    try:
        find(name)
    except OdfError as error:
        raise locate(error) from None
