"""Slices of a store that the executors of a cluster download to the shared folder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from odf_engine.base.progress import Reporter, count_of
from odf_engine.data.parquet.slice_tasks import run_calls
from odf_engine.errors import Unsupported
from odf_engine.mirror.signed_download import SignedDownload
from odf_engine.spark.arrow_batches import cancellable
from odf_engine.spark.executors import slice_writer
from odf_engine.spark.executors.slice_writer import CallPoller, has_executors, send_package
from odf_engine.spark.runtime.jvm import SparkFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_downloads(session: SparkSession, downloads: Sequence[SignedDownload], reporter: Reporter) -> None:
    """Run downloads on executors, if there are any and the objects are large enough.

    Args:
        session: the session of the job.
        downloads: the downloads.
        reporter: receives the bytes, and cancels the job.

    Raises:
        Cancelled: the job was cancelled.
    """
    size = sum(download.size for download in downloads)
    if not has_executors(session) or size < slice_writer.MAX_LOCAL_BYTES:
        return
    context = session.sparkContext
    poller = partial(CallPoller, size=size, calls=len(downloads))
    try:
        with cancellable(session, reporter, poller):
            send_package(context, reporter)
            results = context.parallelize(downloads, len(downloads)).mapPartitions(run_calls).collect()
    except (SparkFailed, Unsupported) as error:
        reporter.log(f"executors cannot download slices: {error.message}", "debug")
        return
    reporter.log(f"{count_of(results.count(True), 'slice')} downloaded by executors", "debug")
