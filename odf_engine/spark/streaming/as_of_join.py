"""As-of joins: cuts plans at temporal joins, looks up row versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from odf_engine.data.changelog import Op
from odf_engine.errors import InvalidQuery, Unsupported
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.plan_rewrite import (
    OriginTracker,
    PlanBuilder,
    StatefulQueryError,
    TrackedResult,
    analyzed_plan,
    id_of,
    items,
    name_of,
    references,
)
from odf_engine.spark.sql_types import identifier
from odf_engine.spark.streaming.stateful_query import has_watermark
from odf_engine.spark.user_query import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


TIME: Final = "odf_time"
DUE: Final = "odf_due"
"""The time up to which the watermark has to come before a row comes out."""
PLACE: Final = "odf_position"
OPERATION: Final = "odf_operation"
ALIVE: Final = "odf_alive"
OLDEST: Final = "odf_oldest"
"""Whether versions before this one are no longer known."""
UNKNOWN: Final = "odf_unknown"
"""Whether a row's version is no longer known: it has the oldest that is."""
_ROWS: Final = "odf_rows_of_batch"
_VERSIONS: Final = "odf_versions_of_batch"


def add_due_time(rows: DataFrame, *, pairs: bool) -> DataFrame:
    """New rows with the time when each is due: its own, or with ``pairs`` the later one of a correction,
    so that -C and +C come out together."""
    if not pairs:
        with translate_errors():
            return rows.selectExpr("*", f"{TIME} AS {DUE}")
    return _run(
        f"""
        SELECT {_ROWS}.*, greatest({_ROWS}.{TIME}, coalesce(other.time, {_ROWS}.{TIME})) AS {DUE}
        FROM {_ROWS} LEFT JOIN (
            SELECT {PLACE} + {Op.CORRECT_TO:d} + {Op.CORRECT_FROM:d} - 2 * {OPERATION} AS place,
                {Op.CORRECT_TO:d} + {Op.CORRECT_FROM:d} - {OPERATION} AS operation, max({TIME}) AS time
            FROM {_ROWS} WHERE {OPERATION} IN ({Op.CORRECT_FROM:d}, {Op.CORRECT_TO:d}) GROUP BY ALL
        ) AS other ON {PLACE} = other.place AND {OPERATION} = other.operation
        """,
        rows=rows,
    )


def to_versions(rows: DataFrame, keys: Sequence[str], *, changes: bool) -> DataFrame:
    """Rows of a keyed input as versions: a retraction ends its key, a correction of it replaces it.

    Args:
        rows: new ones.
        keys: the columns of the key.
        changes: whether there may be retractions or corrections among them.
    """
    known = " AND ".join(f"{key} IS NOT NULL" for key in keys)
    plain = (
        f"SELECT * EXCEPT ({OPERATION}), true AS {ALIVE}, false AS {OLDEST} FROM {_VERSIONS} WHERE {known}"
    )
    if not changes:
        return _run(plain, versions=rows)
    following = f"OVER (PARTITION BY {', '.join(keys)} ORDER BY {PLACE})"
    return _run(
        f"""
        SELECT * EXCEPT ({OPERATION}, odf_next, odf_next_place),
            {OPERATION} IN ({Op.APPEND:d}, {Op.CORRECT_TO:d}) AS {ALIVE}, false AS {OLDEST}
        FROM (
            SELECT *, lead({OPERATION}) {following} AS odf_next, lead({PLACE}) {following} AS odf_next_place
            FROM {_VERSIONS} WHERE {known}
        ) WHERE {OPERATION} <> {Op.CORRECT_FROM:d}
            OR NOT coalesce(odf_next = {Op.CORRECT_TO:d} AND odf_next_place = {PLACE} + 1, false)
        """,
        versions=rows,
    )


def lookup_versions(rows: DataFrame, versions: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Rows with the version of their key that is valid at their time, and whether there is one.

    That is the newest by event time, then by place, at or before the time of the row. Where it is no
    longer known, it is the oldest that is.
    """
    by = ", ".join(keys)
    theirs = [name for name in versions.columns if name not in (*keys, PLACE)]
    version = f"struct({', '.join(theirs)})"
    row = f"struct({', '.join(name for name in rows.columns if name not in keys)})"
    columns = ", ".join(f"version.{name}" for name in theirs if name not in (TIME, ALIVE, OLDEST))
    return _run(
        f"""
        SELECT row.*, {by}, {columns}, coalesce(version.{ALIVE}, false) AS {ALIVE},
            coalesce(version.{TIME} > row.{TIME}, false) AS {UNKNOWN}
        FROM (
            SELECT {by}, side, row, last(version, true) OVER (
                PARTITION BY {by} ORDER BY {TIME} ASC NULLS FIRST, side, {PLACE}
                ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
            ) AS version
            FROM (
                SELECT {by}, {TIME}, 0 AS side, {PLACE}, {version} AS version, NULL AS row FROM {_VERSIONS}
                UNION ALL
                SELECT {by}, NULL, 0, {PLACE}, {version}, NULL FROM {_VERSIONS} WHERE {OLDEST}
                UNION ALL
                SELECT {by}, {TIME}, 1, {PLACE}, NULL, {row} FROM {_ROWS}
            )
        ) WHERE side = 1
        """,
        rows=rows,
        versions=versions,
    )


def select_version_columns(rows: DataFrame) -> DataFrame:
    """Rows with the columns of their version, which are null where there is none."""
    ours = [name for name in rows.columns if name[0] != "r" and name != UNKNOWN]
    theirs = [f"IF({ALIVE}, {name}, NULL) AS {name}" for name in rows.columns if name[0] == "r"]
    with translate_errors():
        return rows.selectExpr(*ours, *theirs, f"{ALIVE} AND {UNKNOWN} AS {UNKNOWN}")


def _run(query: str, *, rows: DataFrame | None = None, versions: DataFrame | None = None) -> DataFrame:
    frames: dict[str, Any] = {_ROWS: rows, _VERSIONS: versions}
    given = {name: frame for name, frame in frames.items() if frame is not None}
    with translate_errors():
        for name, frame in given.items():
            frame.createOrReplaceTempView(name)
        return next(iter(given.values())).sparkSession.sql(query)


JOINED_VOCABULARY: Final = DatasetVocabulary(
    offset_column="odf_offset",
    operation_type_column="odf_op",
    system_time_column="odf_system_time",
    event_time_column=TIME,
)
"""What the columns of joined rows are called."""


@dataclass(frozen=True)
class AsOfJoin:
    """A join to the version of a key that is valid at the event time of a row.

    Attributes:
        view: the name of the view of its rows, for what comes after.
        table: the keyed input.
        outer: whether rows without a version stay.
        left: the plan of the rows that are joined.
        right: the columns of the keyed input, as the plan has them after the join.
        output: all columns after the join.
        keys: pairs of expressions that have to be equal, over the rows and over the versions.
        also: the rest of the condition; None when there is none.
        time: the event time of the rows.
        schema: of ``output``, by the names ``c0``, ``c1``, …
    """

    view: str
    table: Table
    outer: bool
    left: Any
    right: Sequence[Any]
    output: Sequence[Any]
    keys: Sequence[tuple[Any, Any]]
    also: Any
    time: Any
    schema: StructType


class AsOfQuery(PlanBuilder):
    """A query cut at its as-of joins.

    Args:
        session: in which the query was made.
        frame: its result, over inputs as streams.
        inputs: the vocabulary of each input, by its name in the query.
        tables: the temporal tables by their names in small letters.

    Attributes:
        joins: each after those that it reads.
        inputs: the vocabulary of each input, and of the rows of each join.
        system: the ids of columns that are an input's system columns and merely come through, with the
            name of the view whose operation it is, or an empty text.

    Raises:
        InvalidQuery, Unsupported: a join that cannot be had.
    """

    def __init__(
        self,
        session: SparkSession,
        frame: DataFrame,
        inputs: Mapping[str, DatasetVocabulary],
        tables: Mapping[str, Table],
    ) -> None:
        super().__init__(session)
        self.joins: list[AsOfJoin] = []
        self.inputs = dict(inputs)
        self.system: dict[int, str] = {}
        self._tables = {table.view.lower(): table for table in tables.values()}
        self._places: dict[tuple[int, ...], int] = {}
        with translate_errors():
            opened = OriginTracker(session, inputs).in_place(analyzed_plan(frame))
            self._rest = self._cut(opened)

    # --- The plan -----------------------------------------------------------------------------

    def query_after_joins(self, views: Mapping[str, DataFrame]) -> DataFrame:
        """What comes after the joins.

        Args:
            views: the inputs and the rows of the joins, each by its name.
        """
        with translate_errors():
            return self.frame(self._placed(self._rest, views))

    def follow_rest(self, views: Mapping[str, DataFrame]) -> TrackedResult:
        """The same, row by row.

        Raises:
            NeedsState: it is not of that kind.
        """
        with translate_errors():
            return OriginTracker(self.session, self.inputs, self.system).result(self.query_after_joins(views))

    def rows(self, number: int, views: Mapping[str, DataFrame]) -> DataFrame:
        """The rows that a join takes in: ``l0``, …, their keys ``k0``, …, time, position and operation.

        Args:
            number: of the join.
            views: the inputs and the rows of the joins before it.
        """
        join = self.joins[number]
        with translate_errors():
            part = OriginTracker(self.session, self.inputs, self.system).follow(
                self._placed(join.left, views)
            )
            columns = [*items(join.left.output())]
            named = [self.alias(column, f"l{at}") for at, column in enumerate(columns)]
            keys = [self.alias(left, f"k{at}") for at, (left, _) in enumerate(join.keys)]
            made = self.project([*named, *keys, self.alias(join.time, TIME), *part.origin], part.plan)
            return self.frame(made)

    def versions(self, number: int, frame: DataFrame) -> DataFrame:
        """Rows of the keyed input of a join: ``r0``, …, their keys ``k0``, …, time, place and operation."""
        join = self.joins[number]
        vocab = self.inputs[join.table.name]
        with translate_errors():
            plan = analyzed_plan(frame)
            columns = {column.name(): at for at, column in enumerate(items(plan.output()))}
            below = self._renamed(plan, join.right)
            named = [self.alias(column, f"r{at}") for at, column in enumerate(join.right)]
            keys = [self.alias(right, f"k{at}") for at, (_, right) in enumerate(join.keys)]
            system = [
                self.alias(join.right[columns[name]], wanted)
                for name, wanted in (
                    (vocab.event_time_column, TIME),
                    (vocab.offset_column, "odf_position"),
                    (vocab.operation_type_column, "odf_operation"),
                )
            ]
            return self.frame(self.project([*named, *keys, *system], below))

    def matches_condition(self, number: int, frame: DataFrame) -> DataFrame:
        """Rows ``l…`` with a version ``r…``, and whether they meet the rest of the join's condition."""
        join = self.joins[number]
        if join.also is None:
            return frame
        with translate_errors():
            plan = analyzed_plan(frame)
            named = {column.name(): column for column in items(plan.output())}
            old = [*items(join.left.output()), *join.right]
            names = [name for name in named if name[:1] in "lr" and name[1:].isdigit()]
            renamed = [self.renamed(named[name], column) for name, column in zip(names, old, strict=True)]
            others = [column for name, column in named.items() if name not in names and name != "odf_alive"]
            below = self.project([*renamed, *others, named["odf_alive"]], plan)
            yes = self.expressions.Coalesce(self.seq([join.also, self.literal(False)]))
            alive = self.alias(self.expressions.And(named["odf_alive"], yes), "odf_alive")
            back = [
                self.alias(column.toAttribute(), name) for name, column in zip(names, renamed, strict=True)
            ]
            return self.frame(self.project([*back, *others, alive], below))

    def join_fingerprint(self, join: AsOfJoin) -> list[str]:
        """What a join looks up, as text."""
        keys = [f"{ours.sql()} = {theirs.sql()}" for ours, theirs in join.keys]
        columns = [f"{column.name()} {column.dataType().sql()}" for column in join.right]
        also = "" if join.also is None else join.also.sql()
        return [f"outer {join.outer}", join.table.name, *keys, *columns, also]

    def reads(self, join: AsOfJoin) -> set[str]:
        """The inputs whose rows come through to a join."""
        return self._reads(join.left)

    def joined(self) -> set[str]:
        """The inputs that the joins read."""
        return {name for join in self.joins for name in (join.table.name, *self.reads(join))}

    def read_after(self) -> set[str]:
        """The inputs that what comes after the joins reads by itself."""
        return self._reads(self._rest, through=False)

    def _reads(self, plan: Any, *, through: bool = True) -> set[str]:
        if name_of(plan) == "LocalRelation" and (at := self._place_of(plan)) is not None:
            return self._reads(self.joins[at].left) if through else set()
        if name_of(plan) == "View":
            view = plan.desc().identifier().table().lower()
            if found := {name for name in self.inputs if name.lower() == view}:
                return found
        return {name for child in items(plan.children()) for name in self._reads(child, through=through)}

    # --- Cutting ------------------------------------------------------------------------------

    def _cut(self, plan: Any) -> Any:
        """The plan with a place for the rows of each join."""
        children = items(plan.children())
        made = [self._cut(child) for child in children]
        if any(new is not old for new, old in zip(made, children, strict=True)):
            plan = self.rebuilt(plan, made)
        if name_of(plan) == "Join" and (table := self._table(plan.right())) is not None:
            return self._place(plan, table)
        return plan

    def _table(self, plan: Any) -> Table | None:
        """The temporal table that a side of a join is, in its hidden view."""
        while name_of(plan) in ("SubqueryAlias", "Project"):
            plan = plan.child()
        if name_of(plan) != "View":
            return None
        return self._tables.get(plan.desc().identifier().table().lower())

    def _place(self, plan: Any, table: Table) -> Any:
        output = items(plan.output())
        place = self.catalyst.plans.logical.LocalRelation(self.seq(output), self.seq([]), False, self.none())
        # The same join may stand twice in a plan, where WITH has named it.
        ids = tuple(map(id_of, output))
        if ids not in self._places:
            self._places[ids] = len(self.joins)
            self.joins.append(self._join(plan, table, output, place))
            self._note_system(self.joins[-1], plan)
        return place

    def _join(self, plan: Any, table: Table, output: Sequence[Any], place: Any) -> AsOfJoin:
        time, conditions = self._conditions(plan, table)
        right = items(plan.right().output())
        names = {id_of(column): column.name() for column in right}
        theirs = set(names)
        keys: dict[str, tuple[Any, Any]] = {}
        also = None
        for each in conditions:
            pair = _pair(each, theirs)
            key = None if pair is None else names[next(iter(references(pair[1])))]
            if pair is not None and key in table.keys and key not in keys:
                keys[key] = pair
            else:
                also = each if also is None else self.expressions.And(also, each)
        missing = [key for key in table.keys if key not in keys]
        if missing:
            raise InvalidQuery(
                f"the join FOR SYSTEM_TIME AS OF does not say which '{missing[0]}' of '{table.name}' "
                "is meant",
                where="query",
                hint="compare its whole key with columns of the rows: "
                f"ON {' AND '.join(f't.{key} = {table.name}.{key}' for key in table.keys)}",
            )
        named = [self.alias(column, f"c{at}") for at, column in enumerate(output)]
        return AsOfJoin(
            view=f"odf_joined_{len(self.joins)}",
            table=table,
            outer=plan.joinType().sql() == "LEFT OUTER",
            left=plan.left(),
            right=right,
            output=output,
            keys=[keys[key] for key in table.keys],
            also=also,
            time=time,
            schema=self.frame(self.project(named, place)).schema,
        )

    def _conditions(self, plan: Any, table: Table) -> tuple[Any, list[Any]]:
        """The time of a join, and the parts of its condition."""
        condition = plan.condition().get()
        bound = condition.right()  # as the clause was written into the condition
        time = bound.right()
        if not has_watermark(time) or id_of(time) not in {
            id_of(each) for each in items(plan.left().output())
        }:
            raise InvalidQuery(
                f"'{table.name}' is joined FOR SYSTEM_TIME AS OF {time.sql()}, which is not the event time "
                "of the rows that it is joined to",
                where="query",
                hint="name their event time as it is: … FOR SYSTEM_TIME AS OF t.event_time",
            )
        parts, waiting = [], [condition.left()]
        while waiting:
            each = waiting.pop()
            if name_of(each) == "And":
                waiting += [each.right(), each.left()]
            else:
                parts.append(each)
        return time, parts

    def _note_system(self, join: AsOfJoin, plan: Any) -> None:
        """Checks that the rows of a join go row by row, and notes their system columns."""
        try:
            part = OriginTracker(self.session, self.inputs, self.system).follow(self._placed(join.left, {}))
        except StatefulQueryError as reason:
            raise Unsupported(
                f"the rows that are joined FOR SYSTEM_TIME AS OF come from {reason}",
                where="query",
                hint="make what comes before the join a dataset of its own, or join first and group then",
            ) from None
        if not part.origin:
            raise InvalidQuery("the rows that are joined FOR SYSTEM_TIME AS OF come from no input",
                               where="query")  # fmt: skip
        operations = {vocab.operation_type_column for vocab in self.inputs.values()}
        for column in items(plan.left().output()):
            if id_of(column) in part.passed:
                self.system[id_of(column)] = join.view if column.name() in operations else ""
        vocab = self.inputs[join.table.name]
        hidden = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
        self.system |= {id_of(column): "" for column in join.right if column.name() in hidden}
        self.inputs[join.view] = JOINED_VOCABULARY

    # --- Rows in their places -----------------------------------------------------------------

    def _placed(self, plan: Any, views: Mapping[str, DataFrame]) -> Any:
        """The plan over other rows of the same columns."""
        name = name_of(plan)
        if name == "LocalRelation" and (at := self._place_of(plan)) is not None:
            return self._joined(self.joins[at], views.get(self.joins[at].view))
        if name == "View":
            view = plan.desc().identifier().table().lower()
            found = next((frame for name, frame in views.items() if name.lower() == view), None)
            if found is not None:
                return self.rebuilt(plan, [self._renamed(analyzed_plan(found), items(plan.output()))])
        children = items(plan.children())
        made = [self._placed(child, views) for child in children]
        if all(new is old for new, old in zip(made, children, strict=True)):
            return plan
        return self.rebuilt(plan, made)

    def _place_of(self, plan: Any) -> int | None:
        return self._places.get(tuple(map(id_of, items(plan.output()))))

    def _joined(self, join: AsOfJoin, frame: DataFrame | None) -> Any:
        """The view of the rows of a join, with the columns that the plan has after it."""
        rows = self.session.createDataFrame([], joined_schema(join)) if frame is None else frame
        rows.createOrReplaceTempView(identifier(join.view))
        view = analyzed_plan(self.session.table(identifier(join.view)))
        while name_of(view) != "View":
            view = view.child()
        *columns, time, offset, operation = items(view.child().output())
        made = [
            # What comes after knows up to when this time is complete.
            self.renamed(time if id_of(old) == id_of(join.time) else new, old)
            for new, old in zip(columns, join.output, strict=True)
        ]
        return self.rebuilt(view, [self.project([*made, offset, operation], view.child())])

    def _renamed(self, plan: Any, columns: Sequence[Any]) -> Any:
        """The plan with its columns in the place of others."""
        new = items(plan.output())
        return self.project([self.renamed(each, old) for each, old in zip(new, columns, strict=True)], plan)


def joined_schema(join: AsOfJoin) -> StructType:
    """The columns of the joined rows: ``c0``, …, then time, place and operation."""
    from pyspark.sql import types as st

    return st.StructType(
        [
            *join.schema.fields,
            st.StructField(TIME, st.TimestampType()),
            st.StructField(JOINED_VOCABULARY.offset_column, st.LongType()),
            st.StructField(JOINED_VOCABULARY.operation_type_column, st.IntegerType()),
        ]
    )


def _pair(condition: Any, theirs: set[int]) -> tuple[Any, Any] | None:
    """What is equal to a column of the right side: of the rows, and of that side."""
    if name_of(condition) != "EqualTo":
        return None
    for ours, column in ((condition.left(), condition.right()), (condition.right(), condition.left())):
        inner = column.child() if name_of(column) == "Cast" else column
        if (
            name_of(inner) == "AttributeReference"
            and id_of(inner) in theirs
            and references(ours)
            and not references(ours) & theirs
        ):
            return ours, column
    return None
