"""What Spark itself cannot run on a stream."""

from __future__ import annotations

from typing import Any, Final

from pyspark.errors import PySparkException

from odf_engine.errors import Unsupported
from odf_engine.spark.catalyst import Catalyst
from odf_engine.spark.errors import explain

KINDS: Final = "what can be had: GROUP BY, window(…), joins in a bound of time, DISTINCT, UNION ALL"


def check_streaming(make: Catalyst, plan: Any, *, update: bool) -> None:
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
