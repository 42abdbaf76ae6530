"""Random stateful queries equal Spark's batch query over the latest state of their inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.workspace import Workspace
from tests.derive.deriving import Deriving
from tests.derive.random_queries import compare_shape

SEEDS = {
    "windows": (2, 13),
    "running": (9,),
    "chain": (3,),
    "totals": (0,),
    "join": (11,),
    "distinct": (10,),
    "first": (27,),
    "top": (0,),
    "as_of": (17,),
}
"""Seeds of each shape with one cut, which leaves a state.

Each set of at most four aggregates of a wide query is a case. The inputs of some have no
corrections, so that states keep partial values alone. tests/derive/check_random_queries.py runs many more.
Spark compiles the queries of even seeds, and interprets the others.
"""
SETS = 4


@pytest.mark.parametrize(
    ("shape", "seed"), [(shape, seed) for shape, seeds in SEEDS.items() for seed in seeds]
)
@pytest.mark.complete(after=1)
def test_latest_state_equals_the_batch_query(
    tmp_path: Path, runtime: SparkRuntime, request: pytest.FixtureRequest, shape: str, seed: int
) -> None:
    if seed % 2 == 0:
        request.getfixturevalue("generated_code")
    deriving = Deriving(Workspace.init(tmp_path / "workspace"), runtime)
    assert compare_shape(deriving, runtime, shape, seed, SETS) == []
