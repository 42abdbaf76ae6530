"""Derivatives after an upgrade of their engine: comparison with the new version, and its record."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from odf_engine.base.progress import Reporter
from odf_engine.base.settings import save, set_value, workspace_user_file
from odf_engine.chain.normal_form import spark_engine_version
from odf_engine.engines.container_engine import IMAGES
from odf_engine.engines.engine_router import engines_for
from odf_engine.engines.grpc_messages import ResponseExtension
from odf_engine.engines.grpc_server import EngineServer
from odf_engine.errors import Unsupported
from odf_engine.jobs.base import JobContext
from odf_engine.jobs.verify import Verify, VerifyResult
from odf_engine.metadata.model import OffsetInterval, TransformRequest, TransformSuccess
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.remotes import Remotes
from tests.derive.deriving import Deriving, earlier_rules
from tests.derive.engine_image import ImageStandIn
from tests.derive.test_container_engine import derivative
from tests.derive.test_earlier_revisions import OtherRules
from tests.derive.test_grpc import lying

OLD = "4.0.0+odf6"
GROUPED = "SELECT window.end AS event_time, sum(x) AS s FROM input GROUP BY window(event_time, '1 day')"


class Host:
    """A worker with the Spark of the tests."""

    def __init__(self, folder: Path, runtime: SparkRuntime) -> None:
        self.folder = folder
        self._runtime = runtime

    def spark(self, reporter: Reporter) -> SparkRuntime:
        return self._runtime


def verify(deriving: Deriving, entry: DatasetEntry, runtime: SparkRuntime) -> VerifyResult:
    """Run ``odf verify --compatible``."""
    workspace = deriving.workspace
    settings = workspace_user_file(workspace.odf)
    settings.parent.mkdir(parents=True, exist_ok=True)
    save(workspace.config, settings)
    return Verify(str(entry.id), compatible=True).run(JobContext(Host(workspace.folder, runtime)), Reporter())


def version_of(entry: DatasetEntry) -> str | None:
    transform = entry.dataset.state().transform
    assert transform is not None
    return transform.transform.version


@pytest.fixture
def source(deriving: Deriving) -> DatasetEntry:
    root = deriving.root()
    deriving.rows(root, (1, "a", 1), (1.5, "b", 2), (2, "a", 3))
    return root


@pytest.mark.parametrize("query", ["SELECT event_time, city, x FROM input", GROUPED])
def test_equal_rows_record_the_new_version_and_pulls_continue(
    deriving: Deriving, runtime: SparkRuntime, source: DatasetEntry, query: str
) -> None:
    made = deriving.derivative(query)
    deriving.run(made)
    deriving.set_version(made, OLD)
    deriving.rows(source, (3, "a", 4))
    with pytest.raises(Unsupported, match="the query is for version") as refused:
        deriving.run(made)
    assert "odf verify --compatible output" in str(refused.value.hint)
    result = verify(deriving, made, runtime)
    assert result.valid and result.compatible
    assert (result.compatible.made_by, result.compatible.version) == (OLD, spark_engine_version())
    assert result.compatible.block == result.head == str(made.dataset.head())
    assert version_of(made) == spark_engine_version()
    assert deriving.run(made) == 1
    again = verify(deriving, made, runtime)
    assert again.valid and again.compatible and again.compatible.block is None
    assert again.compatible.note == "this is the version of the query"


def test_other_rows_are_reported_and_no_version_is_recorded(
    deriving: Deriving, runtime: SparkRuntime, source: DatasetEntry
) -> None:
    with earlier_rules(5) as old:
        made = deriving.derivative("SELECT event_time, city, x FROM input")
        deriving.engine = other = OtherRules(runtime)
        other.query = "SELECT event_time, city, x + 1 AS x FROM input"
        deriving.run(made)
    head = made.dataset.head()
    result = verify(deriving, made, runtime)
    assert result.valid is False and not result.compatible
    assert [finding.kind for finding in result.findings] == ["transform-version"]
    assert made.dataset.head() == head and version_of(made) == old


def test_transactions_that_cannot_be_replayed_confirm_nothing(
    deriving: Deriving, runtime: SparkRuntime, source: DatasetEntry
) -> None:
    made = deriving.derivative("SELECT event_time, city, x FROM input")
    deriving.run(made)
    deriving.set_version(made, OLD)
    head = made.dataset.head()
    shutil.rmtree(source.dataset.folder)
    result = verify(deriving, made, runtime)
    assert [finding.kind for finding in result.findings] == ["not-replayed"]
    assert result.verdict == "not confirmed" and not result.compatible
    assert made.dataset.head() == head


def test_version_of_a_dataset_from_a_remote_is_not_recorded(
    deriving: Deriving, runtime: SparkRuntime, source: DatasetEntry, tmp_path: Path
) -> None:
    made = deriving.derivative("SELECT event_time, city, x FROM input")
    deriving.run(made)
    deriving.set_version(made, OLD)
    head = made.dataset.head()
    Remotes(deriving.workspace.odf).attach(made.id, tmp_path.as_uri(), "pull")
    result = verify(deriving, made, runtime)
    assert result.valid and result.compatible and result.compatible.block is None
    assert "only its author can record it" in result.compatible.note
    assert made.dataset.head() == head


@pytest.mark.net
def test_new_version_that_an_external_engine_reports_is_recorded(
    deriving: Deriving, runtime: SparkRuntime, source: DatasetEntry
) -> None:
    version: str | None = "1.16"

    def work(request: TransformRequest) -> tuple[TransformSuccess, ResponseExtension]:
        (path,) = request.query_inputs[0].data_paths
        table = pq.read_table(path)
        numbers = range(request.next_offset, request.next_offset + len(table))
        offsets = pa.array(numbers, table.schema.field(0).type)
        pq.write_table(table.set_column(0, table.schema.field(0), offsets), request.new_data_path)
        interval = OffsetInterval(request.next_offset, numbers[-1])
        return TransformSuccess(interval, request.query_inputs[0].explicit_watermarks[-1].event_time), (
            ResponseExtension(version)
        )

    made = deriving.derivative("SELECT event_time, city, x FROM input")
    transform = made.dataset.state().transform
    assert transform is not None
    flink = replace(transform.transform, engine="flink", version=None)
    deriving.commit(made, [replace(transform, transform=flink)])
    with lying(work) as engine:
        address = f"grpc://{engine._target}"
        deriving.workspace.config = set_value(deriving.workspace.config, "engines.flink", address)
        deriving.engine = engine
        deriving.run(made)
        assert version_of(made) == "1.16"
        version = "1.20"
        deriving.rows(source, (3, "a", 4))
        with pytest.raises(
            Unsupported, match=r"for version 1\.16 of the engine, but this is 1\.20"
        ) as refused:
            deriving.run(made)
        assert "odf verify --compatible output" in str(refused.value.hint)
        result = verify(deriving, made, runtime)
        assert result.compatible and (result.compatible.made_by, result.compatible.version) == (
            "1.16",
            "1.20",
        )
        assert version_of(made) == "1.20" and deriving.run(made) == 1
        version = None
        result = verify(deriving, made, runtime)
        assert result.compatible and result.compatible.note == "the engine reports no version"
        assert version_of(made) == "1.20"


@pytest.fixture
def podman(tmp_path: Path, runtime: SparkRuntime, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageStandIn]:
    server = EngineServer(runtime, "127.0.0.1:0")
    server.start()
    yield ImageStandIn(tmp_path / "bin", monkeypatch, f"grpc://127.0.0.1:{server.port}")
    server.stop()


@pytest.mark.net
def test_configured_image_replaces_the_recorded_one(
    deriving: Deriving, runtime: SparkRuntime, source: DatasetEntry, podman: ImageStandIn
) -> None:
    repository = IMAGES["flink"].partition(":")[0]
    first, second = (f"{repository}@sha256:{digit * 64}" for digit in "ab")
    made = derivative(deriving, "flink", "SELECT event_time, city, x FROM input", "output")
    for digest, expected in (("a", first), ("b", first)):  # the tag moves
        (podman.folder / "digest").write_text(digest * 64)
        with engines_for(deriving.workspace, made, lambda: runtime) as deriving.engine:
            deriving.run(made)
        assert version_of(made) == expected
        deriving.rows(source, (4, "a", 4))
    result = verify(deriving, made, runtime)
    assert result.valid and result.compatible and result.compatible.version == second
    with engines_for(deriving.workspace, made, lambda: runtime) as deriving.engine:
        assert deriving.run(made) == 1
    assert version_of(made) == second and podman.calls("run")[-1][-1] == second
