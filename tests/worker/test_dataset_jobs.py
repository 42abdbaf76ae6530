"""Jobs that only look: what they give back, and that they wait for nobody else's."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.errors import NotFound, UsageError
from odf_engine.jobs.base import JobContext
from odf_engine.jobs.check import Check
from odf_engine.jobs.export import Export
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.views import BuildProjection, ComputeStatistics
from odf_engine.metadata.model import SetDataSchema
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.rows.scan import Scan
from odf_engine.rows.statistics import load_statistics
from odf_engine.worker.protocol import JobState
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.shared.root import odf as odf_group
from tests.slices import stage_slice
from tests.worker.conftest import run_request

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: port/ships
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: NdJson, schema: ["name STRING", "berth INT"]}
      merge: {kind: Ledger, primaryKey: [name]}
"""


class Home:
    """No Spark at all: looking must not ask for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def spark(self, reporter: Reporter):
        raise AssertionError("Spark was asked for")


@pytest.fixture
def entry(tmp_path: Path) -> DatasetEntry:
    entry = Workspace.init(tmp_path / "home").add(read_manifests(MANIFEST, "ships.yaml"))[0]
    dataset, table = entry.dataset, pa.table({"name": ["Ada", "Bo", "Ada"], "berth": [1, 2, 3]})
    now, schema = Timestamp.now(), slice_schema(table.schema, dataset.state().vocabulary)
    event, path = stage_slice(dataset, table, schema, now, new_watermark=None)
    events = [SetDataSchema(encode_schema(schema)), event]
    dataset.commit(events, system_time=now, expected_head=dataset.head(), data=path)
    return entry


@pytest.fixture
def context(tmp_path: Path, entry: DatasetEntry) -> JobContext:
    return JobContext(Home(tmp_path / "home"))


def test_statistics_job_stores_the_statistics(entry, context):
    assert run_request(ComputeStatistics(str(entry.id)), context, Reporter()) == {
        "name": "port/ships",
        "rows": 3,
    }
    found = load_statistics(context.host.folder / ".odf", str(entry.dataset.head()))
    assert found is not None and found.columns[-1].mean == 2.0


def test_check_is_tried_on_stored_rows_without_being_stored(entry, context):
    text = "headers: {name: ships}\nspec: {target: x, rules: [{kind: Unique, columns: [name]}]}\n"
    assert run_request(Check(str(entry.id)), context, Reporter()) == {"name": "port/ships", "results": []}
    tried = run_request(Check(str(entry.id), definition=text), context, Reporter())
    (result,) = tried["results"]
    assert tried["is_trial"] and (result["check"], result["examined"], result["failing"]) == ("ships", 3, 2)
    assert not (context.host.folder / ".odf" / "checks").exists()


def test_projection_can_be_analysed_and_exported(entry, context, tmp_path):
    found = run_request(BuildProjection(str(entry.id)), context, Reporter())
    file, pin = found.pop("file"), found.pop("pin")
    assert (pin["block"], pin["last_offset"], pin["head"]) == (str(entry.dataset.head()), 2, True)
    assert found == {"name": "port/ships", "key": ["name"], "rows": 2, "of": 3}
    run_request(ComputeStatistics(str(entry.id), file=file), context, Reporter())
    mark = Scan.of_file(Path(file)).fingerprint
    state = load_statistics(context.host.folder / ".odf", mark)
    assert state is not None and state.rows == 2
    path = tmp_path / "now.csv"
    done = run_request(Export(str(entry.id), str(path), file=file, system=False), context, Reporter())
    assert done == {"name": "port/ships", "rows": 2, "size": path.stat().st_size, "path": str(path)}
    names = [line.split(",")[1] for line in path.read_text().splitlines()]
    assert names == ["name", "Bo", "Ada"]
    # Rows that are of no dataset, such as the result of a query.
    done = run_request(Export("", str(tmp_path / "result.csv"), file=file), context, Reporter())
    assert (done["name"], done["rows"]) == ("", 2)
    assert run_request(ComputeStatistics("", file=file), context, Reporter()) == {"name": "", "rows": 2}


def test_projection_job_accepts_as_at_and_as_of(entry, context):
    block = str(entry.dataset.block(1).hash)
    found = run_request(BuildProjection(str(entry.id), as_at=block), context, Reporter())
    assert (found["rows"], found["of"], found["pin"]["sequence_number"]) == (0, 0, 1)
    assert (found["pin"]["last_offset"], found["pin"]["head"]) == (None, False)
    for moment, rows in (("2020-01-01T00:00:00Z", 0), ("2999-01-01T00:00:00+01:00", 2)):
        assert run_request(BuildProjection(str(entry.id), as_of=moment), context, Reporter())["rows"] == rows
    with pytest.raises(UsageError, match="not an RFC 3339 time"):
        run_request(BuildProjection(str(entry.id), as_of="yesterday"), context, Reporter())
    with pytest.raises(UsageError, match="has no blocks at"):
        run_request(BuildProjection(str(entry.id), as_at="2000-01-01T00:00:00Z"), context, Reporter())


def test_missing_dataset_or_file_is_rejected(entry, context, tmp_path):
    with pytest.raises(NotFound):
        run_request(ComputeStatistics("port/nobody"), context, Reporter())
    with pytest.raises(NotFound, match="file not found"):
        run_request(
            ComputeStatistics(str(entry.id), file=str(tmp_path / "gone.parquet")), context, Reporter()
        )
    with pytest.raises(UsageError, match="missing dataset or file"):
        run_request(Export("", str(tmp_path / "x.csv")), context, Reporter())


async def test_dataset_jobs_and_pulls_do_not_wait_for_each_other(home, follow):
    client = await home.connect()
    pulls = [await client.submit(Pull(f"wait:1/{name}"), name) for name in "ab"]
    for job in pulls:
        await home.job(job, lambda job: job.state is JobState.running)
    third = await client.submit(Pull("count:1/c"), "c")
    look = await client.submit(ComputeStatistics("wait:1/a"), "a")  # a dataset that is being pulled
    other = await client.submit(Export("count:3/a", "/x"), "a")
    await home.job(look, lambda job: job.state is JobState.running)
    done = await home.job(other)
    assert json.loads(done.result)["count"] == 3
    assert home.journal.job(third).state is JobState.queued
    more = [await client.submit(ComputeStatistics("wait:1/d"), "d") for _ in range(2)]
    await home.job(more[0], lambda job: job.state is JobState.running)
    assert home.journal.job(more[1]).state is JobState.queued  # there are not endlessly many at once
    await client.cancel(pulls[0])
    assert (await home.job(third)).state is JobState.done
    for job in (pulls[1], look, *more):
        await client.cancel(job)
        assert (await home.job(job)).state is JobState.cancelled
    await client.close()


def test_executors_of_a_cluster_download_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store").mkdir()
    home = Workspace.init(tmp_path / "home", (tmp_path / "store").as_uri())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    for master, is_cluster in (("local[2]", False), ("spark://127.0.0.1:7077", True)):
        run = CliRunner().invoke(odf_group, ["-w", str(home.folder), "config", "set", "spark.master", master])
        assert run.exit_code == 0, run.output
        store = JobContext(Home(home.folder)).workspace.store
        assert store is not None
        assert (store.run_downloads is not None) is is_cluster
