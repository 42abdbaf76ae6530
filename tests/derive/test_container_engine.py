"""Engines in containers: start, exchange of files, stop, leftovers, images that do not start."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.base.config import Config, FetchConfig
from odf_engine.base.progress import Reporter
from odf_engine.base.settings import set_value
from odf_engine.derive.verify.integrity import verify
from odf_engine.derive.verify.replay import Replay
from odf_engine.engines import container_engine
from odf_engine.engines.container_engine import IMAGES, ContainerEngine
from odf_engine.engines.engine_router import EngineRouter, engines_for
from odf_engine.engines.grpc_server import EngineServer
from odf_engine.engines.spark_engine import SparkEngine
from odf_engine.errors import (
    Cancelled,
    InvalidManifest,
    InvalidQuery,
    SourceUnavailable,
    Unsupported,
    UsageError,
)
from odf_engine.metadata.model import DEFAULT_VOCABULARY, Sql
from odf_engine.metadata.yaml import read_manifests
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from tests.derive.deriving import DERIVATIVE, Deriving
from tests.derive.engine_image import ImageStandIn
from tests.ports import unused_port

pytestmark = pytest.mark.net


@pytest.fixture
def podman(tmp_path: Path, runtime: SparkRuntime, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageStandIn]:
    server = EngineServer(runtime, "127.0.0.1:0")
    server.start()
    yield ImageStandIn(tmp_path / "bin", monkeypatch, f"grpc://127.0.0.1:{server.port}")
    server.stop()


def derivative(deriving: Deriving, engine: str, query: str, name: str = "far") -> DatasetEntry:
    text = DERIVATIVE.replace("engine: spark", f"engine: {engine}")
    manifest = text.format(name=name, inputs="{datasetRef: input, alias: input}", tables="", query=query)
    deriving.workspace.config = set_value(deriving.workspace.config, f"engines.{engine}", "container")
    (made,) = deriving.workspace.add(read_manifests(manifest, "test"))
    return made


WINDOW = "SELECT window.end AS event_time, sum(x) AS s FROM input GROUP BY window(event_time, '1 day')"


def test_a_container_runs_the_transactions_of_a_job(
    deriving: Deriving, runtime: SparkRuntime, podman: ImageStandIn
) -> None:
    root = deriving.root()
    deriving.rows(root, (1, "a", 1), (2, "b", 2))
    far, near = derivative(deriving, "flink", WINDOW), deriving.derivative(WINDOW, name="near")
    cache = deriving.workspace.odf / "cache"
    for day in (3, 5):
        deriving.rows(root, (day - 0.5, "a", day))
        with engines_for(deriving.workspace, far, runtime) as deriving.engine:
            assert deriving.run(far) == 1
            (name,) = podman.running
            deriving.rows(root, (day, "a", day))
            assert deriving.run(far) == 1 and podman.running == [name]  # the same container
        assert podman.running == [] and not list(cache.glob("engine-*"))
    assert len(podman.calls("run")) == 2
    deriving.engine = SparkEngine(runtime)
    deriving.run(near)
    columns = ("offset", "op", "event_time", "s")
    assert deriving.result(far, *columns) == deriving.result(near, *columns)
    assert deriving.newest(far).prev_checkpoint is not None
    # The images of others read and write signed system columns; the dataset has those of a new one.
    table = deriving.table(far)
    assert (table.schema.field("offset").type, table.schema.field("op").type) == (pa.uint64(), pa.uint8())
    (path,) = {pq.read_schema(deriving.workspace.resolve("input").dataset.slice_path(row)).field("op").type
               for row in deriving.workspace.resolve("input").dataset.slices()}  # fmt: skip
    assert path == pa.uint8()

    assert [call[-1] for call in podman.calls("pull")] == [IMAGES["flink"]]
    options = podman.calls("run")[0]
    assert [option for option in options if option.startswith("--volume")] == [
        option for option in options if option.endswith((":/opt/engine/in:ro,Z", ":/opt/engine/out:Z"))
    ]
    assert "--rm" in options
    # The port in the specification, and the port of kamu's images; in a network that leads nowhere.
    assert [option for option in options if option.startswith("--publish")] == [
        "--publish=127.0.0.1::5544", "--publish=127.0.0.1::2884",
    ]  # fmt: skip
    created = [each for each in podman.calls("network") if each[0] == "create"]
    assert all("--internal" in each for each in created) and f"--network={created[0][-1]}" in options
    assert len(created) == 2 and podman.networks == []
    # An invalid query is the user's error.
    wrong = derivative(deriving, "flink", "SELECT event_time, nothing FROM input", "wrong")
    with engines_for(deriving.workspace, wrong, runtime) as deriving.engine, pytest.raises(InvalidQuery):
        deriving.run(wrong)
    assert podman.running == []


@pytest.mark.complete
def test_each_request_gets_a_container_of_risingwave(
    deriving: Deriving, runtime: SparkRuntime, podman: ImageStandIn
) -> None:
    root = deriving.root()
    deriving.rows(root, (1, "a", 1))
    made = derivative(deriving, "risingwave", "SELECT event_time, x FROM input")
    with engines_for(deriving.workspace, made, runtime) as deriving.engine:
        for day in (2, 3):
            deriving.run(made)
            assert podman.running == []
            deriving.rows(root, (day, "a", day))
    assert len(podman.calls("run")) == 2


def test_image_is_recorded_by_digest_and_used_again(
    deriving: Deriving, runtime: SparkRuntime, podman: ImageStandIn
) -> None:
    repository = IMAGES["flink"].partition(":")[0]
    first, second = (f"{repository}@sha256:{digit * 64}" for digit in "ab")
    root = deriving.root()
    deriving.rows(root, (1, "a", 1))
    old, new = (derivative(deriving, "flink", "SELECT event_time, x FROM input", name) for name in "on")
    for day, digest, made, expected in ((2, "a", old, first), (3, "b", old, first), (4, "b", new, second)):
        (podman.folder / "digest").write_text(digest * 64)  # the tag moves
        deriving.rows(root, (day, "a", day))
        with engines_for(deriving.workspace, made, runtime) as deriving.engine:
            assert deriving.run(made) == 1
        transform = made.dataset.state().transform
        assert transform is not None and transform.transform.version == expected
        assert podman.calls("run")[-1][-1] == expected
    with engines_for(deriving.workspace, old, runtime) as deriving.engine:
        replay = Replay(deriving.workspace, old, deriving.engine, Reporter())
        assert verify(old.dataset, Reporter(), replay=replay).valid
    assert podman.calls("run")[-1][-1] == first
    # The author of a dataset cannot choose an image to run.
    config = set_value(deriving.workspace.config, "engines.flink", "container:registry.example/flink:1")
    deriving.workspace.config = config
    count = len(podman.calls("run"))
    deriving.rows(root, (5, "a", 5))
    refused = pytest.raises(Unsupported, match=f"for the image {first}, but the engine's image is registry")
    with engines_for(deriving.workspace, old, runtime) as deriving.engine, refused as caught:
        deriving.run(old)
    assert f"odf config set engines.flink container:{first}" in str(caught.value.hint)
    assert len(podman.calls("run")) == count


@pytest.mark.parametrize(("address", "reached"), [("127.0.0.2/8", True), ("192.0.2.7/24", False)])
def test_container_without_published_port_is_reached_in_a_network_of_this_machine(
    deriving: Deriving,
    runtime: SparkRuntime,
    podman: ImageStandIn,
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    reached: bool,
) -> None:
    """Docker publishes no port of an internal network."""
    port = unused_port("127.0.0.2")
    monkeypatch.setenv("ENGINE_IMAGE_LISTENS", f"127.0.0.2:{port}")
    monkeypatch.setattr(container_engine, "_PORTS", (port,))
    (podman.folder / "host").write_text(address)
    deriving.rows(deriving.root(), (1, "a", 1))
    made = derivative(deriving, "flink", "SELECT event_time, x FROM input")
    if not reached:
        seconds = set_value(deriving.workspace.config, "fetch.containerStartSeconds", "0.5")
        deriving.workspace.config = seconds
    with engines_for(deriving.workspace, made, runtime) as deriving.engine:
        if reached:
            assert deriving.run(made) == 1
        else:
            with pytest.raises(SourceUnavailable, match="did not start"):
                deriving.run(made)
    assert podman.networks == []


@pytest.mark.complete
def test_leftover_containers_and_folders_of_killed_workers_are_removed(
    deriving: Deriving, runtime: SparkRuntime, podman: ImageStandIn
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    leftover, other = f"odf-engine-{ended.pid}-abc", f"odf-engine-{os.getpid()}-abc"
    for name in (leftover, other, "someone"):
        (podman.folder / "running" / name).write_text("")
        (podman.folder / "networks" / name).touch()
    folder = deriving.workspace.odf / "cache" / f"engine-{ended.pid}-abc"
    (folder / "in").mkdir(parents=True)
    deriving.rows(deriving.root(), (1, "a", 1))
    made = derivative(deriving, "flink", "SELECT event_time, x FROM input")
    with engines_for(deriving.workspace, made, runtime) as deriving.engine:
        deriving.run(made)
    assert sorted(podman.running) == sorted([other, "someone"]) and not folder.exists()
    assert sorted(podman.networks) == sorted([other, "someone"])
    (label,) = [each for each in podman.calls("run")[0] if each.startswith("--label=")]
    assert podman.calls("ps")[0][1] == f"--filter={label.removeprefix('--')}"


def test_image_that_does_not_start_is_reported(
    deriving: Deriving, podman: ImageStandIn, runtime: SparkRuntime
) -> None:
    deriving.rows(deriving.root(), (1, "a", 1))
    made = derivative(deriving, "flink", "SELECT event_time, x FROM input")
    head = made.dataset.head()
    workspace = deriving.workspace
    (podman.folder / "broken").touch()
    with engines_for(workspace, made, runtime) as deriving.engine:
        with pytest.raises(SourceUnavailable, match="exec format error") as caught:
            deriving.run(made)
        assert caught.value.where == IMAGES["flink"]
    (podman.folder / "broken").unlink()
    (podman.folder / "slow").touch()
    workspace.config = set_value(workspace.config, "fetch.containerStartSeconds", "0.5")
    with engines_for(workspace, made, runtime) as deriving.engine:
        with pytest.raises(SourceUnavailable, match=r"did not start within 0\.5 s") as caught:
            deriving.run(made)
        assert "containerStartSeconds" in str(caught.value.hint)
    reporter = Reporter()
    reporter.cancel()
    with engines_for(workspace, made, runtime) as deriving.engine, pytest.raises(Cancelled):
        deriving.run(made, reporter)
    (podman.folder / "slow").unlink()
    (podman.folder / "no-network").touch()
    no_network = pytest.raises(
        SourceUnavailable, match="cannot create a network for the container: no subnet"
    )
    with engines_for(workspace, made, runtime) as deriving.engine, no_network:
        deriving.run(made)
    assert podman.running == podman.networks == [] and made.dataset.head() == head
    assert not list((workspace.odf / "cache").glob("engine-*"))


def test_container_engine_requires_an_image_and_a_runtime(
    tmp_path: Path, runtime: SparkRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = set_value(Config(), "engines.mine", "container:registry.example/mine:1")
    router = EngineRouter(config, SparkEngine(runtime), tmp_path)
    assert isinstance(router.get_engine("Mine"), ContainerEngine)
    with pytest.raises(UsageError, match="container"):
        set_value(Config(), "engines.mine", "contained")
    with pytest.raises(InvalidManifest, match="no container image is known"):
        ContainerEngine("mine", "container", FetchConfig(), tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unsupported, match="the engine 'flink' is a container, but neither podman nor docker"):
        ContainerEngine("flink", "container", FetchConfig(), tmp_path).validate(
            Sql(engine="flink"), [], DEFAULT_VOCABULARY, None
        )


def test_real_runtime_reports_a_failed_start_and_leaves_nothing(tmp_path: Path) -> None:
    """An image without an engine: it starts, ends, and nothing is left."""
    program = shutil.which("podman") or shutil.which("docker")
    if program is None or subprocess.run([program, "info"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no working podman or docker")
    image = "docker.io/library/busybox:latest"
    if subprocess.run([program, "image", "inspect", image], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"the image {image} is not present")
    engine = ContainerEngine("flink", f"container:{image}", FetchConfig(container_start_seconds=20), tmp_path)
    with pytest.raises(SourceUnavailable, match="ended while it started"):
        engine.validate(Sql(engine="flink"), [], DEFAULT_VOCABULARY, None)
    listed = subprocess.run([program, "ps", "-a", "--format={{.Names}}"], capture_output=True, check=True)
    assert b"odf-engine" not in listed.stdout
