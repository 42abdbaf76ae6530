"""`odf fsck --repair` and `odf pull --force` rebuild the slices of derivative datasets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import call_odf

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: rain
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: NdJson, schema: [event_time TIMESTAMP, mm BIGINT]}
      merge: {kind: Append}
---
kind: DatasetSnapshot
version: 1
content:
  name: wet
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: rain, alias: rain}]
      transform: {kind: Sql, engine: spark, query: "SELECT event_time, mm * 2 AS mm FROM rain"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    Workspace.init(tmp_path)
    (tmp_path / "m.yaml").write_text(MANIFEST)
    call_odf("add", "m.yaml", cwd=tmp_path)
    call_odf("ingest", "rain", "-", cwd=tmp_path, input='{"event_time":"2026-01-01T00:00:00Z","mm":1}\n')
    yield tmp_path
    call_odf("worker", "stop", cwd=tmp_path)


@pytest.mark.complete
def test_missing_slice_is_reported_and_rebuilt(folder: Path) -> None:
    assert call_odf("pull", "wet", cwd=folder).code == 0
    dataset = Workspace(folder).resolve("wet").dataset
    (row,) = dataset.slices()
    path, head = dataset.slice_path(row), dataset.head()
    content = path.read_bytes()
    call_odf("ingest", "rain", "-", cwd=folder, input='{"event_time":"2026-01-02T00:00:00Z","mm":2}\n')

    path.unlink()
    found = call_odf("fsck", "--json", cwd=folder)
    (finding,) = found.json["findings"]
    assert (found.code, finding["kind"], finding["where"]) == (3, "missing-slice", "wet")
    assert "odf pull --force wet rebuilds it" in finding["message"]
    repaired = call_odf("fsck", "--repair", "--json", cwd=folder)
    assert repaired.code == 0, repaired.err
    assert [each["repaired"] for each in json.loads(repaired.out)["findings"]] == [True]
    assert path.read_bytes() == content
    assert dataset.head() == head  # new input is not transformed: history does not change

    path.write_bytes(b"damaged")
    assert call_odf("verify", "wet", "--integrity", cwd=folder).code == 3
    assert call_odf("pull", "--force", "wet", cwd=folder).code == 0
    assert path.read_bytes() == content and len(dataset.slices()) == 2
    assert call_odf("verify", "wet", "--rows", cwd=folder).code == 0
