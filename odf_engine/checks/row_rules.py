"""Evaluation of rules that need one pass over the rows, and a bounded amount of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import types

from odf_engine.base.progress import count_of
from odf_engine.checks.definition import NotNull, Pattern, Range, Rule, Set, Value
from odf_engine.data.arrow_compute import pc, to_text
from odf_engine.data.ddl import type_ddl
from odf_engine.errors import InvalidManifest
from odf_engine.metadata.timestamp import Timestamp

MAX_SAMPLE: Final = 5
_MAX_TEXT: Final = 200

Mask = Callable[[pa.RecordBatch], pa.Array | None]
"""Returns for each row whether it violates a rule, or None if no row does."""


class RuleFinding(NamedTuple):
    """The violations of a rule: the number of failing rows, a message, and a sample."""

    failing: int
    message: str
    sample: list[dict[str, str | None]]


class RowRule:
    """Counts the rows that violate a rule.

    Args:
        columns: columns of the rule, for the sample.
        offset_column: name of the offset column.
        mask: finds the failing rows of a batch.
        problem: follows the number of rows in the message.
    """

    def __init__(self, columns: Sequence[str], offset_column: str, mask: Mask, problem: str) -> None:
        self._columns, self._offset, self._mask, self._problem = columns, offset_column, mask, problem
        self._failing = 0
        self._sample: list[dict[str, str | None]] = []

    def update(self, batch: pa.RecordBatch) -> None:
        """Examine rows."""
        mask = self._mask(batch)
        failing = 0 if mask is None else pc.sum(mask).as_py() or 0
        if failing and mask is not None:
            self._failing += failing
            if (free := MAX_SAMPLE - len(self._sample)) > 0:
                self._sample += sample_rows(batch.filter(mask).slice(0, free), self._offset, self._columns)

    def finish(self) -> RuleFinding | None:
        """Return the violations, or None if no row violates the rule."""
        if not self._failing:
            return None
        return RuleFinding(self._failing, f"{count_of(self._failing, 'row')} {self._problem}", self._sample)


def sample_rows(
    rows: pa.RecordBatch, offset_column: str | None, columns: Sequence[str]
) -> list[dict[str, str | None]]:
    """Return the values of rows as text, by column; the offset column, if given, is named ``offset``."""
    sample: dict[str, list[str | None]] = {}
    if offset_column is not None:
        sample["offset"] = to_text(rows.column(offset_column)).to_pylist()
    for name in columns:
        texts = to_text(rows.column(name)).to_pylist()
        sample[name] = [None if text is None else text[:_MAX_TEXT] for text in texts]
    return [dict(zip(sample, values, strict=True)) for values in zip(*sample.values(), strict=True)]


def make_row_rule(
    rule: Rule, schema: pa.Schema, offset_column: str, where: Callable[[str], str]
) -> RowRule | None:
    """Return the evaluation of a rule over rows, or None if it is of another kind.

    Args:
        rule: the rule.
        schema: columns of the rows.
        offset_column: name of the offset column.
        where: returns the position of the value of a field in the file.

    Raises:
        InvalidManifest: the rule does not fit the type of its column.
    """
    match rule:
        case NotNull(columns=columns):
            return RowRule(columns, offset_column, _null_mask(columns), f"with null in {', '.join(columns)}")
        case Range(column=column):
            return RowRule([column], offset_column, *_range_mask(rule, schema.field(column), where))
        case Pattern(column=column, pattern=pattern):
            kind = schema.field(column).type
            if not (types.is_string(kind) or types.is_large_string(kind)):
                problem = f"column '{column}' is {type_ddl(kind)}, and Pattern requires STRING"
                raise InvalidManifest(problem, where=where(".column"))
            return RowRule(
                [column],
                offset_column,
                _pattern_mask(column, pattern),
                f"where {column} does not match {pattern}",
            )
        case Set(column=column, values=values):
            kind = schema.field(column).type
            known = pa.array([_scalar(value, kind, where(".values")) for value in values], kind)
            return RowRule(
                [column], offset_column, _set_mask(column, known), f"where {column} is not in the set"
            )
    return None


def _null_mask(columns: Sequence[str]) -> Mask:
    def mask(batch: pa.RecordBatch) -> pa.Array | None:
        violations: Any = None
        for name in columns:
            column = batch.column(name)
            if column.null_count:
                nulls = pc.is_null(column)
                violations = nulls if violations is None else pc.or_(violations, nulls)
        return violations

    return mask


def _range_mask(rule: Range, field: pa.Field, where: Callable[[str], str]) -> tuple[Mask, str]:
    lowest = None if rule.min is None else _bound(rule.min, field.type, where(".min"))
    highest = None if rule.max is None else _bound(rule.max, field.type, where(".max"))
    if rule.min is None or rule.max is None:
        problem = f"below {rule.min}" if rule.max is None else f"above {rule.max}"
    else:
        problem = f"not from {rule.min} to {rule.max}"
    is_float = types.is_floating(field.type)

    def mask(batch: pa.RecordBatch) -> pa.Array | None:
        column = batch.column(field.name)
        if not is_float and lowest is not None and highest is not None:
            # Two comparisons of extremes are cheaper than two masks, and most batches pass.
            extremes = pc.min_max(column)
            low, high = extremes["min"], extremes["max"]
            if not low.is_valid or (
                pc.greater_equal(low, lowest).as_py() and pc.less_equal(high, highest).as_py()
            ):
                return None
        masks = []
        # A NaN is in no range, so that the comparison is inverted instead of its operator.
        if lowest is not None:
            masks.append(pc.invert(pc.greater_equal(column, lowest)))
        if highest is not None:
            masks.append(pc.invert(pc.less_equal(column, highest)))
        return pc.fill_null(masks[0] if len(masks) == 1 else pc.or_(*masks), False)

    return mask, problem


def _pattern_mask(column: str, pattern: str) -> Mask:
    return lambda batch: pc.fill_null(
        pc.invert(pc.match_substring_regex(batch.column(column), pattern)), False
    )


def _set_mask(column: str, known: pa.Array) -> Mask:
    def mask(batch: pa.RecordBatch) -> pa.Array:
        values = batch.column(column)
        return pc.and_(pc.invert(pc.is_in(values, known)), pc.is_valid(values))

    return mask


def _bound(value: Value, kind: pa.DataType, where: str) -> pa.Scalar:
    """Return a bound. Bounds of integer columns can be fractions or exceed the range of the type."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and types.is_integer(kind):
        try:
            return pa.scalar(value, kind)
        except (pa.ArrowException, OverflowError):
            return pa.scalar(float(value), pa.float64())
    return _scalar(value, kind, where)


def _scalar(value: Value, kind: pa.DataType, where: str) -> pa.Scalar:
    """Return a value in the type of a column.

    Raises:
        InvalidManifest: it is not of this type.
    """
    try:
        if isinstance(value, bool) != types.is_boolean(kind):
            raise ValueError
        if types.is_timestamp(kind) and isinstance(value, str):
            nanoseconds = Timestamp.parse(value).ns
            factor = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}[kind.unit]
            return pa.scalar(nanoseconds // factor, pa.int64()).cast(kind)
        if types.is_date(kind) and isinstance(value, str):
            return pa.scalar(date.fromisoformat(value)).cast(kind)
        if isinstance(value, str) != (types.is_string(kind) or types.is_large_string(kind)):
            raise ValueError
        if types.is_decimal(kind):
            return pa.scalar(str(value)).cast(kind)
        return pa.scalar(value, kind)
    except (ValueError, OverflowError, pa.ArrowException):
        raise InvalidManifest(f"{value!r} is not a value of type {type_ddl(kind)}", where=where) from None
