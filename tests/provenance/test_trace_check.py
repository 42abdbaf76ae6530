"""Removing the rows of an answer makes the row go or change; keeping only them keeps it.

Only some shapes of queries; tests/provenance/check_provenance.py checks all shapes and many rows.
"""

from __future__ import annotations

import pytest

from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.workspace import Workspace
from tests.derive.deriving import Deriving
from tests.provenance.shapes import SHAPES, Shapes

SOME = [shape for shape in SHAPES if shape.name in ("map", "changes")]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory, runtime: SparkRuntime) -> Shapes:
    workspace = Workspace.init(tmp_path_factory.mktemp("shapes") / "w")
    return Shapes(Deriving(workspace, runtime), 7, SOME)


@pytest.mark.parametrize("name", [shape.name for shape in SOME])
@pytest.mark.complete
def test_traced_rows_are_sufficient_and_necessary(shapes: Shapes, runtime: SparkRuntime, name: str) -> None:
    wrong, _ = shapes.wrong(shapes.made[name], runtime, rows=1)
    assert wrong == []
