"""What jobs do and what they give back: the entries of the commands' ``--json`` output."""

from __future__ import annotations

from pathlib import Path

import pytest

from odf_engine.base.progress import Reporter
from odf_engine.errors import NotFound, Unsupported, UsageError
from odf_engine.jobs.base import JobContext
from odf_engine.jobs.ingest import Ingest
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.verify import Verify
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.worker.conftest import run_request

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: harbour/ports
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: FilesGlob, path: "ports/*.csv", cache: {kind: Forever}}
      read: {kind: Csv, header: true, schema: ["name STRING", "ships INT"]}
      merge: {kind: Append}
"""


PUSHED = """
    - kind: AddPushSource
      sourceName: {name}
      read: {{kind: NdJson, schema: ["name STRING"]}}
      merge: {{kind: Append}}
"""


class Home:
    """No Spark at all: what is tested here must not ask for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def spark(self, reporter: Reporter):
        raise AssertionError("Spark was asked for")


@pytest.fixture
def entry(tmp_path: Path) -> DatasetEntry:
    workspace = Workspace.init(tmp_path / "home")
    return workspace.add(read_manifests(MANIFEST, "ports.yaml"))[0]


@pytest.fixture
def context(tmp_path: Path, entry: DatasetEntry) -> JobContext:
    return JobContext(Home(tmp_path / "home"))


def test_verify_of_sound_dataset_has_no_findings(entry, context):
    found = run_request(Verify(str(entry.id)), context, Reporter())
    blocks = found.pop("blocks")
    assert blocks == entry.dataset.state().blocks
    (origin,) = found.pop("origins")
    assert [each["place"] for each in origin["sources"]] == ["ports/*.csv"]
    assert found == {
        "name": "harbour/ports", "head": str(entry.dataset.head()), "valid": True, "slices": 0,
        "transforms": 0, "findings": [], "unchecked": [], "engines": [], "rows_known": 0,
        "proofs": 0, "proven": None, "actor": "", "newer": 0, "intact": True,
    }  # fmt: skip


def test_verify_of_damaged_dataset_names_the_block(entry, context):
    head = entry.dataset.head()
    path = entry.dataset.folder / "blocks" / str(head)
    path.write_bytes(path.read_bytes()[:-4] + b"oops")
    (context.host.folder / ".odf" / "index.sqlite").unlink()  # nothing remembers what it was
    found = run_request(Verify(str(entry.id)), context, Reporter())
    assert not found["valid"]
    assert found["head"] is None
    assert set(found["findings"][0]) == {"kind", "block", "message"}
    assert str(head) in {finding["block"] for finding in found["findings"]}


def test_ingest_without_matching_push_source_fails_before_spark_starts(entry, context, tmp_path):
    with pytest.raises(Unsupported, match="harbour/ports has a polling source") as caught:
        run_request(Ingest(str(entry.id), ["/tmp/x"]), context, Reporter())
    assert "odf pull harbour/ports" in str(caught.value.hint)
    two = "".join(PUSHED.format(name=name) for name in ("ships", "docks"))
    (pushed,) = Workspace(tmp_path / "home").add(
        read_manifests(MANIFEST.partition("    - kind")[0].replace("ports", "log") + two, "log.yaml")
    )
    for source, text in ((None, "2 push sources: 'docks', 'ships'"), ("shps", "no push source 'shps'")):
        with pytest.raises(UsageError, match=text):
            run_request(Ingest(str(pushed.id), ["/tmp/x"], source=source), context, Reporter())
    with pytest.raises(AssertionError, match="Spark was asked for"):
        run_request(Ingest(str(pushed.id), ["/tmp/x"], source="ships"), context, Reporter())


@pytest.mark.parametrize("request_type", [Pull, Verify])
def test_job_for_missing_dataset_fails(entry, context, request_type):
    other = str(entry.id)[:-2] + ("00" if not str(entry.id).endswith("00") else "11")
    with pytest.raises(NotFound):
        run_request(request_type(other), context, Reporter())
