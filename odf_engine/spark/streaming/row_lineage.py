"""Stateful queries over rows that carry their origins."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from odf_engine.data.changelog import Op
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.plan_rewrite import (
    INPUT_BITS,
    OPERATION,
    POSITION,
    StatefulQueryError,
    TrackedPlan,
    analyzed_plan,
    id_of,
    items,
    name_of,
)
from odf_engine.spark.row_order import strip_order_by
from odf_engine.spark.streaming.as_of_join import (
    ALIVE,
    DUE,
    TIME,
    AsOfQuery,
    add_due_time,
    joined_schema,
    lookup_versions,
    select_version_columns,
    to_versions,
)
from odf_engine.spark.streaming.retractable_aggregates import RetractableAggregates
from odf_engine.spark.streaming.stateful_query import (
    ROWS,
    StreamPlanner,
    deduplication_keys,
    first_row_window,
    has_watermark,
    place_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_SESSION: Final = "spark.sessionWindow"


def is_session(grouping: Any) -> bool:
    """Whether rows are grouped by the session that they belong to."""
    return name_of(grouping) == "AttributeReference" and grouping.metadata().contains(_SESSION)


def describe_distinct(columns: Sequence[Any]) -> str:
    """A DISTINCT."""
    return (
        f"of rows that are the same in {_listed(columns)}, the first is there (DISTINCT); the others up to "
        "this transaction would have taken its place"
    )


def describe_first_row(keys: Sequence[Any]) -> str:
    """The first row of each key."""
    return (
        f"of rows of the same {_listed(keys)} the first is there; the others up to this transaction would "
        "have taken its place"
    )


def describe_grouping(grouping: Sequence[Any]) -> str:
    """A grouping."""
    if not grouping:
        return "grouped: all rows together"
    sessions = " and in one session" if any(map(is_session, grouping)) else ""
    return f"grouped: rows of the same {_listed(grouping)}{sessions}"


def describe_join(join: Any) -> str:
    """A join."""
    said = f" ON {join.condition().get().sql()}" if join.condition().isDefined() else ""
    return f"joined: {join.joinType().sql()} JOIN{said}"


def _listed(columns: Sequence[Any]) -> str:
    return ", ".join(each.sql() for each in columns)


ORIGINS_COLUMN: Final = "odf_places"
"""Where a row comes from: an array of structs of the number of an input (``at``) and an offset."""
BATCH: Final = "odf_batch"
"""The batch in which a row came in or out; null where that is not known."""
WATERMARK_COLUMN: Final = "odf_mark"
"""The watermark before the batch in which a row came in; null for rows that are made."""
KEY: Final = "odf_key_"
"""Begins the names of columns that tell groups apart."""
NEVER_EMITTED: Final = (1 << 31) - 1
"""The batch of rows that have not come out."""
_PASSED: Final = ("Project", "Filter", "SubqueryAlias", "View", "ResolvedHint")
_JOINS: Final = ("INNER", "CROSS", "LEFT OUTER", "RIGHT OUTER", "FULL OUTER")


class GroupingInput(NamedTuple):
    """The rows under the grouping nearest to the result.

    Attributes:
        plan: the rows.
        grouping: what they are grouped by.
        sessions: of each of that, whether it is the time of one row of a session.
        places, batch: their columns of these.
    """

    plan: Any
    grouping: Sequence[Any]
    sessions: Sequence[bool]
    places: Any
    batch: Any


class Lineage(StreamPlanner):
    """Goes through the analysed plan of a query over streams, and puts tables in their place.

    Args:
        session: in which the query was made.
        inputs, event_time, changing, system: as for :func:`plan_stream`.
        tables: the rows of each input, its columns in their order, then others, with ``odf_places``,
            ``odf_batch`` and ``odf_mark`` among them.
        marks: the watermark after each batch, in milliseconds, and its number, in ascending order.

    Attributes:
        under: the rows under the grouping nearest to the result; None where rows have their places.
        how: what is done to rows, in words, from the inputs to the result.
    """

    def __init__(
        self,
        session: SparkSession,
        inputs: Mapping[str, DatasetVocabulary],
        event_time: str,
        changing: Collection[str],
        tables: Mapping[str, DataFrame],
        marks: Sequence[tuple[int, int]],
        system: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(session, inputs, event_time, changing, system)
        self._tables = {name.lower(): frame for name, frame in tables.items()}
        self._marks = marks
        self._raw: set[int] = set()
        self._near = True
        self.under: GroupingInput | None = None
        self.how: list[str] = []

    def recomputed_rows(self, frame: DataFrame) -> DataFrame:
        """The result again: the query's own columns, with ``odf_operation``, ``odf_batch``, and either
        ``odf_places`` or keys.

        Of a grouping without a window the newest row of each group, with ``odf_rows``.

        Raises:
            NeedsState: a node that cannot be followed.
        """
        with translate_errors():
            part = self.follow(strip_order_by(self, self.opened(frame))[0])
            hidden = part.passed | {id_of(column) for column in part.origin}
            kept = [column for column in items(part.plan.output()) if id_of(column) not in hidden]
            self._names_of = {id_of(column): column.name() for column in kept}
            more = part.origin if self._running is not None else part.origin[1:4] + part.origin[5:]
            return self.frame(self.project([*kept, *more], part.plan))

    @property
    def group_columns(self) -> list[str] | None:
        """Of a grouping without a window, the column of the result for each thing that it groups by."""
        return None if self._running is None else [self._names_of[place] for place in self._running]

    def grouping_rows(self) -> DataFrame:
        """The rows of :attr:`under`: ``odf_key_0``, …, ``odf_places`` and ``odf_batch``."""
        assert self.under is not None
        keys = [self.alias(each, f"{KEY}{at}") for at, each in enumerate(self.under.grouping)]
        with translate_errors():
            return self.frame(self.project([*keys, self.under.places, self.under.batch], self.under.plan))

    # --- Nodes --------------------------------------------------------------------------------

    def follow(self, plan: Any) -> TrackedPlan:
        if name_of(plan) not in (*_PASSED, "Aggregate"):
            self._near = False
        return super().follow(plan)

    def input(self, view: Any, at: int, vocab: DatasetVocabulary) -> TrackedPlan:
        name = view.desc().identifier().table().lower()
        table = analyzed_plan(self._tables[name])
        new = {column.name(): column for column in items(table.output())}
        columns = [
            self.renamed(each, old)
            for each, old in zip(items(table.output()), items(view.output()), strict=False)
        ]
        place = self.expressions.BitwiseOr(
            new[vocab.offset_column], self.expressions.Literal(at << INPUT_BITS, self.types.LongType)
        ) if at else new[vocab.offset_column]  # fmt: skip
        operation = new[vocab.operation_type_column]
        if self._names[name] not in self._changing:
            operation = self.literal(int(Op.APPEND))
        origin = self._origin(place, operation, new[ORIGINS_COLUMN], new[BATCH], new[WATERMARK_COLUMN])
        system = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
        passed = {id_of(old) for old in items(view.output()) if old.name() in system}
        for old in items(view.output()):
            if old.name() == vocab.operation_type_column:
                self._operations[id_of(old)] = self._names[name]
        made = [column.toAttribute() for column in origin]
        self._raw.add(id_of(made[0]))
        return TrackedPlan(
            self.project([*columns, *origin], table), made, frozenset(passed | self.system.keys())
        )

    def union(self, plan: Any) -> TrackedPlan:
        parts = [self.follow(child) for child in items(plan.children())]
        if not all(part.origin for part in parts):
            raise StatefulQueryError("a UNION with a branch that reads no input")
        children = items(plan.children())
        rows = [
            self.project([*items(child.output()), *part.origin], part.plan)
            for part, child in zip(parts, children, strict=True)
        ]
        made = self.rebuilt(plan, rows)
        columns = items(made.output())
        width = len(columns) - len(parts[0].origin)
        passed = {
            id_of(columns[at])
            for at in range(width)
            if all(id_of(items(child.output())[at]) in part.passed
                   for part, child in zip(parts, children, strict=True))
        }  # fmt: skip
        if all(id_of(part.origin[0]) in self._raw for part in parts):
            self._raw.add(id_of(columns[width]))
        return TrackedPlan(made, columns[width:], frozenset(passed))

    def join(self, plan: Any, condition: Any = None) -> TrackedPlan:
        self._near = False
        if not (plan.left().isStreaming() and plan.right().isStreaming()):
            return super().join(plan)
        kind = plan.joinType().sql()
        if kind not in _JOINS:
            raise StatefulQueryError(f"a {kind} JOIN of inputs")
        sides = [self.follow(plan.left()), self.follow(plan.right())]
        self._mention([plan.condition().get()] if plan.condition().isDefined() else [])
        rows = [
            self._in_time(part, items(side.output()))
            for part, side in zip(sides, (plan.left(), plan.right()), strict=True)
        ]
        self.how.append(describe_join(plan))
        made = self.rebuilt(plan, rows)
        now = {id_of(column): column for column in items(made.output())}
        ours, theirs = ([now[id_of(column)] for column in part.origin] for part in sides)
        nothing = self.expressions.CreateArray(self.seq([]), False)
        places = self.expressions.Concat(
            self.seq([
                self.expressions.Coalesce(self.seq([each, self.cast(nothing, each.dataType())]))
                for each in (ours[2], theirs[2])
            ])
        )  # fmt: skip
        batches = (ours[3], theirs[3])
        batch: Any = self.expressions.Greatest(self.seq(batches))
        for each in batches:
            # A row that met no other comes out when time is over for it.
            batch = self.expressions.If(self.expressions.IsNull(each), self._nothing(each), batch)
        origin = self._made(places, batch, sides[0].origin)
        columns = [*items(plan.left().output()), *items(plan.right().output())]
        columns = [now[id_of(column)] for column in columns]
        return self._settled(columns, origin, made, sides[0].passed | sides[1].passed)

    def _distinct(self, plan: Any) -> TrackedPlan:
        self._near = False
        below = self.follow(plan.child())
        columns = [each for each in items(plan.output()) if id_of(each) not in below.passed]
        rows = self._in_time(below, columns)
        self.how.append(describe_distinct(columns))
        return self._settled_by(columns, columns, rows, below)

    def _firsts(self, plan: Any, window: Any) -> TrackedPlan:
        self._near = False
        below = self.follow(window.child())
        keys = deduplication_keys(window, below)
        columns = items(window.child().output())
        aggregate = self.expressions.aggregate
        fields = [part for at, each in enumerate(columns) for part in (self.literal(f"c{at}"), each)]
        order = self.expressions.CreateNamedStruct(
            self.seq([self.literal("b"), below.origin[3], self.literal("p"), below.origin[0]])
        )
        self.how.append(describe_first_row(keys))
        first = self.alias(
            aggregate.MinBy(self.expressions.CreateNamedStruct(self.seq(fields)), order)
            .toAggregateExpression(False, self.none()),
            "odf_first",
        )  # fmt: skip
        part = self._settled_by(keys, [first], self._in_time(below, keys), below)
        again = [
            self.renamed(self.expressions.GetStructField(first.toAttribute(), at, self.none()), old)
            for at, old in enumerate(columns)
        ]
        number = self.renamed(self.literal(1), items(window.windowExpressions())[0])
        made = self.project([*again, number, *part.origin], part.plan)
        node, between = plan.child(), list[Any]()
        while name_of(node) != "Window":
            between += [node] if name_of(node) == "Project" else []
            node = node.child()
        for project in reversed(between):
            made = self.project([*items(project.projectList()), *part.origin], made)
        return TrackedPlan(made, part.origin, below.passed)

    # --- Aggregations -------------------------------------------------------------------------

    def _aggregate(self, plan: Any) -> TrackedPlan:
        near, self._near = self._near, False
        below = self.follow(plan.child())
        grouping, columns = items(plan.groupingExpressions()), items(plan.aggregateExpressions())
        self._mention([*grouping, *columns])
        raw = id_of(below.origin[0]) in self._raw
        windowed = any(has_watermark(each) for each in grouping)
        mentioned = bool(self._reads(plan.child()) & self._mentioned) or not raw
        work = RetractableAggregates(
            self, columns, below.origin[:2] if raw else (), None if windowed else self._event_time
        )
        signed = not mentioned and work.not_undone is None
        self.how.append(describe_grouping(grouping))
        rows = self._in_time(below, grouping)
        if near:
            sessions = [is_session(each) for each in grouping]
            self.under = GroupingInput(rows, grouping, sessions, below.origin[2], below.origin[3])
        if not windowed:
            if not near:
                raise StatefulQueryError("a grouping without a window that is not its last step")
            self._running = [place_of(each, columns) for each in grouping]
            return self._running_groups(work, plan, rows, below.origin[3], signed=signed)
        made, count = work.made(plan, rows, signed=signed, name=ROWS)
        keys = [self.alias(each, f"{KEY}{at}") for at, each in enumerate(grouping)]
        places = self.alias(self._collected(below.origin[2]), ORIGINS_COLUMN)
        more = keys if near else [*keys, places]
        made = self._with(made, more)
        if signed:
            made = self.filter(self.expressions.GreaterThan(count, self.long(0)), made)
        kept = [key.toAttribute() for key in keys]
        batch = self._comes_out(grouping, kept) if raw else self._nothing(below.origin[3])
        found = self._nothing(places.toAttribute()) if near else places.toAttribute()
        origin = self._made(found, batch, below.origin)
        return self._settled(
            [column.toAttribute() for column in columns],
            [*origin, *(kept if near else ())],
            made,
            frozenset(),
        )

    def _running_groups(
        self, work: RetractableAggregates, plan: Any, rows: Any, batch: Any, *, signed: bool
    ) -> TrackedPlan:
        """Groups without a window, as they are after all batches."""
        made, count = work.made(plan, rows, signed=signed, name=ROWS)
        return TrackedPlan(made, [count], frozenset())

    def _comes_out(self, grouping: Sequence[Any], keys: Sequence[Any]) -> Any:
        """The batch after which no more rows of a group come: when its rows come out."""
        time = next(key for key, each in zip(keys, grouping, strict=True) if has_watermark(each))
        return self._first_mark(self._end_of(time), self._marks)

    def _first_mark(self, end: Any, marks: Sequence[tuple[int, int]]) -> Any:
        if not marks:
            return self.literal(NEVER_EMITTED)
        middle = len(marks) // 2
        moment, number = marks[middle]
        reached = self.expressions.LessThanOrEqual(end, self._moment(moment))
        before = self._first_mark(end, marks[:middle]) if middle else self.literal(number)
        if middle:
            last = self.expressions.LessThanOrEqual(end, self._moment(marks[middle - 1][0]))
            before = self.expressions.If(last, before, self.literal(number))
        return self.expressions.If(reached, before, self._first_mark(end, marks[middle + 1 :]))

    def _settled_by(
        self, keys: Sequence[Any], columns: Sequence[Any], rows: Any, below: TrackedPlan
    ) -> TrackedPlan:
        """One row of each key, with the places of all rows of the key."""
        aggregate = self.expressions.aggregate
        unknown = self.expressions.If(
            self.expressions.IsNull(below.origin[3]), self.literal(1), self.literal(0)
        )
        least = aggregate.Min(below.origin[3]).toAggregateExpression(False, self.none())
        any_unknown = aggregate.Max(unknown).toAggregateExpression(False, self.none())
        batch = self.expressions.If(
            self.expressions.EqualTo(any_unknown, self.literal(1)), self._nothing(below.origin[3]), least
        )
        more = [self.alias(self._collected(below.origin[2]), ORIGINS_COLUMN), self.alias(batch, BATCH)]
        made = self.catalyst.plans.logical.Aggregate(
            self.seq(keys), self.seq([*columns, *more]), rows, self.none()
        )
        places, batch = (each.toAttribute() for each in more)
        origin = self._made(places, batch, below.origin)
        return self._settled([each.toAttribute() for each in columns], origin, made, frozenset())

    def _collected(self, places: Any) -> Any:
        """All places of the rows of a group, in any order."""
        collected = self.expressions.aggregate.CollectList(places)
        return self.expressions.Flatten(collected.toAggregateExpression(False, self.none()))

    def _with(self, plan: Any, more: Sequence[Any]) -> Any:
        """An aggregation with more columns."""
        columns = self.seq([*items(plan.aggregateExpressions()), *more])
        made = self.catalyst.plans.logical.Aggregate
        return made(plan.groupingExpressions(), columns, plan.child(), plan.hint())

    # --- Rows and their origin ----------------------------------------------------------------

    def _in_time(self, part: TrackedPlan, keys: Sequence[Any]) -> Any:
        """The rows that did not come too late for what they belong to."""
        time = next((key for key in keys if has_watermark(key)), None)
        if time is None:
            return part.plan
        late = self.expressions.LessThanOrEqual(self._end_of(time), part.origin[4])
        told = self.expressions.Coalesce(self.seq([late, self.literal(False)]))
        return self.filter(self.expressions.Not(told), part.plan)

    def _end_of(self, time: Any) -> Any:
        """A time, or the end of a window."""
        if time.dataType().typeName() != "struct":
            return time
        return self.expressions.GetStructField(time, 1, self.none())

    def _moment(self, milliseconds: int) -> Any:
        return self.expressions.MillisToTimestamp(self.long(milliseconds))

    def _origin(self, place: Any, operation: Any, places: Any, batch: Any, mark: Any) -> list[Any]:
        named = zip((POSITION, OPERATION, ORIGINS_COLUMN, BATCH, WATERMARK_COLUMN),
                    (place, operation, places, batch, mark),
                    strict=True)  # fmt: skip
        return [self.alias(each, name) for name, each in named]

    def _made(self, places: Any, batch: Any, like: Sequence[Any]) -> list[Any]:
        """The origin of rows that are not an input's."""
        none, zero = self._nothing(like[0]), self.literal(int(Op.APPEND))
        return self._origin(none, zero, places, batch, self._nothing(like[4]))

    def _settled(
        self, columns: Sequence[Any], origin: Sequence[Any], plan: Any, passed: frozenset[int]
    ) -> TrackedPlan:
        made = self.project([*columns, *origin], plan)
        return TrackedPlan(made, [each.toAttribute() for each in origin], passed)

    def _nothing(self, like: Any) -> Any:
        """No value, of the type of another."""
        return self.expressions.Literal(None, like.dataType())


_VERSION: Final = ("v_place", "v_time", "v_batch")


class Source(NamedTuple):
    """Rows that a join takes in, by the number of their input.

    Attributes:
        at: the number; of the rows of another join one after those of the inputs.
        frame: ``offset``, ``odf_places`` and ``odf_batch`` of each row.
    """

    at: int
    frame: DataFrame


class AsOfTables:
    """Makes the rows that come out of joins.

    Args:
        as_of: the query, cut at its joins.
        marks: the watermark after each batch in milliseconds, and its number, in ascending order.
        before: the watermark before each batch, in milliseconds, by its number.
        pairs: of each join, whether there may be corrections among its rows that stay together.
    """

    def __init__(
        self, as_of: AsOfQuery, marks: Sequence[tuple[int, int]], before: str, pairs: Sequence[bool]
    ) -> None:
        self._as_of = as_of
        self._marks = marks
        self._before = before
        self._pairs = pairs

    def joined(
        self,
        number: int,
        views: dict[str, DataFrame],
        sources: Sequence[Source],
        versions: tuple[DataFrame, Source],
        *,
        changes: bool,
        lates: bool,
    ) -> DataFrame:
        """The rows of a join: its columns, then ``odf_places``, ``odf_batch`` and ``odf_mark``.

        Args:
            number: of the join.
            views: the inputs and the rows of the joins before it.
            sources: where its rows come from.
            versions: the rows of its keyed input, and the same by their places.
            changes: whether versions may be retracted or corrected.
            lates: whether versions may have come in after the watermark had reached their time.

        Raises:
            NeedsState: its rows cannot be told apart.
        """
        join = self._as_of.joins[number]
        if _makes_more(join.left):
            raise StatefulQueryError("a generator before a join FOR SYSTEM_TIME AS OF")
        keys = [f"k{at}" for at in range(len(join.keys))]
        rows = add_due_time(self._as_of.rows(number, views), pairs=self._pairs[number])
        known = to_versions(self._as_of.versions(number, versions[0]), keys, changes=changes)
        with translate_errors():
            rows = self._placed(rows, sources)
            known = _run(
                f"SELECT a.*, a.{POSITION} AS v_place, a.{TIME} AS v_time, b.{BATCH} AS v_batch "
                f"FROM odf_a a JOIN odf_b b ON a.{POSITION} = b.offset",
                a=known, b=versions[1].frame,
            )  # fmt: skip
            late = f"v_batch > {first_batch_reaching('v_time', self._marks)}"
            found = lookup_versions(rows, known.where(f"NOT ({late})") if lates else known, keys)
            if lates:
                found = self._with_late(found, known.where(late), keys)
        found = select_version_columns(self._as_of.matches_condition(number, found))
        with translate_errors():
            if not join.outer:
                found = found.where(ALIVE)
            return self._output(number, found, versions[1].at)

    def _placed(self, rows: DataFrame, sources: Sequence[Source]) -> DataFrame:
        """The rows with their places, and the batch in which each comes out."""
        parts = [
            each.frame.selectExpr(
                f"offset | shiftleft(CAST({each.at} AS BIGINT), {INPUT_BITS}) AS b_place",
                ORIGINS_COLUMN,
                BATCH,
            )
            for each in sources
        ]
        every = parts[0]
        for part in parts[1:]:
            every = every.unionAll(part)
        due = first_batch_reaching(DUE, self._marks)
        return _run(
            f"SELECT a.*, b.{ORIGINS_COLUMN}, greatest(b.{BATCH}, {due}) AS {BATCH} "
            f"FROM odf_a a JOIN odf_b b ON a.{POSITION} = b.b_place",
            a=rows, b=every,
        )  # fmt: skip

    def _with_late(self, found: DataFrame, late: DataFrame, keys: Sequence[str]) -> DataFrame:
        """Rows that have a version which came in too late, where it was there when they came out."""
        theirs = [name for name in late.columns if name[0] == "r" and name[1:].isdigit()]
        both = [*theirs, *_VERSION, ALIVE]
        same = " AND ".join(f"a.{key} = b.{key}" for key in keys)
        picked = ", ".join(f"late.{name} AS late_{name}" for name in both)
        ranked = _run(
            f"""
            SELECT * EXCEPT (late, rank), {picked} FROM (
                SELECT a.*, struct(b.*) AS late, row_number() OVER (
                    PARTITION BY a.{POSITION} ORDER BY b.v_time DESC NULLS LAST, b.v_place DESC NULLS LAST
                ) AS rank
                FROM odf_a a LEFT JOIN odf_b b
                ON {same} AND b.v_time <= a.{TIME} AND b.v_batch <= a.{BATCH}
            ) WHERE rank = 1
            """,
            a=found, b=late,
        )  # fmt: skip
        better = (
            "late_v_place IS NOT NULL AND (v_place IS NULL OR late_v_time > v_time "
            "OR (late_v_time = v_time AND late_v_place > v_place))"
        )
        others = [name for name in found.columns if name not in both]
        columns = {name: f"IF({better}, late_{name}, {name}) AS {name}" for name in both}
        return ranked.selectExpr(*(columns.get(name, name) for name in [*others, *both]))

    def _output(self, number: int, found: DataFrame, at: int) -> DataFrame:
        schema = joined_schema(self._as_of.joins[number])
        width = len(schema) - 3
        mine = [name for name in found.columns if name[0] == "l" and name[1:].isdigit()]
        theirs = [name for name in found.columns if name[0] == "r" and name[1:].isdigit()]
        columns = [f"{name} AS c{place}" for place, name in enumerate([*mine, *theirs][:width])]
        mask = (1 << INPUT_BITS) - 1
        version = f"array(struct({at} AS at, v_place AS offset))"
        return found.selectExpr(
            *columns,
            TIME,
            f"{POSITION} & {mask} AS odf_offset",
            f"{OPERATION} AS odf_op",
            f"IF(v_place IS NULL, {ORIGINS_COLUMN}, concat({ORIGINS_COLUMN}, {version})) AS {ORIGINS_COLUMN}",
            BATCH,
            f"timestamp_millis(CAST({self._before} AS BIGINT)) AS {WATERMARK_COLUMN}",
        )


def first_batch_reaching(column: str, marks: Sequence[tuple[int, int]]) -> str:
    """The first batch whose watermark reaches a time, looked for by halves."""
    if not marks:
        return str(NEVER_EMITTED)
    if len(marks) == 1:
        moment, number = marks[0]
        return f"IF({column} <= timestamp_millis({moment}), {number}, {NEVER_EMITTED})"
    middle = (len(marks) - 1) // 2
    left, right = (
        first_batch_reaching(column, marks[: middle + 1]),
        first_batch_reaching(column, marks[middle + 1 :]),
    )
    return f"IF({column} <= timestamp_millis({marks[middle][0]}), {left}, {right})"


def _makes_more(plan: Any) -> bool:
    """Whether one row may become several."""
    if name_of(plan) in ("Generate", "Join", "Expand"):
        return True
    return any(_makes_more(child) for child in items(plan.children()))


def _run(query: str, **frames: DataFrame) -> DataFrame:
    for name, frame in frames.items():
        frame.createOrReplaceTempView(f"odf_{name}")
    return next(iter(frames.values())).sparkSession.sql(query)


PREFIX: Final = "odf_prefix"
"""The last batch whose rows count."""


class Prefixes(Lineage):
    """Follows a query whose last step groups without a window; the result has ``odf_prefix`` too.

    Attributes:
        wanted: ``odf_key_0``, … of groups and batches after which they are asked for, as ``odf_prefix``.
    """

    wanted: DataFrame

    def _running_groups(
        self, work: RetractableAggregates, plan: Any, rows: Any, batch: Any, *, signed: bool
    ) -> TrackedPlan:
        asked = analyzed_plan(self.wanted)
        *keys, last = items(asked.output())
        condition: Any = self.expressions.LessThanOrEqual(batch, last)
        for each, key in zip(items(plan.groupingExpressions()), keys, strict=True):
            condition = self.expressions.And(condition, self.expressions.EqualNullSafe(each, key))
        logical, plans = self.catalyst.plans.logical, self.catalyst.plans
        joined = logical.Join(
            rows,
            asked,
            self.companion("Inner", plans),
            self.java.scala.Option.apply(condition),
            self.companion("JoinHint", logical).NONE(),
        )
        made, count = work.made(plan, joined, signed=signed, name=ROWS)
        grouping = self.seq([*items(made.groupingExpressions()), last])
        columns = self.seq([*items(made.aggregateExpressions()), last])
        return TrackedPlan(
            logical.Aggregate(grouping, columns, joined, made.hint()), [count, last], frozenset()
        )

    def _filter(self, plan: Any) -> TrackedPlan:
        if first_row_window(plan) is not None:
            return super()._filter(plan)
        below, condition = self.follow(plan.child()), plan.condition()
        self._mention([condition])
        if self._running is None:
            return below._replace(plan=self.filter(condition, below.plan))
        rows, last = below.origin
        yes = self.expressions.Coalesce(self.seq([condition, self.literal(False)]))
        counted = self.alias(self.expressions.If(yes, rows, self.long(0)), ROWS)
        columns = [column for column in items(below.plan.output()) if id_of(column) != id_of(rows)]
        return below._replace(
            plan=self.project([*columns, counted], below.plan), origin=[counted.toAttribute(), last]
        )
