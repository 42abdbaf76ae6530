"""The jail of the fault tests."""

from __future__ import annotations

from pathlib import Path

from tests.faults.jail import run_jailed


def test_only_the_scratch_folder_is_writable(tmp_path: Path) -> None:
    outside, scratch = tmp_path / "outside.txt", tmp_path / "scratch"
    outside.write_text("before")
    done = run_jailed(["sh", "-c", f"echo inside > inside.txt; echo changed > {outside}"], scratch)
    assert done.returncode != 0
    assert "Read-only file system" in done.stderr
    assert (scratch / "inside.txt").read_text() == "inside\n"
    assert outside.read_text() == "before"
