"""The workspace of the transformations' tests: here it is asked where its rows come from."""

from tests.derive.conftest import deriving

__all__ = ["deriving"]
