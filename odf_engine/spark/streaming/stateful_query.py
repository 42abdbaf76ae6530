"""Plans stateful queries as streams that Spark can run, and fingerprints their state."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.errors import PySparkException

from odf_engine.data.changelog import Op
from odf_engine.errors import InvalidQuery, Unsupported
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.spark.errors import explain, translate_errors
from odf_engine.spark.plan_rewrite import (
    OPERATION,
    PASS_THROUGH_NODES,
    OriginTracker,
    PlanBuilder,
    StatefulQueryError,
    TrackedPlan,
    analyzed_plan,
    id_of,
    is_orderable,
    items,
    name_of,
    references,
)
from odf_engine.spark.row_order import ORDER, strip_order_by
from odf_engine.spark.streaming.retractable_aggregates import RetractableAggregates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_KEEPING: Final = ("Aggregate", "Join", "Distinct", "Deduplicate", "Window")
_ID: Final = re.compile(r"#\d+")
_PLACE: Final = re.compile(r"StreamingRelation .*?/(input-\d+)/\*.*")
_NODE: Final = re.compile(r"(?<=EventTimeWatermark )[0-9a-f-]{36}, ")
_LIMIT: Final = (1 << 31) - 1


def state_fingerprint(session: SparkSession, frame: DataFrame, *, whole: bool) -> str:
    """The text for the result of a query over streaming views.

    Args:
        session: in which the query was made.
        frame: its result.
        whole: whether every column of the result counts, since its rows are kept.
    """
    java_session: Any = session._jsparkSession
    plan = java_session.sessionState().optimizer().execute(analyzed_plan(frame))
    parts = [_text(plan)] if whole else [part for node in _topmost(plan) for part in _kept(node)]
    ids: dict[str, str] = {}
    return _ID.sub(lambda found: ids.setdefault(found[0], f"#{len(ids)}"), "\n".join(parts))


def _topmost(plan: Any) -> Iterator[Any]:
    """The nodes that keep something, with none of their kind above them."""
    if name_of(plan) in _KEEPING and plan.isStreaming():
        yield plan
        return
    for child in items(plan.children()):
        yield from _topmost(child)


def _kept(node: Any) -> Iterator[str]:
    if name_of(node) != "Aggregate":
        yield _text(node)
        return
    yield f"by {', '.join(each.toString() for each in items(node.groupingExpressions()))}"
    yield from dict.fromkeys(
        text for column in items(node.aggregateExpressions()) for text in _aggregates(column)
    )
    yield _text(node.child())


def _aggregates(expression: Any) -> Iterator[str]:
    if name_of(expression) == "AggregateExpression":
        yield expression.toString()
        return
    for each in items(expression.children()):
        yield from _aggregates(each)


def _text(plan: Any) -> str:
    text = plan.treeString(True, False, _LIMIT, False, False)
    return _NODE.sub("", _PLACE.sub(r"\1", text))


_WATERMARK: Final = "spark.watermarkDelayMs"


def has_watermark(column: Any) -> bool:
    """Whether Spark knows up to when a column's time is complete."""
    return name_of(column) == "AttributeReference" and column.metadata().contains(_WATERMARK)


def first_row_window(plan: Any) -> Any:
    """The window function under a filter for the first row of each key; None for other filters."""
    condition, node = plan.condition(), plan.child()
    while name_of(node) in ("SubqueryAlias", "Project"):
        node = node.child()
    if name_of(node) != "Window" or node.windowExpressions().size() != 1:
        return None
    (function,) = items(node.windowExpressions())
    if name_of(condition) not in ("EqualTo", "LessThanOrEqual"):
        return None
    one = name_of(condition.right()) == "Literal" and str(condition.right().value()) == "1"
    numbered = "row_number()" in function.sql().lower()
    return node if one and numbered and references(condition.left()) == {id_of(function)} else None


def deduplication_keys(window: Any, below: TrackedPlan) -> list[Any]:
    """The columns by which rows are the same.

    Raises:
        InvalidQuery: keys had to be kept for ever.
        Unsupported: another order than that of arrival.
    """
    keys, orders = items(window.partitionSpec()), items(window.orderSpec())
    plain = len(orders) == 1 and name_of(orders[0].child()) == "AttributeReference" and below.origin
    if not plain or id_of(orders[0].child()) not in below.passed or "ASC" not in orders[0].sql():
        raise Unsupported(
            "the first row of each key can be had in the order of arrival alone",
            where="query",
            hint="write row_number() OVER (PARTITION BY … ORDER BY offset) = 1 over one input",
        )
    if not any(has_watermark(key) for key in keys):
        raise InvalidQuery(
            "the first row of each key without a time had to keep all keys for ever",
            where="query",
            hint="say for how long a key counts: PARTITION BY key, window(event_time, '1 day')",
        )
    return keys


def first_rows(make: PlanBuilder, plan: Any, window: Any, keys: list[Any], rows: Any) -> Any:
    """The first rows, as the filter would give them.

    Args:
        make: makes nodes.
        plan: the filter.
        window: the window function under it.
        keys: the columns by which rows are the same.
        rows: in their order.
    """
    # Spark takes one time for the whole stream: that of the keys.
    key_ids = {id_of(key) for key in keys}
    columns = items(window.child().output())
    empty = make.java.scala.Some(make.companion("Metadata", make.java.org.apache.spark.sql.types).empty())
    plain: list[Any] = []
    for column in columns:
        if has_watermark(column) and id_of(column) not in key_ids:
            new_id = make.expressions.NamedExpression.newExprId()
            nothing = make.seq([])
            plain.append(make.expressions.Alias(column, column.name(), new_id, nothing, empty, make.seq([])))
        else:
            plain.append(column)
    deduplicated = make.catalyst.plans.logical.Deduplicate(
        make.seq(keys), make.project(plain, rows), make.none()
    )
    again = [
        new if new is old else make.renamed(new.toAttribute(), old)
        for new, old in zip(plain, columns, strict=True)
    ]
    number = make.renamed(make.literal(1), items(window.windowExpressions())[0])
    made = make.project([*again, number], deduplicated)
    node, between = plan.child(), []
    while name_of(node) != "Window":
        between += [node] if name_of(node) == "Project" else []
        node = node.child()
    for project in reversed(between):
        made = make.project(items(project.projectList()), made)
    return made


_FAR: Final = 10**15


def check_join(make: PlanBuilder, join: Any, conditions: Sequence[Any]) -> None:
    """Lets pass joins by something that is equal, whose rows need not be kept for ever.

    Args:
        make: makes nodes.
        join: of two streams.
        conditions: all of what has to hold for a pair of rows.

    Raises:
        InvalidQuery: another join; the hint says how to write it.
    """
    whole = None
    for each in conditions:
        whole = each if whole is None else make.expressions.And(whole, each)
    sides = [{id_of(column) for column in items(side.output())} for side in (join.left(), join.right())]
    if not any(_is_equality(each, *sides) for each in _parts(conditions)):
        raise InvalidQuery(
            "a join of inputs says nothing that is equal on both sides, so every row had to be compared "
            "with every other",
            where="query",
            hint="say what belongs together: ON a.key = b.key AND b.event_time BETWEEN …",
        )
    option = make.java.scala.Option
    helper = make.companion("StreamingJoinHelper", make.catalyst.analysis)
    asked = make.catalyst.plans.logical.Join(
        join.left(), join.right(), join.joinType(), option.apply(whole), join.hint()
    )
    if helper.isWatermarkInJoinKeys(asked):
        return
    left, right, mark = join.left().outputSet(), join.right().outputSet(), option.apply(_FAR)
    bounds = (
        helper.getStateValueWatermark(left, right, option.apply(whole), mark),
        helper.getStateValueWatermark(right, left, option.apply(whole), mark),
    )
    if not all(bound.isDefined() for bound in bounds):
        raise InvalidQuery(
            "a join of inputs has no bound in time, so all of their rows had to be kept for ever",
            where="query",
            hint="say how far apart two rows may be: ON … AND b.event_time BETWEEN "
            "a.event_time - INTERVAL 1 DAY AND a.event_time + INTERVAL 1 DAY",
        )


def _parts(conditions: Sequence[Any]) -> list[Any]:
    """The conditions that all have to hold, each by itself."""
    parts: list[Any] = []
    waiting = list(conditions)
    while waiting:
        each = waiting.pop()
        if name_of(each) == "And":
            waiting += [each.left(), each.right()]
        else:
            parts.append(each)
    return parts


def _is_equality(condition: Any, left: set[int], right: set[int]) -> bool:
    if name_of(condition) not in ("EqualTo", "EqualNullSafe"):
        return False
    ours, theirs = references(condition.left()), references(condition.right())
    return bool(ours and theirs) and (
        (ours <= left and theirs <= right) or (ours <= right and theirs <= left)
    )


KINDS: Final = "what can be had: GROUP BY, window(…), joins in a bound of time, DISTINCT, UNION ALL"


def check_streaming(make: PlanBuilder, plan: Any, *, update: bool) -> None:
    """Lets Spark say what it cannot do.

    Args:
        make: makes nodes.
        plan: of a streaming query, analysed.
        update: whether groups come out whenever they change.

    Raises:
        Unsupported: in Spark's words.
    """
    modes = make.java.org.apache.spark.sql.catalyst.streaming.InternalOutputModes
    checker = make.companion("UnsupportedOperationChecker", make.catalyst.analysis)
    try:
        checker.checkForStreaming(plan, make.companion("Update" if update else "Append", modes))
    except PySparkException as error:
        raise Unsupported(
            f"Spark cannot run the query on a stream: {explain(error).message}", where="query", hint=KINDS
        ) from error


ROWS: Final = "odf_rows"


@dataclass(frozen=True)
class StreamingPlan:
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


def plan_stream(
    session: SparkSession,
    frame: DataFrame,
    inputs: Mapping[str, DatasetVocabulary],
    event_time: str,
    changing: Collection[str],
    system: Mapping[int, str] | None = None,
) -> StreamingPlan:
    """The stream of a query over streaming views.

    Args:
        session: in which the query was made.
        frame: its result.
        inputs: the views that are inputs, with their column names.
        event_time: what the result calls its event time.
        changing: inputs that bring retractions or corrections this time; the signs of other rows are
            not computed.
        system: as for :class:`odf_engine.spark.plan_rewrite.OriginTracker`.

    Raises:
        InvalidQuery, Unsupported: the query is of no kind that can be run; the hint says how to write it.
    """
    with translate_errors():
        made = StreamPlanner(session, inputs, event_time, changing, system)
        found = made.stream(frame)
        if not made.ordering:
            return found
        # Checked by Spark as it is; rows are put in order for sums only afterwards.
        session.conf.set("spark.sql.streaming.unsupportedOperationCheck", "false")
        return StreamPlanner(session, inputs, event_time, changing, system, in_order=True).stream(frame)


class StreamPlanner(OriginTracker):
    """Converts an analysed plan into a streaming plan. Row lineage adds columns to it."""

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

    def stream(self, frame: DataFrame) -> StreamingPlan:
        plan, order = strip_order_by(self, self.opened(frame))
        try:
            part = self.follow(plan)
        except StatefulQueryError as reason:
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
        return StreamingPlan(self.frame(whole), mode, keys, plain, self._exact, self._by_commit, order)

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
        return self.in_place(analyzed_plan(frame))

    # --- Nodes --------------------------------------------------------------------------------

    def follow(self, plan: Any) -> TrackedPlan:
        name = name_of(plan)
        if name == "Aggregate":
            return self._aggregate(plan)
        if name == "Distinct":
            return self._distinct(plan)
        if name == "Expand":
            return self._expand(plan)
        if name == "Filter":
            return self._filter(plan)
        if name in PASS_THROUGH_NODES:
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

    def input(self, view: Any, at: int, vocab: DatasetVocabulary) -> TrackedPlan:
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

    def projected(self, plan: Any, below: TrackedPlan, keep: Any = ()) -> TrackedPlan:
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

    def union(self, plan: Any) -> TrackedPlan:
        parts = [self.follow(child) for child in items(plan.children())]
        self._only_last(plan)
        if all(part.origin for part in parts):
            return super().union(plan)
        self._settle(plan, "UNION with rows that were grouped or joined")
        self._by_commit = True
        rows = list(map(self._bare, parts, items(plan.children())))
        return TrackedPlan(self.rebuilt(plan, rows), [], frozenset())

    def join(self, plan: Any, condition: Any = None) -> TrackedPlan:
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
        return TrackedPlan(made, [], left.passed | right.passed)

    def _filter(self, plan: Any) -> TrackedPlan:
        condition = plan.condition()
        if (window := first_row_window(plan)) is not None:
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

    def _expand(self, plan: Any) -> TrackedPlan:
        """Rows that belong to several windows or groupings at once."""
        below = self.follow(plan.child())
        for row in items(plan.projections()):
            self._mention([each for each in items(row) if name_of(each) != "AttributeReference"])
        rows = [self.seq([*items(row), *below.origin]) for row in items(plan.projections())]
        output = self.seq([*items(plan.output()), *below.origin])
        made = self.catalyst.plans.logical.Expand(self.seq(rows), output, below.plan)
        return below._replace(plan=made)

    def _distinct(self, plan: Any) -> TrackedPlan:
        below = self.follow(plan.child())
        self._only_last(plan)
        self._settle(plan, "DISTINCT")
        self._by_commit = True
        columns = [each for each in items(plan.output()) if id_of(each) not in below.passed]
        if not any(has_watermark(column) for column in columns):
            raise InvalidQuery(
                "DISTINCT without the event time had to keep all rows for ever",
                where="query",
                hint="select the event time as well, as it is; or group by the columns instead",
            )
        self._note_time(columns)
        made = self.catalyst.plans.logical.Deduplicate(
            self.seq(columns), self.project(columns, below.plan), self.none()
        )
        return TrackedPlan(made, [], frozenset())

    def _firsts(self, plan: Any, window: Any) -> TrackedPlan:
        """The first row of each key."""
        below = self.follow(window.child())
        self._only_last(plan)
        keys = deduplication_keys(window, below)
        self._settle(plan, "row_number()")
        self._by_commit = True
        self._note_time(keys)
        made = first_rows(self, plan, window, keys, self._ordered(below, always=True))
        return TrackedPlan(made, [], below.passed)

    # --- Aggregations -------------------------------------------------------------------------

    def _aggregate(self, plan: Any) -> TrackedPlan:
        below = self.follow(plan.child())
        self._only_last(plan)
        grouping, columns = items(plan.groupingExpressions()), items(plan.aggregateExpressions())
        self._mention([*grouping, *columns])
        windowed = any(has_watermark(each) for each in grouping)
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
        work = RetractableAggregates(self, columns, below.origin, None if windowed else self._event_time)
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
            return TrackedPlan(made, [], frozenset())
        self._running = [place_of(each, columns) for each in grouping]
        self._grouping = [each.sql() for each in grouping]
        return TrackedPlan(made, [rows], frozenset())

    def _ordered(self, below: TrackedPlan, *, always: bool = False) -> Any:
        """The rows in an order that does not depend on how they are spread, where that is wanted."""
        if always:
            self.ordering = True
        if not self._in_order:
            return below.plan
        keys = below.origin[:1] or [each for each in items(below.plan.output()) if is_orderable(each)]
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
            has_watermark(key) and key.dataType().typeName() == "timestamp" for key in keys
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

    def _bare(self, part: TrackedPlan, child: Any) -> Any:
        """A branch without the origin of its rows."""
        return self.project(items(child.output()), part.plan) if part.origin else part.plan


def place_of(grouping: Any, columns: list[Any]) -> int:
    """The id of the column that gives what rows are grouped by; -1 when there is none."""
    for column in columns:
        inner = column.child() if name_of(column) == "Alias" else column
        if inner.semanticEquals(grouping):
            return id_of(column)
    return -1
