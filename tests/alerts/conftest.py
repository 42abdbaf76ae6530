"""A workspace with a dataset, and a receiver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.alerts.receivers import HttpReceiver
from tests.cli.conftest import Ran, call_odf

ROOT = """\
kind: DatasetSnapshot
version: 1
content:
  name: my.rows
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: NdJson, schema: ["id INT", "name STRING"]}
      merge: {kind: Append}
"""
Odf = Callable[..., Ran]


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    server = HttpReceiver()
    yield server
    server.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A workspace with an empty root dataset; its worker starts without Spark."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "ws"
    folder.mkdir()
    (folder / "rows.yaml").write_text(ROOT)
    for arguments in (["init"], ["add", "rows.yaml"]):
        assert call_odf(*arguments, cwd=folder).code == 0
    yield folder
    call_odf("worker", "stop", cwd=folder)


@pytest.fixture
def odf(folder: Path) -> Odf:
    """Runs ``odf`` in the workspace."""

    def run(*arguments: str, input: str | None = None) -> Ran:
        return call_odf(*arguments, cwd=folder, input=input)

    return run
