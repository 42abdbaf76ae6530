"""Jobs of several processes on one dataset, and processes that are killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import odf_engine as odf
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import BadData, Conflict
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.storage.object_store import STAGING_PREFIX
from tests.api.conftest import POPULATION, ROWS, fill, on_runtime

pytestmark = pytest.mark.spark

KILLED = """
import os, signal, sys
import odf_engine as odf
from odf_engine.storage.refs import RefStore

move = RefStore.compare_and_set

def killed(*arguments, **options):
    if sys.argv[2] == "after":
        move(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)

dataset = odf.open(sys.argv[1], in_process=True)["city.population"]
RefStore.compare_and_set = killed
dataset.ingest([{"event_time": "2024-05-01T00:00:00Z", "city": "Bern", "population": 134000}])
"""


@pytest.fixture
def worker_folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of a workspace whose worker is stopped at the end."""
    folder = tmp_path / "ws"
    yield folder
    subprocess.run([sys.executable, "-m", "odf_tui", "-w", folder, "worker", "stop"], check=True)


@pytest.mark.complete
def test_concurrent_commit_of_worker_and_process_is_a_conflict(
    worker_folder: Path, runtime: SparkRuntime
) -> None:
    through_worker = odf.init(worker_folder, in_process=False)
    (theirs,) = through_worker.add(POPULATION)
    ended = threading.Event()

    def listen(event: object) -> None:
        job = getattr(event, "job", None)
        if getattr(job, "state", None) is not None and job.state.final:  # type: ignore[union-attr]
            ended.set()

    with through_worker.watch(listen):
        assert theirs.ingest(ROWS).records == 3
        assert ended.wait(300)
        with pytest.raises(BadData):
            theirs.ingest([{"event_time": "2024-01-01T00:00:00Z", "city": "a", "population": 1.5}])
    # A worker runs: it is used.
    assert odf.open(worker_folder)["city.population"].verify().valid
    ours = on_runtime(odf.open(worker_folder, in_process=True), runtime)["city.population"]
    row = {"event_time": "2024-06-01T00:00:00Z", "population": 1}
    commit = Dataset.commit

    def commit_late(dataset: Dataset, *arguments: Any, **more: Any) -> Any:
        """Let the worker commit first: this process has read the head before."""
        patched.undo()
        assert theirs.ingest([{**row, "city": "Paris"}]).records == 1
        return commit(dataset, *arguments, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Dataset, "commit", commit_late)
        with pytest.raises(Conflict) as caught:
            ours.ingest([{**row, "city": "Berlin"}])
    assert caught.value.exit_code == 4
    cities = ours.scan().to_arrow()["city"].to_pylist()
    assert cities.count("Paris") == 1 and "Berlin" not in cities
    assert ours.ingest([{**row, "city": "Berlin"}]).records == 1  # again: nothing is lost
    assert len(theirs.scan()) == len(ROWS) + 2
    assert ours.verify().findings == []
    assert list(theirs._entry.dataset.folder.rglob(f"{STAGING_PREFIX}*")) == []


@pytest.mark.parametrize(("moment", "added"), [("before", 0), ("after", 1)])
@pytest.mark.complete
def test_a_killed_process_leaves_the_old_or_the_new_head(
    moment: str, added: int, workspace: odf.Workspace
) -> None:
    dataset = fill(workspace)["city.population"]
    before = dataset.head
    done = subprocess.run([sys.executable, "-c", KILLED, workspace.folder, moment])
    assert done.returncode == -signal.SIGKILL
    assert (dataset.head != before) == bool(added)
    assert len(dataset.scan()) == len(ROWS) + added
    assert dataset.verify().findings == []
    again = dataset.ingest([{"event_time": "2024-05-01T00:00:00Z", "city": "Bern", "population": 134000}])
    assert again.records == 1 - added  # no lock remains
