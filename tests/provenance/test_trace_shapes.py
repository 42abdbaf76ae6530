"""Removing the rows of an answer makes the row go or change; keeping only them keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

from odf_engine.spark.session import SparkRuntime
from odf_engine.workspace.workspace import Workspace
from tests.provenance.shapes import SHAPES, Shapes
from tests.transform.deriving import Deriving


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory, runtime: SparkRuntime) -> Shapes:
    return Shapes(Deriving(Workspace.init(Path(tmp_path_factory.mktemp("shapes")) / "w"), runtime), seed=7)


@pytest.mark.parametrize("name", [shape.name for shape in SHAPES])
def test_what_is_said_of_rows_is_so(shapes: Shapes, runtime: SparkRuntime, name: str) -> None:
    wrong, _ = shapes.wrong(shapes.made[name], runtime, rows=1)
    assert wrong == []
