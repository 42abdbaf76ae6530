"""Operations of changelogs."""

from __future__ import annotations

from odf_engine.data.changelog import Op


def test_short_codes_are_those_of_the_specification() -> None:
    assert [(int(op), op.code) for op in Op] == [(0, "+A"), (1, "-R"), (2, "-C"), (3, "+C")]
