"""Crates with data: odf cite --with-data, and odf pull of a crate."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import odf_engine
from odf_engine.api import JobState, Pull, PullResult, Reporter
from odf_engine.api.plans.pull_plan import PullSelection
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.errors import Cancelled, OdfError
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import (
    DatasetKind,
    ExecuteTransform,
    ExecuteTransformInput,
    SetDataSchema,
    SetTransform,
    Sql,
    SqlQueryStep,
    TransformInput,
)
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.shared import output
from odf_tui.cli.shared.job_progress import LiveReporter
from tests.cli.conftest import Odf, call_odf
from tests.manifests import DERIVATIVE
from tests.sync.builders import (
    SCHEMA,
    START,
    add_slices,
    commit,
    make_derivative,
    make_root,
    objects,
    read_input,
)
from tests.sync.linked import add_object, add_rows, make_linked


def test_dataset_without_its_inputs_is_cited_but_not_packed(odf: Odf, fresh: Odf, tmp_path: Path) -> None:
    assert odf("cite", "derived", "-o", str(tmp_path / "crate"), "--with-data").code == 0
    assert fresh("pull", str(tmp_path / "crate" / "odf" / "derived")).code == 0
    ran = fresh("cite", "derived", "-o", str(tmp_path / "again"))
    assert ran.code == 0 and "is not in the workspace: its lineage is incomplete" in ran.err
    ran = fresh("cite", "derived", "-o", str(tmp_path / "data"), "--with-data")
    assert ran.code == 1 and "odf pull -r derived" in ran.err
    assert not (tmp_path / "data").exists()


def test_progress_is_shown_by_the_threads_that_pack(
    odf: Odf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "SECONDS_BETWEEN_LINES", 0.0)
    ran = odf("cite", "numbers", "-o", str(tmp_path / "crate.zip"), "--with-data")
    assert ran.code == 0 and "packing: " in ran.err, ran.err
    assert odf("cite", "numbers", "-o", str(tmp_path / "quiet.zip"), "--with-data", "-q").err == ""


class PhaseReporter(Reporter):
    """Records the amounts of each phase, and runs an action in one of them, after its first amounts."""

    def __init__(self, phase: str = "", action: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.amounts: dict[str, list[dict[str, Any]]] = {}
        self._at, self._action, self._name = phase, action, ""

    def phase(self, name: str) -> None:
        self._name = name

    def set_amounts(self, **amounts: Any) -> None:
        self.amounts.setdefault(self._name, []).append(amounts)
        if self._name == self._at:
            self._action()


def test_progress_of_lineage_archive_and_unpacking_ends_with_its_total(
    odf: Odf, fresh: Odf, tmp_path: Path
) -> None:
    crate, reporter = tmp_path / "crate.zip", PhaseReporter()
    with odf_engine.open(tmp_path / "here") as workspace:
        workspace["derived"].write_crate(crate, with_data=True, reporter=reporter)
        blocks = len(list(workspace["numbers"].blocks())) + len(list(workspace["derived"].blocks()))
    assert reporter.amounts["lineage"][-1] == {"files": blocks, "total_files": blocks}
    with zipfile.ZipFile(crate) as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
    size = sum(sizes.values())
    assert reporter.amounts["archive"][-1] == {"bytes": size, "total_bytes": size}

    with (
        odf_engine.open(tmp_path) as workspace,
        workspace.planned_pull(PullSelection([str(crate)]), reporter),
    ):
        pass
    size = sum(size for name, size in sizes.items() if name.startswith(("odf/", "ro-crate-metadata")))
    assert 0 < size < sum(sizes.values())
    assert reporter.amounts["unpack"][-1] == {"bytes": size, "total_bytes": size}


@pytest.mark.parametrize(
    ("phase", "name"),
    [(phase, "crate.zip") for phase in ("lineage", "send", "archive")]
    + [(phase, "crate") for phase in ("lineage", "send")],
)
def test_cancelled_crate_leaves_the_target_as_it_was(odf: Odf, tmp_path: Path, phase: str, name: str) -> None:
    target, is_zip = tmp_path / name, name == "crate.zip"
    if is_zip:
        target.write_bytes(b"earlier")
    reporter = PhaseReporter(phase, lambda: reporter.cancel())
    with odf_engine.open(tmp_path / "here") as workspace, pytest.raises(Cancelled):
        workspace["derived"].write_crate(target, with_data=True, reporter=reporter)
    assert list(reporter.amounts)[-1] == phase
    assert phase == "send" or len(reporter.amounts[phase]) == 1  # several threads send
    assert [path for path in tmp_path.iterdir() if "crate" in path.name] == ([target] if is_zip else [])
    assert not is_zip or target.read_bytes() == b"earlier"


@pytest.mark.parametrize("phase", ["lineage", "send", "archive"])
def test_interrupted_command_leaves_the_target_as_it_was(
    odf: Odf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    target, interrupted = tmp_path / "crate.zip", threading.Lock()
    target.write_bytes(b"earlier")

    def set_amounts(reporter: LiveReporter, **_: Any) -> None:
        if reporter.current_phase == phase and interrupted.acquire(blocking=False):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    monkeypatch.setattr(LiveReporter, "set_amounts", set_amounts)
    ran = odf("cite", "derived", "-o", str(target), "--with-data")
    assert ran.code == 130 and interrupted.locked(), ran.err
    assert [path for path in tmp_path.iterdir() if "crate" in path.name] == [target]
    assert target.read_bytes() == b"earlier"


KILLED_CHECK = """
import os, signal, sys
import odf_engine
from odf_engine.api import Reporter
from odf_engine.api.plans.pull_plan import PullSelection

class Killer(Reporter):
    def phase(self, name):
        if name == "fetch":
            os.kill(os.getpid(), signal.SIGKILL)

with odf_engine.open(".") as workspace, workspace.planned_pull(PullSelection(sys.argv[1:]), Killer()):
    pass
"""


def test_folder_of_a_killed_check_is_removed_by_the_next_pull(odf: Odf, fresh: Odf, tmp_path: Path) -> None:
    crate = str(tmp_path / "crate.zip")
    assert odf("cite", "derived", "-o", crate, "--with-data").code == 0
    killed = subprocess.run([sys.executable, "-c", KILLED_CHECK, crate], cwd=tmp_path, check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = (tmp_path / ".odf" / "cache").glob("pull-*")
    assert (left / "crate" / "odf").is_dir()
    assert fresh("pull", crate).code == 0
    assert not left.exists()


def test_check_of_a_crate_shows_progress(
    odf: Odf, fresh: Odf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert odf("cite", "derived", "-o", str(tmp_path / "crate.zip"), "--with-data").code == 0
    monkeypatch.setattr(output, "SECONDS_BETWEEN_LINES", 0.0)
    ran = fresh("pull", str(tmp_path / "crate.zip"))
    assert ran.code == 0, ran.err
    assert "checking the crate: unpack: " in ran.err and "checking the crate: fetch: " in ran.err
    assert fresh("pull", str(tmp_path / "crate.zip"), "-q").err == ""


@pytest.mark.parametrize("phase", ["unpack", "fetch"])
def test_cancelled_check_of_a_crate_adds_nothing(odf: Odf, fresh: Odf, tmp_path: Path, phase: str) -> None:
    phases: list[str] = []

    class CancellingReporter(Reporter):
        def phase(self, name: str) -> None:
            phases.append(name)
            if name == phase:
                self.cancel()

    assert odf("cite", "derived", "-o", str(tmp_path / "crate.zip"), "--with-data").code == 0
    selection = PullSelection([str(tmp_path / "crate.zip")])
    with odf_engine.open(tmp_path) as workspace:
        with pytest.raises(Cancelled), workspace.planned_pull(selection, CancellingReporter()):
            pass
        assert list(workspace) == []
    assert phases[-1] == phase
    assert list((tmp_path / ".odf" / "cache").glob("pull-*")) == []


def test_crate_is_pulled_in_python(odf: Odf, fresh: Odf, tmp_path: Path) -> None:
    assert odf("cite", "derived", "-o", str(tmp_path / "crate.zip"), "--with-data").code == 0
    with odf_engine.open(tmp_path, in_process=True) as workspace:
        results = workspace.pull(str(tmp_path / "crate.zip"))
        assert [(result.name, result.status) for result in results] == [
            ("numbers", "updated"),
            ("derived", "updated"),
        ]


@pytest.mark.parametrize("name", ["crate.zip", "crate"])
def test_pull_of_a_crate_is_repeated_until_the_crate_is_removed(
    odf: Odf, fresh: Odf, root: DatasetEntry, tmp_path: Path, name: str
) -> None:
    crate = tmp_path / name
    assert odf("cite", "numbers", "--at", "3", "-o", str(crate), "--with-data").code == 0
    assert fresh("pull", str(crate)).code == 0
    with odf_engine.open(tmp_path) as workspace:
        (job,) = workspace.journal.jobs(10)

        def repeat() -> PullResult | None:
            request = workspace.request_of_job(job)
            (again,) = workspace.run_jobs([(request, job.target)], lambda event: None)
            assert again.state is JobState.done, again.error
            return again.result_of(Pull)

        assert (again := repeat()) is not None and again.status == "up-to-date"
        crate.rename(tmp_path / "old")
        assert odf("cite", "numbers", "-o", str(crate), "--with-data").code == 0
        assert (again := repeat()) is not None and (again.status, again.blocks) == ("updated", 4)
        assert str(workspace["numbers"].head) == str(root.dataset.head())
        assert list((tmp_path / ".odf" / "cache").glob("pull-*")) == []
        crate.rename(tmp_path / "removed")
        with pytest.raises(OdfError, match=r"crate not found: .*/crate"):
            workspace.request_of_job(job)


def test_folder_with_a_crate_is_pulled_by_its_name(odf: Odf, fresh: Odf, tmp_path: Path) -> None:
    assert odf("cite", "derived", "-o", str(tmp_path / "numbers"), "--with-data").code == 0
    assert fresh("pull", "numbers").out.startswith("numbers: new, 6 rows")
    ran = fresh("pull", "numbers")  # the dataset comes first, and it has no source
    assert "up to date" not in ran.out, ran.out
    assert fresh("pull", "./numbers").out.startswith("numbers: up to date")
    (tmp_path / "other").mkdir()
    assert "other" in fresh("pull", "other").err


def test_crate_and_other_datasets_are_not_pulled_together(odf: Odf, fresh: Odf, tmp_path: Path) -> None:
    assert odf("cite", "numbers", "-o", str(tmp_path / "crate.zip"), "--with-data").code == 0
    ran = fresh("pull", "a", "crate.zip")
    assert ran.code == 2 and "hint: use odf pull crate.zip" in ran.err, ran.err


def test_crate_does_not_replace_a_folder(odf: Odf, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    ran = odf("cite", "numbers", "-o", str(tmp_path / "full"))
    assert ran.code != 0 and "already exists" in ran.err
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert odf("cite", "numbers", "--with-data").code == 2


def test_input_that_was_reset_is_not_packed(odf: Odf, fresh: Odf, root: DatasetEntry, tmp_path: Path) -> None:
    make_derivative(workspace := Workspace(tmp_path / "here"), root, "second")
    make_derivative(workspace, workspace.resolve("derived"), "third")
    workspace.close()
    assert odf("reset", "numbers", "3", "-y").code == 0
    for name in ("derived", "third"):
        ran = odf("cite", name, "-o", str(tmp_path / "crate.zip"), "--with-data")
        assert ran.code == 1 and "input numbers lacks the version that was read" in ran.err, ran.err
        assert f"hint: run odf pull numbers; if it was reset, omit --with-data, or rebuild {name}" in ran.err
    assert not (tmp_path / "crate.zip").exists()
    add_slices(Workspace(tmp_path / "here").resolve("numbers"))  # another history of the same length
    assert odf("cite", "derived", "-o", str(tmp_path / "crate.zip"), "--with-data").code == 1
    assert odf("cite", "derived", "-o", str(tmp_path / "plain.zip")).code == 0
    earlier = odf("cite", "derived", "--at", "2", "-o", str(tmp_path / "crate.zip"), "--with-data")
    assert earlier.code == 0, earlier.err  # a version that had not read the input yet
    assert fresh("pull", str(tmp_path / "crate.zip")).code == 0


def test_crate_of_a_version_has_the_blocks_that_it_read(
    odf: Odf, fresh: Odf, root: DatasetEntry, tmp_path: Path
) -> None:
    workspace = Workspace(tmp_path / "here")
    derived, read = workspace.resolve("derived"), root.dataset.head()
    version = derived.dataset.head()
    add_slices(root, 2)
    read_input(derived, root)
    add_slices(root)
    workspace.close()
    crate = str(tmp_path / "crate.zip")
    assert odf("cite", "derived", "--at", str(version), "-o", crate, "--with-data").code == 0
    assert fresh("pull", crate).code == 0
    assert heads(fresh) == {"derived": str(version), "numbers": str(read)}
    assert odf("cite", "derived", "-o", crate, "--with-data").code == 0
    assert fresh("pull", crate).code == 0
    expected = str(root.dataset.block(root.dataset.state().sequence_number - 1).hash)
    assert heads(fresh) == {"derived": str(derived.dataset.head()), "numbers": expected}


def heads(odf: Odf) -> dict[str, str]:
    return {row["name"]: row["head"] for row in odf("list", "--json").json}


def test_inputs_with_the_same_root_are_packed_once_with_the_newest_version(
    odf: Odf, fresh: Odf, root: DatasetEntry, tmp_path: Path
) -> None:
    workspace = Workspace(tmp_path / "here")
    add_slices(root)
    newer = make_derivative(workspace, root, "newer")
    read = root.dataset.head()
    add_slices(root)
    inputs = [workspace.resolve("derived"), newer]
    transform = SetTransform(
        [TransformInput(str(entry.id), str(entry.alias)) for entry in inputs],
        Sql("spark", queries=[SqlQueryStep(query="SELECT * FROM derived UNION ALL SELECT * FROM newer")]),
    )
    both = workspace.create_dataset(DatasetAlias.parse("both"), DatasetKind.Derivative, [transform], START)
    states = [entry.dataset.state() for entry in inputs]
    items = [
        ExecuteTransformInput(state.dataset_id, new_block_hash=state.head, new_offset=state.last_offset)
        for state in states
    ]
    commit(both, [SetDataSchema(encode_schema(SCHEMA)), ExecuteTransform(items, new_watermark=START)])
    workspace.close()
    crate = str(tmp_path / "crate.zip")
    cited = odf("cite", "both", "-o", crate, "--with-data", "--json").json
    assert sorted(cited["datasets"]) == ["both", "derived", "newer", "numbers"]
    assert fresh("pull", crate).code == 0
    assert heads(fresh) == {**heads(odf), "numbers": str(read)}


def test_dataset_without_data_is_packed(odf: Odf, fresh: Odf, tmp_path: Path) -> None:
    make_root(workspace := Workspace(tmp_path / "here"), "empty")
    workspace.close()
    crate = str(tmp_path / "crate.zip")
    assert odf("cite", "empty", "-o", crate, "--with-data").code == 0
    assert fresh("pull", crate).out.startswith("empty: new, 0 rows in 2 blocks")
    assert fresh("verify", "empty", "--integrity").code == 0


def test_input_that_was_compacted_is_packed(odf: Odf, fresh: Odf, root: DatasetEntry, tmp_path: Path) -> None:
    assert odf("compact", "numbers").code == 0
    crate = str(tmp_path / "crate.zip")
    assert odf("cite", "derived", "-o", crate, "--with-data").code == 0
    assert fresh("pull", crate).code == 0
    assert heads(fresh) == heads(odf)
    statuses = {row["name"]: row["status"] for row in fresh("list", "--json").json}
    assert statuses["derived"] == "stale"  # not diverged


def test_dataset_without_its_slices_is_not_packed(odf: Odf, root: DatasetEntry, tmp_path: Path) -> None:
    missing = next(iter(root.dataset.slices())).physical_hash
    (root.dataset.folder / "data" / str(missing)).unlink()
    ran = odf("cite", "derived", "-o", str(tmp_path / "crate.zip"), "--with-data")
    assert ran.code == 1 and "numbers cannot be packed with its data" in ran.err and "is missing" in ran.err
    assert "hint: find all errors with odf verify --integrity numbers" in ran.err
    assert [path.name for path in tmp_path.iterdir() if "crate" in path.name] == []
    assert odf("cite", "derived", "-o", str(tmp_path / "plain.zip")).code == 0


def test_slices_in_a_store_are_packed(odf: Odf, fresh: Odf, tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    make_root(first := Workspace.init(tmp_path / "first", store), "stored", slices=2)
    first.close()
    Workspace.init(tmp_path / "second", store).close()
    crate = str(tmp_path / "crate.zip")
    ran = call_odf("cite", "stored", "-o", crate, "--with-data", cwd=tmp_path / "second")
    assert ran.code == 0, ran.err
    assert fresh("pull", crate).out.startswith("stored: new, 6 rows in 4 blocks")
    for path in (tmp_path / "store").rglob("data/*"):
        path.unlink()
    Workspace.init(tmp_path / "third", store).close()
    ran = call_odf("cite", "stored", "-o", crate, "--with-data", cwd=tmp_path / "third")
    assert ran.code == 1 and "stored cannot be packed with its data" in ran.err, ran.err


def test_linked_objects_are_packed(odf: Odf, fresh: Odf, tmp_path: Path) -> None:
    photos = make_linked(workspace := Workspace(tmp_path / "here"))
    first, second = add_object(photos, b"first"), add_object(photos, b"second")
    add_rows(photos, [first, None])
    version = photos.dataset.head()
    add_rows(photos, [second])
    workspace.close()
    crate = str(tmp_path / "crate.zip")
    assert odf("cite", "photos", "--at", str(version), "-o", crate, "--with-data").code == 0
    assert fresh("pull", crate).code == 0
    assert fresh("objects", "get", "photos", first, str(tmp_path / "photo")).code == 0
    assert (tmp_path / "photo").read_bytes() == b"first"
    assert [row["hash"] for row in fresh("objects", "list", "photos", "--json").json] == [first]
    (photos.dataset.folder / "data" / second).unlink()
    ran = odf("cite", "photos", "-o", crate, "--with-data")
    assert ran.code == 0 and "warning: photos: 1 linked object missing, not sent" in ran.err, ran.err


MANIFESTS = """
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
  name: snow
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
  name: all
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: rain, alias: rain}, {datasetRef: snow, alias: snow}]
      transform:
        kind: Sql
        engine: spark
        query: SELECT event_time, mm FROM rain UNION ALL SELECT event_time, mm * 10 AS mm FROM snow
"""


@pytest.mark.spark
def test_derivative_of_two_roots_is_pulled_from_a_crate_and_replayed(
    fresh: Odf, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert fresh("add", "-", input=MANIFESTS).code == 0
    for name in ("rain", "snow"):
        assert fresh("ingest", name, "-", input='{"event_time":"2026-01-01T00:00:00Z","mm":1}\n').code == 0
    assert fresh("pull", "all").code == 0
    crate = tmp_path_factory.mktemp("crates") / "all.zip"
    cited = fresh("cite", "all", "-o", str(crate), "--with-data", "--json").json
    assert sorted(cited["datasets"]) == ["all", "rain", "snow"]
    # Later rows of the inputs are not a part of the version.
    assert fresh("ingest", "rain", "-", input='{"event_time":"2026-01-02T00:00:00Z","mm":2}\n').code == 0
    assert fresh("pull", "all").code == 0
    cited_again = fresh("cite", "all", "--at", cited["citation"]["block"], "-o", str(crate), "--with-data")
    assert cited_again.code == 0, cited_again.err

    there = partial(call_odf, cwd=tmp_path_factory.mktemp("there"))
    there("init")
    try:
        ran = there("pull", str(crate), "--as", "weather")
        assert ran.code == 0, ran.err
        blocks = {row["name"]: (row["records"], row["head"]) for row in there("list", "--json").json}
        assert blocks["weather"] == (2, cited["citation"]["block"])
        assert (blocks["rain"][0], blocks["snow"][0]) == (1, 1)
        report = there("verify", "-r", "weather", "--json")
        assert report.code == 0, report.out
        verified = {row["name"]: (row["valid"], row["transforms"]) for row in report.json["datasets"]}
        assert verified == {"rain": (True, 0), "snow": (True, 0), "weather": (True, 1)}
        crate.unlink()
        assert there("show", "weather", "--json").json["remotes"] == []
    finally:
        there("worker", "stop")


@pytest.mark.spark
def test_levels_of_derivatives_and_a_diamond_are_replayed_from_a_crate(
    fresh: Odf, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def derivative(name: str, query: str, *inputs: str) -> str:
        listed = ", ".join(f"{{datasetRef: {source}, alias: {source}}}" for source in inputs)
        return DERIVATIVE.format(name=name, query=query, inputs=listed)

    documents = [
        MANIFESTS.split("---")[0],
        derivative("low", "SELECT event_time, mm FROM rain WHERE mm < 3", "rain"),
        derivative("high", "SELECT event_time, mm * 10 AS mm FROM rain", "rain"),
        derivative("both", "SELECT * FROM low UNION ALL SELECT * FROM high", "low", "high"),
        derivative("top", "SELECT event_time, mm + 1 AS mm FROM both", "both"),
    ]
    assert fresh("add", "-", input="---".join(documents)).code == 0

    def ingest(day: int) -> None:
        row = json.dumps({"event_time": f"2026-01-0{day}T00:00:00Z", "mm": day})
        assert fresh("ingest", "rain", "-", input=row + "\n").code == 0

    for day in (1, 2):
        ingest(day)
        assert fresh("pull", "-r", "top").code == 0
    ingest(3)  # a part of no version
    crates = tmp_path_factory.mktemp("crates")
    cited = fresh("cite", "top", "-o", str(crates / "first.zip"), "--with-data", "--json").json
    assert sorted(cited["datasets"]) == ["both", "high", "low", "rain", "top"]
    assert fresh("compact", "rain").code == 0
    assert fresh("cite", "top", "-o", str(crates / "compacted.zip"), "--with-data").code == 0

    for name, rain in (("first.zip", 2), ("compacted.zip", 3)):
        there = partial(call_odf, cwd=tmp_path_factory.mktemp("there"))
        there("init")
        try:
            assert there("pull", str(crates / name)).code == 0
            rows = {row["name"]: row["records"] for row in there("list", "--json").json}
            assert rows == {"rain": rain, "low": 2, "high": 2, "both": 4, "top": 4}
            report = there("verify", "-r", "top", "--json")
            assert report.code == 0, report.out
            replayed = {row["name"]: row["transforms"] for row in report.json["datasets"]}
            assert replayed == {"rain": 0, "low": 2, "high": 2, "both": 2, "top": 2}
        finally:
            there("worker", "stop")


def rewrite(crate: Path, change: Callable[[str, bytes], tuple[str, bytes] | None]) -> None:
    """Change, rename or remove the entries of a crate."""
    with zipfile.ZipFile(crate) as archive:
        entries = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(crate, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in entries:
            if (changed := change(*entry)) is not None:
                archive.writestr(*changed)


def flip_data(name: str, data: bytes) -> tuple[str, bytes]:
    return (name, data[:-1] + bytes([data[-1] ^ 1])) if "numbers/data" in name else (name, data)


def flip_blocks(name: str, data: bytes) -> tuple[str, bytes]:
    return (name, data[:-1] + bytes([data[-1] ^ 1])) if "derived/blocks" in name else (name, data)


def without_checkpoint(name: str, data: bytes) -> tuple[str, bytes] | None:
    return None if "checkpoints" in name else (name, data)


def leaves_the_folder(name: str, data: bytes) -> tuple[str, bytes]:
    return ("odf/../../../outside", data) if name == "prov.json" else (name, data)


def bomb(name: str, data: bytes) -> tuple[str, bytes]:
    return (name, bytes(30_000_000)) if name == "prov.json" else (name, data)


def other_metadata(name: str, data: bytes) -> tuple[str, bytes]:
    return (name, b"{}") if name == "ro-crate-metadata.json" else (name, data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (flip_data, "numbers in the crate is damaged"),
        (flip_blocks, "derived in the crate is damaged"),
        (without_checkpoint, "derived in the crate is damaged"),
        (leaves_the_folder, "unsafe entry"),
        (bomb, "expands to more than"),
        (other_metadata, "the metadata are damaged"),
    ],
)
def test_changed_crate_is_refused_and_nothing_is_added(
    odf: Odf, fresh: Odf, tmp_path: Path, change: Any, message: str
) -> None:
    crate = tmp_path / "crate.zip"
    assert odf("cite", "derived", "-o", str(crate), "--with-data").code == 0
    rewrite(crate, change)
    ran = fresh("pull", str(crate))
    assert ran.code == 1 and message in ran.err, ran.err
    assert "hint: " in ran.err
    assert fresh("list", "--json").json == []
    assert not (tmp_path / "outside").exists()
    assert list((tmp_path / ".odf").glob("incoming/*")) == []


def test_changed_reference_is_refused(odf: Odf, fresh: Odf, root: DatasetEntry, tmp_path: Path) -> None:
    crate = tmp_path / "crate"
    assert odf("cite", "numbers", "-o", str(crate), "--with-data").code == 0
    earlier = root.dataset.block(3).hash  # a complete chain, but another version
    (crate / "odf" / "numbers" / "refs" / "head").write_text(str(earlier))
    ran = fresh("pull", f"{crate}/")
    assert ran.code == 1 and "is not the version that the metadata name" in ran.err
    assert fresh("list", "--json").json == []


def test_crate_has_the_bytes_and_updates_a_dataset(
    odf: Odf, fresh: Odf, root: DatasetEntry, tmp_path: Path
) -> None:
    crate = tmp_path / "crate"
    assert odf("cite", "numbers", "--at", "3", "-o", str(crate), "--with-data").code == 0
    packed = {name for name in objects(crate / "odf" / "numbers") if not name.startswith("refs")}
    for name in packed:
        assert (crate / "odf" / "numbers" / name).read_bytes() == (root.dataset.folder / name).read_bytes()
    assert len([name for name in packed if name.startswith("blocks")]) == 4
    assert fresh("pull", f"{crate}/").out.startswith("numbers: new, 3 rows in 4 blocks")
    assert odf("cite", "numbers", "-o", str(tmp_path / "newer.zip"), "--with-data").code == 0
    assert fresh("pull", str(tmp_path / "newer.zip")).out.startswith("numbers: 3 rows in 4 blocks")
    assert fresh("pull", str(crate) + "/").out.startswith("numbers: up to date (4 blocks ahead of")
    assert [row["pull"] for row in fresh("repo", "alias", "list", "--json").json] == [[]]


def test_crate_without_data_or_with_a_taken_name_is_refused(odf: Odf, fresh: Odf, tmp_path: Path) -> None:
    assert odf("cite", "numbers", "-o", str(tmp_path / "plain.zip")).code == 0
    ran = fresh("pull", str(tmp_path / "plain.zip"))
    assert ran.code == 1 and "only metadata" in ran.err and "--with-data" in ran.err
    make_root(Workspace(tmp_path), "numbers")
    assert odf("cite", "numbers", "-o", str(tmp_path / "data.zip"), "--with-data").code == 0
    ran = fresh("pull", str(tmp_path / "data.zip"))
    assert ran.code != 0 and "a different dataset has this name" in ran.err
    assert fresh("pull", str(tmp_path / "data.zip"), "--as", "theirs").code == 0
    assert fresh("pull", str(tmp_path / "data.zip"), "--all").code == 2
