"""The workspace fixtures, for tests of views of committed rows."""

from tests.workspace.conftest import append, workspace

__all__ = ["append", "workspace"]
