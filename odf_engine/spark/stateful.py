"""Queries that need state: what they are, and how they become a stream that Spark can run.

Spark runs windows, joins in a time bound and deduplication over streams, with a state that it keeps
from one batch to the next. The plan that it has analysed is changed here where a query means more
than Spark does: aggregates take retracted rows back, `DISTINCT` and the first row of each key become
deduplications, and sums whose last bits depend on the order of addition see their rows in one order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from odf_engine.data.changelog import Op
from odf_engine.errors import InvalidQuery, Unsupported
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.spark.catalyst import analysed, id_of, items, name_of, references, sortable
from odf_engine.spark.errors import translated
from odf_engine.spark.firsts import firsts, keys_of_firsts, marked, window_of_firsts
from odf_engine.spark.joins import check_join
from odf_engine.spark.origins import OPERATION, PASSING, Follower, NeedsState, Part
from odf_engine.spark.plans import ORDER, unsorted
from odf_engine.spark.refusals import KINDS, check_streaming
from odf_engine.spark.undo import Aggregates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = "odf_rows"


@dataclass(frozen=True)
class Stateful:
    """A query that is ready to be run as a stream.

    Attributes:
        frame: the query's own columns, and with ``update`` a BIGINT ``odf_rows``: how many rows the
            group has, 0 when it is not part of the result any more.
        mode: ``append``: every row is final; ``update``: the newest row of each group that changed.
        keys: with ``update``, the columns that tell groups apart.
        plain: inputs whose retractions and corrections the query cannot take, and what in it cannot.
        exact: whether rows whose time is exactly the watermark may still come.
        by_commit: whether rows come out as what they are made of comes in, and not in the order in which
            time is complete: to come out in the same order always, each commit is taken by itself.
        order: what a final ORDER BY says, over hidden columns of the frame: columns, each with ASC or
            DESC and where its nulls stand. It holds for the rows of one transaction: rows that are final
            by then stay before those that come later, so that what a reader has seen never moves. The
            rows are the same however the inputs are taken in, and their order is where the event time
            comes first.
    """

    frame: DataFrame
    mode: Literal["append", "update"]
    keys: tuple[str, ...]
    plain: Mapping[str, str]
    exact: bool
    by_commit: bool
    order: tuple[str, ...] = ()

    def own(self, names: Sequence[str]) -> list[str]:
        """Of the frame's columns those that are the query's."""
        return [name for name in names if name != ROWS and not name.startswith(ORDER)]


def stateful(
    session: SparkSession,
    frame: DataFrame,
    inputs: Mapping[str, DatasetVocabulary],
    event_time: str,
    changing: Collection[str],
    system: Mapping[int, str] | None = None,
) -> Stateful:
    """The stream of a query over streaming views.

    Args:
        session: in which the query was made.
        frame: its result.
        inputs: the views that are inputs, with their column names.
        event_time: what the result calls its event time.
        changing: inputs that bring retractions or corrections this time; the signs of other rows are
            not computed.
        system: as for :class:`odf_engine.spark.origins.Follower`.

    Raises:
        InvalidQuery, Unsupported: the query is of no kind that can be run; the hint says how to write it.
    """
    with translated():
        made = Maker(session, inputs, event_time, changing, system)
        found = made.stream(frame)
        if not made.ordering:
            return found
        # Checked by Spark as it is; rows are put in order for sums only afterwards.
        session.conf.set("spark.sql.streaming.unsupportedOperationCheck", "false")
        return Maker(session, inputs, event_time, changing, system, in_order=True).stream(frame)


class Maker(Follower):
    """Makes a stream of an analysed plan; :mod:`odf_engine.spark.lineage` has rows keep more."""

    def __init__(
        self,
        session: SparkSession,
        inputs: Mapping[str, DatasetVocabulary],
        event_time: str,
        changing: Collection[str],
        system: Mapping[int, str] | None,
        *,
        in_order: bool = False,
    ) -> None:
        super().__init__(session, inputs, system)
        self._names = {name.lower(): name for name in inputs}
        self._event_time = event_time
        self._changing = changing
        self._in_order = in_order
        self.ordering = False
        self._operations = {place: name for place, name in self.system.items() if name}
        self._mentioned: set[str] = set()
        self._plain: dict[str, str] = {}
        self._exact = False
        self._by_commit = False
        self._running: list[int] | None = None
        self._grouping: list[str] = []

    def stream(self, frame: DataFrame) -> Stateful:
        plan, order = unsorted(self, self.opened(frame))
        try:
            part = self.follow(plan)
        except NeedsState as reason:
            raise Unsupported(
                f"the query has {reason}, which a transformation cannot have",
                where="query",
                hint=KINDS,
            ) from None
        hidden = part.passed | {id_of(column) for column in part.origin}
        kept = [column for column in items(part.plan.output()) if id_of(column) not in hidden]
        keys = self._keys(kept)
        whole = self.project([*kept, *(part.origin if self._running is not None else ())], part.plan)
        if not self._in_order:
            check_streaming(self, whole, update=self._running is not None)
        plain = {name: why for name, why in self._plain.items() if name not in self._mentioned}
        mode = "append" if self._running is None else "update"
        if order and mode == "update":
            raise Unsupported(
                "the query has ORDER BY over groups without a window, which change with every row",
                where="query",
                hint="leave it out: changes come in the order of their event time",
            )
        return Stateful(self.frame(whole), mode, keys, plain, self._exact, self._by_commit, order)

    def _keys(self, kept: list[Any]) -> tuple[str, ...]:
        names = {id_of(column): column.name() for column in kept}
        for place, text in zip(self._running or (), self._grouping, strict=True):
            if place not in names:
                raise InvalidQuery(
                    f"the query groups by {text} without a window, and does not give it",
                    where="query",
                    hint="rows are corrected by what they are grouped by: select all of that",
                )
        return tuple(dict.fromkeys(names[place] for place in self._running or ()))

    def opened(self, frame: DataFrame) -> Any:
        # Queries within expressions are none: Spark has refused them over streams.
        return self.in_place(analysed(frame))

    # --- Nodes --------------------------------------------------------------------------------

    def follow(self, plan: Any) -> Part:
        name = name_of(plan)
        if name == "Aggregate":
            return self._aggregate(plan)
        if name == "Distinct":
            return self._distinct(plan)
        if name == "Expand":
            return self._expand(plan)
        if name == "Filter":
            return self._filter(plan)
        if name in PASSING:
            part = super().follow(plan)
            self._mention(items(plan.expressions()))
            return part
        if name in ("GlobalLimit", "LocalLimit", "Sort", "Offset"):
            raise Unsupported(
                "the query has LIMIT or an inner ORDER BY over rows that need state",
                where="query",
                hint="leave it out: an ORDER BY at the end of the last step orders the rows of a transaction",
            )
        if name == "Window":
            raise Unsupported(
                "the query has a window function, which has no end on a stream",
                where="query",
                hint="group by window(event_time, '1 day'); for the first row of each key write "
                "row_number() OVER (PARTITION BY key, window(event_time, '1 day') ORDER BY offset) = 1",
            )
        return super().follow(plan)

    def input(self, view: Any, at: int, vocab: DatasetVocabulary) -> Part:
        part = super().input(view, at, vocab)
        name = self._names[view.desc().identifier().table().lower()]
        if name not in self._changing:
            appended = self.alias(self.literal(int(Op.APPEND)), OPERATION)
            plan = self.project([*items(view.output()), part.origin[0], appended], part.plan)
            part = part._replace(plan=plan, origin=[part.origin[0], appended.toAttribute()])
        for column in items(view.output()):
            if column.name() == vocab.operation_type_column:
                self._operations[id_of(column)] = name
        return part

    def projected(self, plan: Any, below: Part, keep: Any = ()) -> Part:
        columns = items(plan.projectList())
        self._mention([column for column in columns if name_of(column) != "AttributeReference"])
        if self._running is not None:
            renamed: dict[int, int] = {}
            for column in columns:
                if name_of(column) == "AttributeReference":
                    renamed[id_of(column)] = id_of(column)
                elif name_of(column) == "Alias" and name_of(column.child()) == "AttributeReference":
                    renamed.setdefault(id_of(column.child()), id_of(column))
            self._running = [renamed.get(place, -1) for place in self._running]
        return super().projected(plan, below, keep)

    def union(self, plan: Any) -> Part:
        parts = [self.follow(child) for child in items(plan.children())]
        self._only_last(plan)
        if all(part.origin for part in parts):
            return super().union(plan)
        self._settle(plan, "UNION with rows that were grouped or joined")
        self._by_commit = True
        rows = list(map(self._bare, parts, items(plan.children())))
        return Part(self.rebuilt(plan, rows), [], frozenset())

    def join(self, plan: Any, condition: Any = None) -> Part:
        if not (plan.left().isStreaming() and plan.right().isStreaming()):
            if plan.condition().isDefined():
                self._mention([plan.condition().get()])
            part = super().join(plan)
            self._only_last(plan)
            return part
        left, right = self.follow(plan.left()), self.follow(plan.right())
        self._only_last(plan)
        conditions = [plan.condition().get()] if plan.condition().isDefined() else []
        self._mention(conditions)
        self._settle(plan, "a join of inputs")
        self._exact = self._by_commit = True
        made = self.rebuilt(plan, [self._bare(left, plan.left()), self._bare(right, plan.right())])
        check_join(self, made, [*conditions, *([condition] if condition is not None else [])])
        return Part(made, [], left.passed | right.passed)

    def _filter(self, plan: Any) -> Part:
        condition = plan.condition()
        if (window := window_of_firsts(plan)) is not None:
            return self._firsts(plan, window)
        child = plan.child()
        if name_of(child) == "Join" and child.left().isStreaming() and child.right().isStreaming():
            inner = child.joinType().sql() in ("INNER", "CROSS")
            below = self.join(child, condition if inner else None)
        else:
            below = self.follow(child)
        self._mention([condition])
        if self._running is None:
            return below._replace(plan=self.filter(condition, below.plan))
        # A group that does not pass any more has to be taken back: it is said to have no rows.
        (rows,) = below.origin
        yes = self.expressions.Coalesce(self.seq([condition, self.literal(False)]))
        counted = self.alias(self.expressions.If(yes, rows, self.long(0)), ROWS)
        columns = [column for column in items(below.plan.output()) if id_of(column) != id_of(rows)]
        made = self.project([*columns, counted], below.plan)
        return below._replace(plan=made, origin=[counted.toAttribute()])

    def _expand(self, plan: Any) -> Part:
        """Rows that belong to several windows or groupings at once."""
        below = self.follow(plan.child())
        for row in items(plan.projections()):
            self._mention([each for each in items(row) if name_of(each) != "AttributeReference"])
        rows = [self.seq([*items(row), *below.origin]) for row in items(plan.projections())]
        output = self.seq([*items(plan.output()), *below.origin])
        made = self.catalyst.plans.logical.Expand(self.seq(rows), output, below.plan)
        return below._replace(plan=made)

    def _distinct(self, plan: Any) -> Part:
        below = self.follow(plan.child())
        self._only_last(plan)
        self._settle(plan, "DISTINCT")
        self._by_commit = True
        columns = [each for each in items(plan.output()) if id_of(each) not in below.passed]
        if not any(marked(column) for column in columns):
            raise InvalidQuery(
                "DISTINCT without the event time had to keep all rows for ever",
                where="query",
                hint="select the event time as well, as it is; or group by the columns instead",
            )
        self._note_time(columns)
        made = self.catalyst.plans.logical.Deduplicate(
            self.seq(columns), self.project(columns, below.plan), self.none()
        )
        return Part(made, [], frozenset())

    def _firsts(self, plan: Any, window: Any) -> Part:
        """The first row of each key."""
        below = self.follow(window.child())
        self._only_last(plan)
        keys = keys_of_firsts(window, below)
        self._settle(plan, "row_number()")
        self._by_commit = True
        self._note_time(keys)
        made = firsts(self, plan, window, keys, self._ordered(below, always=True))
        return Part(made, [], below.passed)

    # --- Aggregations -------------------------------------------------------------------------

    def _aggregate(self, plan: Any) -> Part:
        below = self.follow(plan.child())
        self._only_last(plan)
        grouping, columns = items(plan.groupingExpressions()), items(plan.aggregateExpressions())
        self._mention([*grouping, *columns])
        windowed = any(marked(each) for each in grouping)
        self._note_time(grouping)
        # Sessions of any length end at any time; of other windows those that begin first end first.
        self._by_commit = any("session_window" in each.sql() for each in grouping)
        if not windowed and not below.origin:
            raise InvalidQuery(
                "a grouping without a window over rows that were grouped or joined before",
                where="query",
                hint="select window AS w in the step before and group by window(w, '7 days'), or make it a "
                "dataset of its own",
            )
        reads = self._reads(plan.child())
        mentioned = bool(reads & self._mentioned) or not below.origin
        work = Aggregates(self, columns, below.origin, None if windowed else self._event_time)
        if work.order_matters:
            self.ordering = True
        child = self._ordered(below) if work.order_matters else below.plan
        if not mentioned and work.not_undone is not None:
            self._settle(plan.child(), work.not_undone)
        signed = not mentioned and work.not_undone is None
        made, rows = work.made(plan, child, signed=signed, name=ROWS)
        if windowed:
            if signed:
                made = self.filter(self.expressions.GreaterThan(rows, self.long(0)), made)
                made = self.project([column.toAttribute() for column in columns], made)
            return Part(made, [], frozenset())
        self._running = [place_of(each, columns) for each in grouping]
        self._grouping = [each.sql() for each in grouping]
        return Part(made, [rows], frozenset())

    def _ordered(self, below: Part, *, always: bool = False) -> Any:
        """The rows in an order that does not depend on how they are spread, where that is wanted."""
        if always:
            self.ordering = True
        if not self._in_order:
            return below.plan
        keys = below.origin[:1] or [each for each in items(below.plan.output()) if sortable(each)]
        whole = self.catalyst.plans.logical.Repartition(1, False, below.plan)
        return self.sorted([self.ascending(each) for each in keys], whole, everywhere=False)

    # --- What is known of inputs --------------------------------------------------------------

    def _mention(self, expressions: list[Any]) -> None:
        """Notes the inputs whose operation the query looks at by itself."""
        for each in expressions:
            for place in references(each) & self._operations.keys():
                self._mentioned.add(self._operations[place])

    def _note_time(self, keys: list[Any]) -> None:
        """Notes that rows belong together by their very time, and not by a window that ends after it."""
        self._exact = self._exact or any(
            marked(key) and key.dataType().typeName() == "timestamp" for key in keys
        )

    def _settle(self, plan: Any, why: str) -> None:
        """Notes that retractions of the inputs under a node cannot be undone by it."""
        for name in self._reads(plan):
            self._plain.setdefault(name, why)

    def _reads(self, plan: Any) -> set[str]:
        """The inputs whose rows come through to a node as they are."""
        if name_of(plan) == "View":
            found = self._names.get(plan.desc().identifier().table().lower())
            if found is not None:
                return {found}
        if name_of(plan) == "Aggregate":
            return set()
        return {name for child in items(plan.children()) for name in self._reads(child)}

    def _only_last(self, plan: Any) -> None:
        if self._running is not None:
            raise Unsupported(
                "a grouping without a window has to be the last step of a query",
                where="query",
                hint="group by a window of time, or make what comes after it a dataset of its own",
            )

    def _bare(self, part: Part, child: Any) -> Any:
        """A branch without the origin of its rows."""
        return self.project(items(child.output()), part.plan) if part.origin else part.plan


def place_of(grouping: Any, columns: list[Any]) -> int:
    """The id of the column that gives what rows are grouped by; -1 when there is none."""
    for column in columns:
        inner = column.child() if name_of(column) == "Alias" else column
        if inner.semanticEquals(grouping):
            return id_of(column)
    return -1
