"""Times that have more digits in a file than their columns keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import is_list_like
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.sql_types import Formats, identifier, string_literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_SPARK_DIGITS: Final = 6
"""Digits of a timestamp in Spark."""


class TimeDigits:
    """Counts the rows of a file whose times lose digits, by column."""

    def __init__(self) -> None:
        self._frame: DataFrame | None = None
        self._tests: list[tuple[pa.Field, str]] = []

    def set_frame(
        self,
        frame: DataFrame,
        columns: pa.Schema,
        formats: Formats | None = None,
        stored: pa.Schema | None = None,
    ) -> None:
        """Set the rows to check.

        Args:
            frame: the rows before their conversion to ``columns``.
            columns: types of the columns.
            formats: formats of times in text.
            stored: types of the columns of a file that is not text.
        """
        pattern = None if formats is None else formats.timestamp
        types = {} if stored is None else {field.name.casefold(): field.type for field in stored}
        self._frame, self._tests = frame, []
        for field in columns:
            name = field.name
            test = _test(identifier(name), field.type, types.get(name.casefold()), pattern, 0)
            if test is not None:
                self._tests.append((field, test))

    def count(self, reporter: Reporter) -> list[tuple[pa.Field, int]]:
        """Return the columns with times that lose digits, and their number of rows.

        Raises:
            BadData: a row cannot be read.
        """
        if self._frame is None or not self._tests:
            return []
        with translate_errors(reporter):
            counted = self._frame.selectExpr(*(f"count_if({test})" for _, test in self._tests))
        _, batches = arrow_batches(counted, reporter, progress=False)
        counts = [column[0].as_py() for batch in batches for column in batch.columns]
        return [(field, rows) for (field, _), rows in zip(self._tests, counts, strict=True) if rows]


def _test(
    value: str, declared: pa.DataType, stored: pa.DataType | None, pattern: str | None, depth: int
) -> str | None:
    """Return the condition that a value has a time that loses digits, or None if it cannot have one.

    Args:
        value: expression of the value.
        declared: its type in the dataset.
        stored: its type in a file that is not text.
        pattern: format of timestamps in text.
        depth: number of lists around the value.
    """
    if stored is not None and (pa.types.is_string(stored) or pa.types.is_large_string(stored)):
        stored = None
    if pa.types.is_timestamp(declared) or pa.types.is_time(declared):
        digits = _DIGITS[declared.unit]
        if pa.types.is_timestamp(declared):
            digits = min(digits, _SPARK_DIGITS)
            if stored is not None and pa.types.is_timestamp(stored) and stored.unit == "ns":
                return f"pmod({value}, {10 ** (9 - digits)}) <> 0"  # Spark reads it as a number
            if pattern is not None:
                value = f"try_to_timestamp({value}, {string_literal(pattern)})"
        if stored is not None and _DIGITS.get(getattr(stored, "unit", ""), 0) <= digits:
            return None
        return f"CAST({value} AS STRING) RLIKE ':[0-9]{{2}}[.][0-9]{{{digits}}}[0-9]*[1-9]'"
    if is_list_like(declared) and (stored is None or is_list_like(stored)):
        item = f"item_{depth}"
        inner = None if stored is None else stored.value_type
        test = _test(item, declared.value_type, inner, pattern, depth + 1)
        return test and f"exists({value}, {item} -> {test})"
    if pa.types.is_struct(declared) and (stored is None or pa.types.is_struct(stored)):
        types = {} if stored is None else {field.name.casefold(): field.type for field in stored}
        tests = [
            _test(
                f"{value}.{identifier(field.name)}",
                field.type,
                types.get(field.name.casefold()),
                pattern,
                depth,
            )
            for field in declared
        ]
        return " OR ".join(f"({test})" for test in tests if test) or None
    return None
