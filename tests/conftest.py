"""What every test has at hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from odf_engine.spark.session import SparkRuntime


@pytest.fixture(scope="session")
def shared() -> Path:
    """Golden vectors and real files that lie beside the project; the test skips where they are absent."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("the shared vectors and data files are not here")
    return folder


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkRuntime]:
    """Spark, started once for all tests on two cores with little memory."""
    from odf_engine.spark.session import SparkRuntime
    from odf_engine.spark.settings import SparkOptions

    folder = tmp_path_factory.mktemp("spark")
    spark = SparkRuntime(
        SparkOptions(master="local[2]", driver_memory="768m"),
        folder / "spark.log",
        folder / "cache",
        # Tests are over before the thorough compiler pays for itself.
        java_flags=["-XX:TieredStopAtLevel=1"],
    )
    spark.start()
    yield spark
    spark.stop()
