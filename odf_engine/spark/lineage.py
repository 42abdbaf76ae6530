"""Queries with state over rows that know their place: what each row of a result was made of.

The plan is the one that Spark runs as a stream, over the same rows as tables: so all of them are seen
at once. What a stream has left out, since it came too late, is left out here by the watermark that
each row met. Rows are joined and grouped together with the places that they come from; only the
grouping nearest to the result does not collect them: its rows are asked for by their keys afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from odf_engine.data.changelog import Op
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.spark.catalyst import analysed, id_of, items, name_of
from odf_engine.spark.errors import translated
from odf_engine.spark.firsts import keys_of_firsts, marked
from odf_engine.spark.lineage_words import (
    distinct_words,
    first_words,
    grouped_words,
    is_session,
    joined_words,
)
from odf_engine.spark.origins import INPUT_BITS, OPERATION, POSITION, NeedsState, Part
from odf_engine.spark.plans import unsorted
from odf_engine.spark.stateful import ROWS, Maker, place_of
from odf_engine.spark.undo import Aggregates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLACES: Final = "odf_places"
"""Where a row comes from: an array of structs of the number of an input (``at``) and an offset."""
BATCH: Final = "odf_batch"
"""The batch in which a row came in or out; null where that is not known."""
MARK: Final = "odf_mark"
"""The watermark before the batch in which a row came in; null for rows that are made."""
KEY: Final = "odf_key_"
"""Begins the names of columns that tell groups apart."""
NEVER: Final = (1 << 31) - 1
"""The batch of rows that have not come out."""
_PASSED: Final = ("Project", "Filter", "SubqueryAlias", "View", "ResolvedHint")
_JOINS: Final = ("INNER", "CROSS", "LEFT OUTER", "RIGHT OUTER", "FULL OUTER")


class Under(NamedTuple):
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


class Lineage(Maker):
    """Goes through the analysed plan of a query over streams, and puts tables in their place.

    Args:
        session: in which the query was made.
        inputs, event_time, changing, system: as for :func:`odf_engine.spark.stateful.stateful`.
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
        self.under: Under | None = None
        self.how: list[str] = []

    def made(self, frame: DataFrame) -> DataFrame:
        """The result again: the query's own columns, with ``odf_operation``, ``odf_batch``, and either
        ``odf_places`` or keys.

        Of a grouping without a window the newest row of each group, with ``odf_rows``.

        Raises:
            NeedsState: a node that cannot be followed.
        """
        with translated():
            part = self.follow(unsorted(self, self.opened(frame))[0])
            hidden = part.passed | {id_of(column) for column in part.origin}
            kept = [column for column in items(part.plan.output()) if id_of(column) not in hidden]
            self._names_of = {id_of(column): column.name() for column in kept}
            more = part.origin if self._running is not None else part.origin[1:4] + part.origin[5:]
            return self.frame(self.project([*kept, *more], part.plan))

    @property
    def group_columns(self) -> list[str] | None:
        """Of a grouping without a window, the column of the result for each thing that it groups by."""
        return None if self._running is None else [self._names_of[place] for place in self._running]

    def rows_under(self) -> DataFrame:
        """The rows of :attr:`under`: ``odf_key_0``, …, ``odf_places`` and ``odf_batch``."""
        assert self.under is not None
        keys = [self.alias(each, f"{KEY}{at}") for at, each in enumerate(self.under.grouping)]
        with translated():
            return self.frame(self.project([*keys, self.under.places, self.under.batch], self.under.plan))

    # --- Nodes --------------------------------------------------------------------------------

    def follow(self, plan: Any) -> Part:
        if name_of(plan) not in (*_PASSED, "Aggregate"):
            self._near = False
        return super().follow(plan)

    def input(self, view: Any, at: int, vocab: DatasetVocabulary) -> Part:
        name = view.desc().identifier().table().lower()
        table = analysed(self._tables[name])
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
        origin = self._origin(place, operation, new[PLACES], new[BATCH], new[MARK])
        system = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
        passed = {id_of(old) for old in items(view.output()) if old.name() in system}
        for old in items(view.output()):
            if old.name() == vocab.operation_type_column:
                self._operations[id_of(old)] = self._names[name]
        made = [column.toAttribute() for column in origin]
        self._raw.add(id_of(made[0]))
        return Part(self.project([*columns, *origin], table), made, frozenset(passed | self.system.keys()))

    def union(self, plan: Any) -> Part:
        parts = [self.follow(child) for child in items(plan.children())]
        if not all(part.origin for part in parts):
            raise NeedsState("a UNION with a branch that reads no input")
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
        return Part(made, columns[width:], frozenset(passed))

    def join(self, plan: Any, condition: Any = None) -> Part:
        self._near = False
        if not (plan.left().isStreaming() and plan.right().isStreaming()):
            return super().join(plan)
        kind = plan.joinType().sql()
        if kind not in _JOINS:
            raise NeedsState(f"a {kind} JOIN of inputs")
        sides = [self.follow(plan.left()), self.follow(plan.right())]
        self._mention([plan.condition().get()] if plan.condition().isDefined() else [])
        rows = [
            self._in_time(part, items(side.output()))
            for part, side in zip(sides, (plan.left(), plan.right()), strict=True)
        ]
        self.how.append(joined_words(plan))
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

    def _distinct(self, plan: Any) -> Part:
        self._near = False
        below = self.follow(plan.child())
        columns = [each for each in items(plan.output()) if id_of(each) not in below.passed]
        rows = self._in_time(below, columns)
        self.how.append(distinct_words(columns))
        return self._settled_by(columns, columns, rows, below)

    def _firsts(self, plan: Any, window: Any) -> Part:
        self._near = False
        below = self.follow(window.child())
        keys = keys_of_firsts(window, below)
        columns = items(window.child().output())
        aggregate = self.expressions.aggregate
        fields = [part for at, each in enumerate(columns) for part in (self.literal(f"c{at}"), each)]
        order = self.expressions.CreateNamedStruct(
            self.seq([self.literal("b"), below.origin[3], self.literal("p"), below.origin[0]])
        )
        self.how.append(first_words(keys))
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
        return Part(made, part.origin, below.passed)

    # --- Aggregations -------------------------------------------------------------------------

    def _aggregate(self, plan: Any) -> Part:
        near, self._near = self._near, False
        below = self.follow(plan.child())
        grouping, columns = items(plan.groupingExpressions()), items(plan.aggregateExpressions())
        self._mention([*grouping, *columns])
        raw = id_of(below.origin[0]) in self._raw
        windowed = any(marked(each) for each in grouping)
        mentioned = bool(self._reads(plan.child()) & self._mentioned) or not raw
        work = Aggregates(
            self, columns, below.origin[:2] if raw else (), None if windowed else self._event_time
        )
        signed = not mentioned and work.not_undone is None
        self.how.append(grouped_words(grouping))
        rows = self._in_time(below, grouping)
        if near:
            sessions = [is_session(each) for each in grouping]
            self.under = Under(rows, grouping, sessions, below.origin[2], below.origin[3])
        if not windowed:
            if not near:
                raise NeedsState("a grouping without a window that is not its last step")
            self._running = [place_of(each, columns) for each in grouping]
            return self._running_groups(work, plan, rows, below.origin[3], signed=signed)
        made, count = work.made(plan, rows, signed=signed, name=ROWS)
        keys = [self.alias(each, f"{KEY}{at}") for at, each in enumerate(grouping)]
        places = self.alias(self._collected(below.origin[2]), PLACES)
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

    def _running_groups(self, work: Aggregates, plan: Any, rows: Any, batch: Any, *, signed: bool) -> Part:
        """Groups without a window, as they are after all batches."""
        made, count = work.made(plan, rows, signed=signed, name=ROWS)
        return Part(made, [count], frozenset())

    def _comes_out(self, grouping: Sequence[Any], keys: Sequence[Any]) -> Any:
        """The batch after which no more rows of a group come: when its rows come out."""
        time = next(key for key, each in zip(keys, grouping, strict=True) if marked(each))
        return self._first_mark(self._end_of(time), self._marks)

    def _first_mark(self, end: Any, marks: Sequence[tuple[int, int]]) -> Any:
        if not marks:
            return self.literal(NEVER)
        middle = len(marks) // 2
        moment, number = marks[middle]
        reached = self.expressions.LessThanOrEqual(end, self._moment(moment))
        before = self._first_mark(end, marks[:middle]) if middle else self.literal(number)
        if middle:
            last = self.expressions.LessThanOrEqual(end, self._moment(marks[middle - 1][0]))
            before = self.expressions.If(last, before, self.literal(number))
        return self.expressions.If(reached, before, self._first_mark(end, marks[middle + 1 :]))

    def _settled_by(self, keys: Sequence[Any], columns: Sequence[Any], rows: Any, below: Part) -> Part:
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
        more = [self.alias(self._collected(below.origin[2]), PLACES), self.alias(batch, BATCH)]
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

    def _in_time(self, part: Part, keys: Sequence[Any]) -> Any:
        """The rows that did not come too late for what they belong to."""
        time = next((key for key in keys if marked(key)), None)
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
        named = zip((POSITION, OPERATION, PLACES, BATCH, MARK), (place, operation, places, batch, mark),
                    strict=True)  # fmt: skip
        return [self.alias(each, name) for name, each in named]

    def _made(self, places: Any, batch: Any, like: Sequence[Any]) -> list[Any]:
        """The origin of rows that are not an input's."""
        none, zero = self._nothing(like[0]), self.literal(int(Op.APPEND))
        return self._origin(none, zero, places, batch, self._nothing(like[4]))

    def _settled(
        self, columns: Sequence[Any], origin: Sequence[Any], plan: Any, passed: frozenset[int]
    ) -> Part:
        made = self.project([*columns, *origin], plan)
        return Part(made, [each.toAttribute() for each in origin], passed)

    def _nothing(self, like: Any) -> Any:
        """No value, of the type of another."""
        return self.expressions.Literal(None, like.dataType())
