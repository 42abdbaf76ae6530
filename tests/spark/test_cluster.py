"""What is looked at before a cluster is used. The same rows on a real one: tests/spark/check_cluster.py."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from odf_engine.base.progress import Reporter
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.runtime import spark_conf as clusters
from odf_engine.spark.runtime.jvm import SparkFailed
from tests.ports import unused_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_unreachable_cluster_master_is_reported() -> None:
    clusters.check_master("local[2]")
    port = unused_port()
    with socket.create_server(("127.0.0.1", port)):
        clusters.check_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")
    with pytest.raises(
        SparkFailed, match=rf"spark://127\.0\.0\.1:{port} does not respond: Connection refused"
    ):
        clusters.check_master(f"spark://127.0.0.1:{port}")


def test_executors_without_the_workspace_are_reported(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters.check_executors(session, tmp_path, tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("odf_engine.spark.runtime.spark_conf.spark_path", lambda path: f"{path}-elsewhere")
    with pytest.raises(SparkFailed, match=f"an executor cannot read and write files in {tmp_path}") as caught:
        clusters.check_executors(session, tmp_path, tmp_path)
    assert "all machines of the cluster share" in str(caught.value.hint)


def test_file_missing_on_an_executor_is_reported(session: SparkSession, tmp_path: Path) -> None:
    file, link = tmp_path / "rows here.csv", tmp_path / "link.csv"
    file.write_text("1\n")
    link.symlink_to(file)
    frame = session.read.schema("a BIGINT").csv(str(link))
    batches = arrow_batches(frame, Reporter())[1]
    file.unlink()
    with pytest.raises(SparkFailed, match=f"Spark cannot find the file {file}") as caught:
        list(batches)
    assert "on a cluster, share the workspace" in str(caught.value.hint)
