"""Random stateful queries equal Spark's batch query over the latest state of their inputs."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.workspace import Workspace
from tests.transform.deriving import Deriving
from tests.transform.random_queries import compare_case

CASES = int(os.environ.get("ODF_RANDOM_CASES", "10"))
FIRST = int(os.environ.get("ODF_RANDOM_FIRST", "0"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + CASES))
def test_the_latest_state_is_that_of_the_batch_query(
    tmp_path: Path, runtime: SparkRuntime, seed: int
) -> None:
    deriving = Deriving(Workspace.init(tmp_path / "workspace"), runtime)
    assert compare_case(deriving, runtime, Random(seed)) is None
