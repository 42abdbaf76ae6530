"""Functions that queries can call besides Spark's; they run in Python processes that Spark starts."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.functions import arrow_udf

from odf_engine.data.ethereum.abi import eth_decode_event, eth_event_selector, eth_try_decode_event
from odf_engine.metadata.model import SqlQueryStep
from odf_engine.spark.runtime.spark_conf import is_on_this_machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FUNCTIONS: Final[dict[str, tuple[Callable[..., Any], pa.DataType, str]]] = {
    "eth_event_selector": (eth_event_selector, pa.binary(), "binary"),
    "eth_decode_event": (eth_decode_event, pa.string(), "string"),
    "eth_try_decode_event": (eth_try_decode_event, pa.string(), "string"),
}
"""Each function with the type of its result, in Arrow and in Spark. A null as first argument returns null."""


def register_functions(session: SparkSession, steps: Sequence[SqlQueryStep]) -> None:
    """Register the functions that a query names, in its session only."""
    text = "\n".join(step.query for step in steps)
    for name, (function, arrow_type, spark_type) in _FUNCTIONS.items():
        if re.search(rf"\b{name}\b", text, re.IGNORECASE):
            if is_on_this_machine(str(session.sparkContext.master)):
                # By default, Spark starts the first `python3` of the PATH.
                session.sparkContext.pythonExec = sys.executable
            # The overloads of PySpark lack a function with the name of a type.
            vectorized = arrow_udf(_on_columns(function, arrow_type), spark_type)  # type: ignore[call-overload]
            session.udf.register(name, vectorized)


def _on_columns(function: Callable[..., Any], arrow_type: pa.DataType) -> Callable[..., pa.Array]:
    """Return the function for columns instead of values."""

    def evaluate(*columns: pa.Array) -> pa.Array:
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return pa.array([None if row[0] is None else function(*row) for row in rows], arrow_type)

    return evaluate
