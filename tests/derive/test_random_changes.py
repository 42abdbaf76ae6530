"""Random queries over changing inputs equal the batch queries of Spark and DuckDB over the latest state."""

from __future__ import annotations

import pytest

from odf_engine.spark.runtime.session import SparkRuntime
from tests.derive.deriving import Deriving
from tests.derive.random_changes import compare

SEEDS = range(10)
"""`python -m tests.derive.random_changes` runs many more."""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.complete
def test_latest_state_equals_the_batch_queries(
    deriving: Deriving, runtime: SparkRuntime, request: pytest.FixtureRequest, seed: int
) -> None:
    if seed % 2 == 0:
        request.getfixturevalue("generated_code")
    outcome = compare(deriving, runtime, seed)
    if outcome.kind == "invalid":
        pytest.skip(f"Spark cannot run the query: {outcome.problems[-1]}")
    assert outcome.kind in ("changes", "state", "stateless"), outcome
    assert outcome.problems == [], outcome.query
