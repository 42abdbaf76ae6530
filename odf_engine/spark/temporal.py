"""The clause ``FOR SYSTEM_TIME AS OF t.event_time`` of queries with temporal tables.

A temporal table is an input whose rows are versions of what their key names (specification:
TemporalTable). Spark's grammar has the clause for tables that keep their history, with a constant
time; here it names the event time of the rows that the versions are joined to. So the time is given to
the grammar as text, and in the parsed query the clause becomes a condition of its join.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from odf_engine.errors import InvalidQuery
from odf_engine.metadata.model import DatasetVocabulary, SqlQueryStep, TemporalTable
from odf_engine.spark.catalyst import Catalyst, items, name_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOW: Final = "FROM trades AS t JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r ON t.currency = r.currency"
_HIDDEN: Final = "odf_as_of "
_NAME: Final = r"(?:\w+|`[^`'\\]*`)"
_CLAUSE: Final = re.compile(
    r"""(?P<other>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\n]*|/\*.*?\*/)"""
    rf"|\b(?P<clause>FOR\s+SYSTEM_TIME\s+AS\s+OF)(?P<space>\s+)(?P<time>{_NAME}(?:\s*\.\s*{_NAME})*)"
    r"(?![\w.]|\s*[(.])(?P<after>[ ]?)",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class Table:
    """An input that can be joined as of a time.

    Attributes:
        name: of the input in the query.
        keys: its columns that tell what a row is a version of.
        time: its event time.
    """

    name: str
    keys: tuple[str, ...]
    time: str

    @property
    def view(self) -> str:
        """The name of the view that stands for it where it is joined as of a time."""
        return _HIDDEN + self.name


def tables_of(
    declared: Sequence[TemporalTable], inputs: Mapping[str, tuple[Sequence[str], DatasetVocabulary]]
) -> dict[str, Table]:
    """The temporal tables of a query, by their names in small letters.

    Args:
        declared: as the transformation says.
        inputs: the columns and the vocabulary of each input, by its name.

    Raises:
        InvalidQuery: one names no input, or a column that its input does not have.
    """
    known = {name.lower(): name for name in inputs}
    tables: dict[str, Table] = {}
    for each in declared:
        name = known.get(each.name.lower())
        if name is None:
            raise InvalidQuery(
                f"the temporal table '{each.name}' is no input",
                where="temporalTables",
                hint=f"the inputs are {', '.join(inputs)}",
            )
        columns, vocab = inputs[name]
        spelled = {column.lower(): column for column in columns}
        wrong = [key for key in each.primary_key if key.lower() not in spelled]
        if wrong or not each.primary_key:
            raise InvalidQuery(
                f"the primary key of the temporal table '{name}' has no columns"
                if not wrong
                else f"the input '{name}' has no column '{wrong[0]}', which the primary key of its temporal "
                "table names",
                where="temporalTables",
                hint=f"its columns are {', '.join(columns)}",
            )
        keys = tuple(dict.fromkeys(spelled[key.lower()] for key in each.primary_key))
        tables[name.lower()] = Table(name, keys, vocab.event_time_column)
    return tables


def has_clause(steps: Sequence[SqlQueryStep]) -> bool:
    """Whether a query joins anything as of a time."""
    return any(match["clause"] for step in steps for match in _CLAUSE.finditer(step.query))


def quoted(query: str) -> str:
    """The query with the time of each clause as text; lines, and columns where they can, stay as they are."""
    return _CLAUSE.sub(_quoted, query)


def _quoted(match: re.Match[str]) -> str:
    if match["other"]:
        return match[0]
    space = match["space"]
    return f"{match['clause']}{space.removesuffix(' ')}'{match['time']}'"


def with_conditions(
    session: SparkSession, plan: Any, tables: Mapping[str, Table], views: Collection[str]
) -> Any:
    """The parsed query with every clause as a condition of its join.

    Args:
        session: in which it was parsed.
        plan: Spark's logical plan, not analysed, of a :func:`quoted` query.
        tables: the temporal tables by their names in small letters.
        views: all names that the query may read.

    Raises:
        InvalidQuery: a clause that does not belong to a temporal table on the right of a JOIN … ON.
    """
    return _Rewriter(session, tables, views).plan(plan)


class _Rewriter(Catalyst):
    def __init__(self, session: SparkSession, tables: Mapping[str, Table], views: Collection[str]) -> None:
        super().__init__(session)
        self._tables = tables
        self._views = views
        self._parser = self.session._jsparkSession.sessionState().sqlParser()

    def plan(self, plan: Any) -> Any:
        name = plan.nodeName()
        if name == "UnresolvedWith":
            return self._with(plan)
        if name == "Join" and (found := _clause_of(plan.right())) is not None:
            return self._join(plan, *found)
        if name == "RelationTimeTravel":
            raise InvalidQuery(
                "FOR SYSTEM_TIME AS OF stands on the right of a JOIN alone", where="query", hint=HOW
            )
        children = items(plan.children())
        made = [self.plan(child) for child in children]
        if all(new is old for new, old in zip(made, children, strict=True)):
            return plan
        return self.rebuilt(plan, made)

    def _with(self, plan: Any) -> Any:
        relations = [
            self.java.scala.Tuple3(each._1(), self.plan(each._2()), each._3())
            for each in items(plan.cteRelations())
        ]
        unresolved = self.catalyst.plans.logical.UnresolvedWith
        return unresolved(self.plan(plan.child()), self.seq(relations), plan.allowRecursion())

    def _join(self, plan: Any, alias: str, clause: Any) -> Any:
        table = self._table(clause)
        kind = plan.joinType().sql() if name_of(plan.joinType()) != "UsingJoin" else "USING"
        if kind not in ("INNER", "LEFT OUTER"):
            raise InvalidQuery(
                f"the temporal table '{table.name}' cannot be joined with {kind}", where="query", hint=HOW
            )
        if plan.condition().isEmpty():
            raise InvalidQuery(
                f"the join of the temporal table '{table.name}' has no condition",
                where="query",
                hint=f"compare its whole key: ON {' AND '.join(f'… = {alias}.{key}' for key in table.keys)}",
            )
        analysis = self.catalyst.analysis
        time = self._parser.parseMultipartIdentifier(clause.timestamp().get().value().toString())
        before = self.expressions.LessThanOrEqual(
            analysis.UnresolvedAttribute(self.seq([alias, table.time])), analysis.UnresolvedAttribute(time)
        )
        named = self.catalyst.AliasIdentifier
        relation = self.rebuilt_relation(clause.relation(), table.view)
        right = self.catalyst.plans.logical.SubqueryAlias(named(alias), relation)
        condition = self.expressions.And(plan.condition().get(), before)
        return self.catalyst.plans.logical.Join(
            self.plan(plan.left()),
            right,
            plan.joinType(),
            self.java.scala.Option.apply(condition),
            plan.hint(),
        )

    def rebuilt_relation(self, relation: Any, view: str) -> Any:
        """The relation under the name of another view."""
        made = self.catalyst.analysis.UnresolvedRelation
        return made(self.seq([view]), relation.options(), relation.isStreaming())

    def _table(self, clause: Any) -> Table:
        relation = clause.relation()
        parts = items(relation.multipartIdentifier()) if name_of(relation) == "UnresolvedRelation" else []
        name = ".".join(parts)
        table = self._tables.get(name.lower())
        if table is not None and clause.timestamp().isDefined():
            return table
        if name.lower() in map(str.lower, self._views):
            hint = f"declare its key: temporalTables: [{{name: {name}, primaryKey: [...]}}]"
            message = f"'{name}' is joined FOR SYSTEM_TIME AS OF, and is no temporal table"
        else:
            message, hint = f"there is no input '{name}' to be joined FOR SYSTEM_TIME AS OF", HOW
        raise InvalidQuery(message, where="query", hint=hint)


def _clause_of(plan: Any) -> tuple[str, Any] | None:
    """The alias and the clause of the right side of a join, where it has one."""
    alias = None
    while plan.nodeName() == "SubqueryAlias":
        alias = alias or plan.alias()
        plan = plan.child()
    if plan.nodeName() != "RelationTimeTravel":
        return None
    relation = plan.relation()
    if alias is None:
        alias = relation.multipartIdentifier().last() if name_of(relation) == "UnresolvedRelation" else ""
    return alias, plan
