"""No cache keeps the program from starting, and a wrong setting is reported in one sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.faults.jail import run_jailed


@pytest.mark.app
@pytest.mark.complete
def test_damaged_caches_are_ignored_and_wrong_settings_reported(tmp_path: Path) -> None:
    """The long form: ``python tests/faults/opening.py SCRATCH``."""
    script = Path(__file__).with_name("opening.py")
    done = run_jailed([sys.executable, script, tmp_path, "short"], tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
