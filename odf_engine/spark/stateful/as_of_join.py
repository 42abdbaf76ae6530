"""As-of joins: plans split at temporal joins, lookup of row versions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types as st

from odf_engine.data.changelog import OPERATION, POSITION, Op
from odf_engine.errors import InvalidQuery, Unsupported
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.plan_rewrite import (
    OriginTracker,
    PlanBuilder,
    StatefulQueryError,
    TrackedResult,
    analyzed_plan,
    check_operations,
    column_id,
    node_name,
    referenced_ids,
    run_sql,
    to_list,
)
from odf_engine.spark.sql_types import arrow_schema, identifier
from odf_engine.spark.stateful.incremental import referenced_columns
from odf_engine.spark.stateful.stateful_query import stream_view
from odf_engine.spark.stateful.stream_checks import check_collations, conjuncts, has_watermark
from odf_engine.spark.stateful.temporal_tables import AsOfTable, match_keys
from odf_engine.spark.stateful.window_functions import comparable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


TIME: Final = "odf_time"
DUE: Final = "odf_due"
"""The time that the watermark must reach before a row is emitted."""
IS_ACTIVE: Final = "odf_alive"
IS_OLDEST: Final = "odf_oldest"
"""Whether earlier versions of the key have been dropped from the state."""
IS_VERSION_LOST: Final = "odf_unknown"
"""Whether a row's version has been dropped; the row has the oldest available one then."""
_WAS_ACTIVE: Final = "odf_was_active"
_ROWS: Final = "odf_rows"
_VERSIONS: Final = "odf_versions"


def add_due_time(rows: DataFrame, *, pairs: bool) -> DataFrame:
    """Add the due time to new rows: their own time, or the +C's time for a -C with an earlier time.

    The rows of such a pair are thus emitted together. An added row never waits for another one: a later
    correction may retract it at its own time.

    Args:
        rows: new rows.
        pairs: whether correction pairs stay together; otherwise each row is due at its own time.
    """
    if not pairs:
        with translate_errors():
            return rows.selectExpr("*", f"{TIME} AS {DUE}")
    return run_sql(
        f"""
        SELECT {_ROWS}.*, greatest({_ROWS}.{TIME}, coalesce(other.time, {_ROWS}.{TIME})) AS {DUE}
        FROM {_ROWS} LEFT JOIN (
            SELECT {POSITION} - 1 AS place, max({TIME}) AS time
            FROM {_ROWS} WHERE {OPERATION} = {Op.CORRECT_TO:d} GROUP BY ALL
        ) AS other ON {POSITION} = other.place AND {OPERATION} = {Op.CORRECT_FROM:d}
        """,
        rows=rows,
    )


def to_versions(rows: DataFrame, keys: Sequence[str], *, changes: bool) -> DataFrame:
    """Convert rows of a keyed input to versions.

    A retraction ends its key at the time of the retracted row. A correction at the same time replaces the
    version, and a correction to a later time adds one. A correction to an earlier time also replaces the
    version at the later time.

    Args:
        rows: new rows.
        keys: the key columns.
        changes: whether retractions or corrections may be among them.
    """
    has_key = " AND ".join(f"{key} IS NOT NULL" for key in keys)
    if not changes:
        return run_sql(
            f"SELECT * EXCEPT ({OPERATION}), true AS {IS_ACTIVE}, false AS {IS_OLDEST} "
            f"FROM {_VERSIONS} WHERE {has_key}",
            versions=rows,
        )
    is_from = (
        f"{OPERATION} = {Op.CORRECT_FROM:d} AND coalesce(odf_next.{OPERATION} = {Op.CORRECT_TO:d} "
        f"AND odf_next.{POSITION} = {POSITION} + 1, false)"
    )
    moves_back = f"({is_from} AND odf_next.{TIME} < {TIME})"
    columns = [
        f"IF({moves_back}, odf_next.{name}, {name}) AS {name}" if is_version_column(name) else name
        for name in rows.columns
        if name != OPERATION
    ]
    return run_sql(
        f"""
        SELECT {", ".join(columns)},
            {OPERATION} IN ({Op.APPEND:d}, {Op.CORRECT_TO:d}) OR {moves_back} AS {IS_ACTIVE},
            false AS {IS_OLDEST}
        FROM (
            SELECT *, lead(struct(*)) OVER (PARTITION BY {", ".join(keys)} ORDER BY {POSITION}) AS odf_next
            FROM {_VERSIONS} WHERE {has_key}
        ) WHERE NOT ({is_from}) OR {moves_back}
        """,
        versions=rows,
    )


def lookup_versions(rows: DataFrame, versions: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Join each row with the version of its key that is valid at its time; ``odf_alive`` is False without
    one.

    The valid version is the latest at or before the time of the row, by event time, then by position. If it
    has been dropped, the row has the oldest available version.
    """
    key_list = ", ".join(keys)
    version_columns = [name for name in versions.columns if name not in (*keys, POSITION)]
    version = f"struct({', '.join(version_columns)})"
    row = f"struct({', '.join(name for name in rows.columns if name not in keys)})"
    columns = ", ".join(
        f"version.{name}" for name in version_columns if name not in (TIME, IS_ACTIVE, IS_OLDEST)
    )
    return run_sql(
        f"""
        SELECT row.*, {key_list}, {columns}, coalesce(version.{IS_ACTIVE}, false) AS {IS_ACTIVE},
            coalesce(version.{TIME} > row.{TIME}, false) AS {IS_VERSION_LOST}
        FROM (
            SELECT {key_list}, side, row, last(version, true) OVER (
                PARTITION BY {key_list} ORDER BY {TIME} ASC NULLS FIRST, side, {POSITION}
                ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
            ) AS version
            FROM (
                SELECT {key_list}, {TIME}, 0 AS side, {POSITION}, {version} AS version, NULL AS row
                FROM {_VERSIONS}
                UNION ALL
                SELECT {key_list}, NULL, 0, {POSITION}, {version}, NULL FROM {_VERSIONS} WHERE {IS_OLDEST}
                UNION ALL
                SELECT {key_list}, {TIME}, 1, {POSITION}, NULL, {row} FROM {_ROWS}
            )
        ) WHERE side = 1
        """,
        rows=rows,
        versions=versions,
    )


def match_late_rows(
    retracted: DataFrame, late: DataFrame, names: Sequence[str]
) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Match retractions with the joined rows that were late when they were emitted.

    A late row can have another version than the one that was valid at its time. A retraction matches the
    oldest of equal late rows.

    Args:
        retracted: retractions.
        late: late rows with the columns of ``retracted`` and of their versions.
        names: SQL expressions of the columns of the rows whose values a retraction repeats.

    Returns:
        The matched retractions with the versions of the late rows, the other retractions, and the late rows
        that are left.
    """
    number = f"row_number() OVER (PARTITION BY {', '.join(names)} ORDER BY {POSITION}) AS odf_number"
    is_same = " AND ".join(
        ["a.odf_number = b.odf_number", *(f"{_of('a', name)} <=> {_of('b', name)}" for name in names)]
    )
    left, right = (f"(SELECT *, {number} FROM {name})" for name in (_ROWS, _VERSIONS))
    columns = [
        f"false AS {name}"
        if name == IS_VERSION_LOST
        else f"{'a' if name in retracted.columns else 'b'}.{name}"
        for name in late.columns
    ]
    with_versions = f"SELECT {', '.join(columns)} FROM {left} a JOIN {right} b ON {is_same}"
    others, rest = (
        f"SELECT * EXCEPT (odf_number) FROM {first} a LEFT ANTI JOIN {second} b ON {is_same}"
        for first, second in ((left, right), (right, left))
    )
    parts = [run_sql(query, rows=retracted, versions=late) for query in (with_versions, others, rest)]
    return parts[0], parts[1], parts[2]


def _of(side: str, expression: str) -> str:
    """Return a column, or its cast to text, of one side of a join."""
    return expression.replace("CAST(", f"CAST({side}.") if "CAST(" in expression else f"{side}.{expression}"


def retained_versions(versions: DataFrame, keys: Sequence[str], until: int | None) -> DataFrame:
    """Return the versions that rows may still need: the latest of each key at a time, and all later ones.

    Args:
        versions: all versions.
        keys: the key columns.
        until: that time in milliseconds, or None if every version is needed.
    """
    if until is None:
        return versions
    ordered = f"OVER (PARTITION BY {', '.join(keys)} ORDER BY {TIME}, {POSITION})"
    return run_sql(
        f"""
        SELECT * EXCEPT ({IS_OLDEST}, odf_next, odf_follows),
            {TIME} <= timestamp_millis({until}L) AND ({IS_OLDEST} OR odf_follows) AS {IS_OLDEST}
        FROM (
            SELECT *, lead({TIME}) {ordered} AS odf_next, lag({TIME}) {ordered} IS NOT NULL AS odf_follows
            FROM {_VERSIONS}
        ) WHERE coalesce(odf_next > timestamp_millis({until}L), true)
        """,
        versions=versions,
    )


def look_up_again(
    emitted: DataFrame, late: DataFrame, versions: DataFrame, keys: Sequence[str]
) -> tuple[DataFrame, DataFrame]:
    """Look up the versions of emitted rows again for the keys of late versions.

    Args:
        emitted: emitted rows, with the columns of their versions.
        late: new versions at times that the watermark had reached before.
        versions: all versions.
        keys: the key columns.

    Returns:
        The emitted rows of other keys, and the rows of these keys with their versions now. The columns
        ``p0``, … and ``odf_was_active`` have the versions that the rows had.
    """
    same_key = " AND ".join(f"{_ROWS}.{key} = {_VERSIONS}.{key}" for key in keys)
    others, affected = (
        run_sql(
            f"SELECT {_ROWS}.* FROM {_ROWS} {kind} JOIN {_VERSIONS} ON {same_key}",
            rows=emitted, versions=late,
        )
        for kind in ("LEFT ANTI", "LEFT SEMI")
    )  # fmt: skip
    with translate_errors():
        renamed = {name: f"p{name[1:]}" for name in affected.columns if is_version_column(name)}
        previous = affected.drop(IS_VERSION_LOST).withColumnsRenamed({**renamed, IS_ACTIVE: _WAS_ACTIVE})
    return others, lookup_versions(previous, versions, keys)


def version_corrections(looked_up: DataFrame, used: Sequence[str]) -> DataFrame:
    """Return a -C with the previous version and a +C with the new one for each row whose version changed.

    Args:
        looked_up: rows as of :func:`look_up_again`.
        used: names of the version columns that the rest of the query reads.
    """
    columns = [name for name in looked_up.columns if is_version_column(name)]
    rows = [
        name
        for name in looked_up.columns
        if name not in (*columns, *(f"p{name[1:]}" for name in columns), IS_ACTIVE, _WAS_ACTIVE, OPERATION)
    ]
    names = comparable(used, looked_up.schema)
    values, previous = (
        ", ".join([active, *(re.sub(r"\br(?=\d)", prefix, f"IF({active}, {name}, NULL)") for name in names)])
        for active, prefix in ((IS_ACTIVE, "r"), (_WAS_ACTIVE, "p"))
    )
    with translate_errors():
        changed = looked_up.where(f"NOT (struct({values}) <=> struct({previous}))")
        before = changed.selectExpr(
            *rows,
            *(f"p{name[1:]} AS {name}" for name in columns),
            f"{_WAS_ACTIVE} AS {IS_ACTIVE}",
            f"{Op.CORRECT_FROM:d} AS {OPERATION}",
        )
        after = changed.selectExpr(*rows, *columns, IS_ACTIVE, f"{Op.CORRECT_TO:d} AS {OPERATION}")
        return before.unionAll(after)


def is_version_column(name: str) -> bool:
    """Return whether a column is one of a version: ``r0``, …"""
    return name[0] == "r" and name[1:].isdigit()


JOINED_VOCABULARY: Final = DatasetVocabulary(
    offset_column="odf_offset",
    operation_type_column="odf_op",
    system_time_column="odf_system_time",
    event_time_column=TIME,
)
"""Column names of joined rows."""


@dataclass(frozen=True)
class AsOfJoin:
    """A join with the version of a key that is valid at the event time of a row.

    Attributes:
        view: name of the view of the joined rows, for the rest of the query.
        table: the keyed input.
        outer: whether rows without a version are part of the result.
        left: plan of the left rows.
        right: columns of the keyed input in the plan after the join.
        output: all columns after the join.
        keys: pairs of expressions that must be equal, over the rows and over the versions.
        also: the rest of the condition, or None if absent.
        time: event time of the left rows.
        schema: schema of ``output``, with the names ``c0``, ``c1``, …
    """

    view: str
    table: AsOfTable
    outer: bool
    left: Any
    right: Sequence[Any]
    output: Sequence[Any]
    keys: Sequence[tuple[Any, Any]]
    also: Any
    time: Any
    schema: st.StructType

    @property
    def names(self) -> list[str]:
        """The names of the columns of ``output`` in rows, ``l0``, …, and versions, ``r0``, …"""
        left = range(len(self.output) - len(self.right))
        return [*(f"l{index}" for index in left), *(f"r{index}" for index in range(len(self.right)))]

    @property
    def key_names(self) -> list[str]:
        """The names of the key columns in rows and versions."""
        return [f"k{index}" for index in range(len(self.keys))]


class AsOfQuery(PlanBuilder):
    """A query that is split at its as-of joins.

    Args:
        session: the session of the query.
        frame: the result of the query, over streaming inputs.
        inputs: vocabulary of each input by its name in the query.
        tables: temporal tables by lower-case name.

    Attributes:
        joins: in dependency order.
        inputs: vocabularies of the inputs, and of the joined rows of each join.
        system: ids of system columns of an input that are passed through, with the name of the view whose
            operation they hold, or an empty string.

    Raises:
        InvalidQuery, Unsupported: a join that is invalid or not supported.
    """

    def __init__(
        self,
        session: SparkSession,
        frame: DataFrame,
        inputs: Mapping[str, DatasetVocabulary],
        tables: Mapping[str, AsOfTable],
    ) -> None:
        super().__init__(session)
        self.joins: list[AsOfJoin] = []
        self.inputs = dict(inputs)
        self.system: dict[int, str] = {}
        self._tables = {table.view.lower(): table for table in tables.values()}
        self._join_indexes: dict[tuple[int, ...], int] = {}
        with translate_errors():
            opened = OriginTracker(session, inputs).inline_ctes(analyzed_plan(frame))
            self._rest_plan = self._split(opened)

    def query_after_joins(self, views: Mapping[str, DataFrame]) -> DataFrame:
        """Return the part of the query after the joins.

        Args:
            views: the inputs and the joined rows of each join, by name.
        """
        with translate_errors():
            return self.to_frame(self._substitute(self._rest_plan, views))

    def track_rest(self, views: Mapping[str, DataFrame]) -> TrackedResult:
        """Return the part after the joins, with the origin of each row.

        Raises:
            StatefulQueryError: that part is not row-by-row.
        """
        with translate_errors():
            return OriginTracker(self.session, self.inputs, self.system).track_frame(
                self.query_after_joins(views)
            )

    def left_rows(self, number: int, views: Mapping[str, DataFrame]) -> DataFrame:
        """Return the left rows of a join: ``l0``, …, their keys ``k0``, …, time, position and operation.

        Args:
            number: index of the join.
            views: the inputs and the joined rows of the earlier joins.
        """
        join = self.joins[number]
        with translate_errors():
            tracked = OriginTracker(self.session, self.inputs, self.system).track(
                self._substitute(join.left, views)
            )
            named = [
                self.alias(column, f"l{index}") for index, column in enumerate(to_list(join.left.output()))
            ]
            keys = [self.alias(left, f"k{index}") for index, (left, _) in enumerate(join.keys)]
            projected = self.project(
                [*named, *keys, self.alias(join.time, TIME), *tracked.origin], tracked.plan
            )
            return self.to_frame(projected)

    def version_rows(self, number: int, frame: DataFrame) -> DataFrame:
        """Return the rows of a join's keyed input: ``r0``, …, their keys ``k0``, …, time, position,
        operation.
        """
        join = self.joins[number]
        vocab = self.inputs[join.table.name]
        with translate_errors():
            plan = analyzed_plan(frame)
            columns = {column.name(): index for index, column in enumerate(to_list(plan.output()))}
            renamed = self._replace_columns(plan, join.right)
            named = [self.alias(column, f"r{index}") for index, column in enumerate(join.right)]
            keys = [self.alias(right, f"k{index}") for index, (_, right) in enumerate(join.keys)]
            system = [
                self.alias(join.right[columns[name]], alias)
                for name, alias in (
                    (vocab.event_time_column, TIME),
                    (vocab.offset_column, "odf_position"),
                    (vocab.operation_type_column, "odf_operation"),
                )
            ]
            return self.to_frame(self.project([*named, *keys, *system], renamed))

    def select_versions(self, number: int, frame: DataFrame) -> DataFrame:
        """Return rows with the columns of their version if both meet the rest of the join's condition."""
        rows = self.matches_condition(number, frame)
        columns = [name for name in rows.columns if name[0] != "r" and name != IS_VERSION_LOST]
        # The columns of a version are null without a version.
        columns += [f"IF({IS_ACTIVE}, {name}, NULL) AS {name}" for name in rows.columns if name[0] == "r"]
        with translate_errors():
            return rows.selectExpr(*columns, f"{IS_ACTIVE} AND {IS_VERSION_LOST} AS {IS_VERSION_LOST}")

    def matches_condition(self, number: int, frame: DataFrame) -> DataFrame:
        """Set ``odf_alive`` to whether a row ``l…`` and its version ``r…`` meet the rest of the join's
        condition.
        """
        join = self.joins[number]
        if join.also is None:
            return frame
        with translate_errors():
            plan = analyzed_plan(frame)
            named = {column.name(): column for column in to_list(plan.output())}
            old = [*to_list(join.left.output()), *join.right]
            names = [name for name in named if name[:1] in "lr" and name[1:].isdigit()]
            renamed = [
                self.replace_column(named[name], column) for name, column in zip(names, old, strict=True)
            ]
            others = [column for name, column in named.items() if name not in names and name != "odf_alive"]
            plan_with_columns = self.project([*renamed, *others, named["odf_alive"]], plan)
            condition = self.expressions.Coalesce(self.seq([join.also, self.literal(False)]))
            alive = self.alias(self.expressions.And(named["odf_alive"], condition), "odf_alive")
            restored = [
                self.alias(column.toAttribute(), name) for name, column in zip(names, renamed, strict=True)
            ]
            return self.to_frame(self.project([*restored, *others, alive], plan_with_columns))

    def join_fingerprint(self, join: AsOfJoin) -> list[str]:
        """Return the lookup of a join as text."""
        keys = [f"{left.sql()} = {right.sql()}" for left, right in join.keys]
        columns = [f"{column.name()} {column.dataType().sql()}" for column in join.right]
        also = "" if join.also is None else join.also.sql()
        return [f"outer {join.outer}", join.table.name, *keys, *columns, also]

    def has_unique_positions(self, join: AsOfJoin) -> bool:
        """Return whether the left rows of a join are rows of an input, each at most once."""
        plan = join.left
        while node_name(plan) in ("Project", "Filter", "SubqueryAlias", "ResolvedHint", "View"):
            if self._input_name(plan) is not None:
                return True
            plan = plan.child()
        return False

    def value_columns(self, join: AsOfJoin) -> list[int]:
        """Return the indexes of the left columns of a join that are not system columns of an input."""
        with translate_errors():
            columns = to_list(join.left.output())
            return [index for index, column in enumerate(columns) if column_id(column) not in self.system]

    def used_columns(self, join: AsOfJoin) -> list[int]:
        """Return the indexes of the columns after a join that the rest of the query reads."""
        with translate_errors():
            plans = [self._rest_plan, *(join.left for join in self.joins)]
            used = {column for plan in plans for column in referenced_columns(plan)}
            used |= {
                column for other in self.joins if other is not join for pair in other.keys
                for column in referenced_ids(pair[0])
            }  # fmt: skip
            return [index for index, column in enumerate(join.output) if column_id(column) in used]

    def joined_streams(self, first: int) -> dict[str, DataFrame]:
        """Return the joined rows of each join as streams without rows, numbered from ``first``."""
        return {
            join.view: stream_view(self.session, number, arrow_schema(joined_schema(join)), JOINED_VOCABULARY)
            for number, join in enumerate(self.joins, first)
        }

    def check_operations(self) -> None:
        """Check that no column of the result depends on the operation of a row, see
        :func:`check_operations`.
        """
        with translate_errors():
            check_operations(self._rest_plan, self.inputs, self.system)

    def inputs_before_join(self, join: AsOfJoin) -> set[str]:
        """Return the inputs whose rows reach a join unchanged."""
        return self._find_inputs(join.left)

    def joined_inputs(self) -> set[str]:
        """Return the inputs that the joins read."""
        return {name for join in self.joins for name in (join.table.name, *self.inputs_before_join(join))}

    def inputs_after_joins(self) -> set[str]:
        """Return the inputs that the part after the joins reads directly."""
        return self._find_inputs(self._rest_plan, through=False)

    def _find_inputs(self, plan: Any, *, through: bool = True) -> set[str]:
        if node_name(plan) == "LocalRelation" and (index := self._join_index(plan)) is not None:
            return self._find_inputs(self.joins[index].left) if through else set()
        if (name := self._input_name(plan)) is not None:
            return {name}
        return {
            name for child in to_list(plan.children()) for name in self._find_inputs(child, through=through)
        }

    def _input_name(self, plan: Any) -> str | None:
        """Return the input whose view a plan node is, or None for any other node."""
        if node_name(plan) != "View":
            return None
        view = plan.desc().identifier().table().lower()
        return next((name for name in self.inputs if name.lower() == view), None)

    def _split(self, plan: Any) -> Any:
        """Return the plan with a placeholder for the rows of each join."""
        plan = self.map_children(plan, self._split)
        if node_name(plan) == "Join" and (table := self._find_table(plan.right())) is not None:
            return self._add_join(plan, table)
        return plan

    def _find_table(self, plan: Any) -> AsOfTable | None:
        """Return the temporal table on one side of a join, identified by its hidden view."""
        while node_name(plan) in ("SubqueryAlias", "Project"):
            plan = plan.child()
        if node_name(plan) != "View":
            return None
        return self._tables.get(plan.desc().identifier().table().lower())

    def _add_join(self, plan: Any, table: AsOfTable) -> Any:
        output = to_list(plan.output())
        placeholder = self.catalyst.plans.logical.LocalRelation(
            self.seq(output), self.seq([]), False, self.none()
        )
        # A WITH clause can make the same join occur twice in a plan.
        ids = tuple(map(column_id, output))
        if ids not in self._join_indexes:
            self._join_indexes[ids] = len(self.joins)
            self.joins.append(self._build_join(plan, table, output, placeholder))
            self._record_system_columns(self.joins[-1], plan)
        return placeholder

    def _build_join(self, plan: Any, table: AsOfTable, output: Sequence[Any], placeholder: Any) -> AsOfJoin:
        time, conditions = self._split_condition(plan, table)
        right = to_list(plan.right().output())
        keys, others = match_keys(conditions, right, table)
        check_collations(plan, [side for pair in keys for side in pair])
        named = [self.alias(column, f"c{index}") for index, column in enumerate(output)]
        return AsOfJoin(
            view=f"odf_joined_{len(self.joins)}",
            table=table,
            outer=plan.joinType().sql() == "LEFT OUTER",
            left=plan.left(),
            right=right,
            output=output,
            keys=keys,
            also=reduce(self.expressions.And, others) if others else None,
            time=time,
            schema=self.to_frame(self.project(named, placeholder)).schema,
        )

    def _split_condition(self, plan: Any, table: AsOfTable) -> tuple[Any, list[Any]]:
        """Return the time of a join, and the conjuncts of its condition."""
        condition = plan.condition().get()
        bound = condition.right()  # written by the rewrite of the AS OF clause
        time = bound.right()
        if not has_watermark(time) or column_id(time) not in {
            column_id(column) for column in to_list(plan.left().output())
        }:
            raise InvalidQuery(
                f"'{table.name}' is joined FOR SYSTEM_TIME AS OF {time.sql()}, but only the event time "
                "column of the table before JOIN can be used",
                where="query",
                hint="use the unchanged event time: … FOR SYSTEM_TIME AS OF t.event_time",
            )
        return time, conjuncts([condition.left()])

    def _record_system_columns(self, join: AsOfJoin, plan: Any) -> None:
        """Check that the left rows of a join are row-by-row, and record their system columns."""
        try:
            tracked = OriginTracker(self.session, self.inputs, self.system).track(
                self._substitute(join.left, {})
            )
        except StatefulQueryError as reason:
            raise Unsupported(
                f"the left rows of the join FOR SYSTEM_TIME AS OF come from {reason}",
                where="query",
                hint="move the steps before the join to a separate dataset, or join before grouping",
            ) from None
        if not tracked.origin:
            raise InvalidQuery("the left rows of the join FOR SYSTEM_TIME AS OF come from no input",
                               where="query")  # fmt: skip
        operations = {vocab.operation_type_column for vocab in self.inputs.values()}
        for column in to_list(plan.left().output()):
            if column_id(column) in tracked.passed:
                self.system[column_id(column)] = join.view if column.name() in operations else ""
        vocab = self.inputs[join.table.name]
        hidden = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
        self.system |= {column_id(column): "" for column in join.right if column.name() in hidden}
        self.inputs[join.view] = JOINED_VOCABULARY

    def _substitute(self, plan: Any, views: Mapping[str, DataFrame]) -> Any:
        """Return the plan over other rows with the same columns."""
        name = node_name(plan)
        if name == "LocalRelation" and (index := self._join_index(plan)) is not None:
            return self._joined_view(self.joins[index], views.get(self.joins[index].view))
        if name == "View":
            view = plan.desc().identifier().table().lower()
            view_frame = next((frame for name, frame in views.items() if name.lower() == view), None)
            if view_frame is not None:
                return self.with_children(
                    plan, [self._replace_columns(analyzed_plan(view_frame), to_list(plan.output()))]
                )
        return self.map_children(plan, lambda child: self._substitute(child, views))

    def _join_index(self, plan: Any) -> int | None:
        return self._join_indexes.get(tuple(map(column_id, to_list(plan.output()))))

    def _joined_view(self, join: AsOfJoin, frame: DataFrame | None) -> Any:
        """Return the view of the joined rows of a join, with the columns of the plan after the join."""
        rows = self.session.createDataFrame([], joined_schema(join)) if frame is None else frame
        rows.createOrReplaceTempView(identifier(join.view))
        view = analyzed_plan(self.session.table(identifier(join.view)))
        while node_name(view) != "View":
            view = view.child()
        *columns, time, offset, operation = to_list(view.child().output())
        columns_after = [
            # The time column of the joined rows has a watermark.
            self.replace_column(time if column_id(old) == column_id(join.time) else new, old)
            for new, old in zip(columns, join.output, strict=True)
        ]
        return self.with_children(view, [self.project([*columns_after, offset, operation], view.child())])

    def _replace_columns(self, plan: Any, columns: Sequence[Any]) -> Any:
        """Return the plan with its columns replaced by others."""
        new = to_list(plan.output())
        return self.project(
            [self.replace_column(column, old) for column, old in zip(new, columns, strict=True)], plan
        )


def joined_schema(join: AsOfJoin) -> st.StructType:
    """Return the schema of joined rows: ``c0``, …, then time, position and operation."""
    return st.StructType(
        [
            *join.schema.fields,
            st.StructField(TIME, st.TimestampType()),
            st.StructField(JOINED_VOCABULARY.offset_column, st.LongType()),
            st.StructField(JOINED_VOCABULARY.operation_type_column, st.IntegerType()),
        ]
    )
