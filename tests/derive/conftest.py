"""A workspace with root datasets whose rows a test commits itself, and derivatives made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.workspace import Workspace
from tests.derive.deriving import Deriving


@pytest.fixture
def deriving(tmp_path: Path, runtime: SparkRuntime) -> Deriving:
    return Deriving(Workspace.init(tmp_path / "a [b] {c}*d 100%"), runtime)
