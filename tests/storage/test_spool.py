"""Spools: what came through a pipe, kept until it was read, and never for longer."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest

from odf_engine.storage.scratch import remove_dead_spool, spool_stream, sweep_spools


def test_spool_file_exists_only_while_it_is_used(tmp_path: Path) -> None:
    sizes: list[int] = []
    data = bytes(range(256)) * 10_000
    with spool_stream(tmp_path, io.BytesIO(data), "/dev/fd/63", sizes.append) as path:
        assert path.read_bytes() == data
        assert path.name == "dev-fd-63"
        assert sizes[-1] == len(data)
        for clean in (sweep_spools, lambda odf: remove_dead_spool(odf, path)):
            clean(tmp_path)
            assert path.exists()  # this process still runs
    with pytest.raises(OSError, match="broken"), spool_stream(tmp_path, _Broken(), "stdin", sizes.append):
        pass
    assert list((tmp_path / "cache").iterdir()) == []


class _Broken(io.BytesIO):
    def read1(self, size: int | None = -1, /) -> bytes:
        raise OSError("broken")


def test_spools_of_dead_processes_are_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    cache = tmp_path / "cache"
    spools = [cache / f"ingest-{gone.pid}-{name}" for name in "ab"]
    others = [cache / "spark", cache / "ingest-x-y", cache / f"pull-{gone.pid}-a", tmp_path / "mine"]
    for folder in (*spools, *others):
        folder.mkdir(parents=True)
        (folder / "stdin").touch()
    for folder in (spools[0], *others):
        remove_dead_spool(tmp_path, folder / "stdin")
    assert [folder.exists() for folder in spools] == [False, True]
    sweep_spools(tmp_path)
    assert [folder.exists() for folder in (*spools, *others)] == [False, False, True, True, True, True]
