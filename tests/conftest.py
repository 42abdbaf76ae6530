"""What every test has at hand."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """Golden vectors and real files that lie beside the project; the test skips where they are absent."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("the shared vectors and data files are not here")
    return folder
