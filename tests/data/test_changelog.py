"""Operations of changelogs."""

from __future__ import annotations

import pyarrow as pa

from odf_engine.data.changelog import Op, OperationCheck


def test_short_codes_are_those_of_the_specification() -> None:
    assert [(int(op), op.code) for op in Op] == [(0, "+A"), (1, "-R"), (2, "-C"), (3, "+C")]


def test_operations_are_checked_across_batches() -> None:
    check = OperationCheck()
    assert check.check(pa.array([0, 0], pa.uint8())) is None
    assert not check.has_retractions
    assert check.check(pa.array([0, 1, 2], pa.uint8())) is None
    assert check.has_retractions
    assert check.check(pa.array([0, 0], pa.uint8())) == "row 5 follows a -C, but is not a +C"
