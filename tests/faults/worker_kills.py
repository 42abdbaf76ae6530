"""Kills the worker at system calls of pulls with Spark, chosen at random.

    python -m tests.faults.worker_kills [KILLS] [SEED]

Two workspaces get the same files, one after the other. In one of them strace kills the worker during pulls
of two root datasets and of three derivatives: a windowed sum, a running grouping and a join. After every
kill the chains contain the heads from before the pull, and ``odf fsck`` repairs everything. In the end both
workspaces have the same rows in the same order, and everything is valid by replay.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from odf_engine.data.digest import LogicalHasher
from odf_engine.data.parquet.slices import read_batches
from odf_engine.workspace.workspace import Workspace
from tests.manifests import DERIVATIVE
from tests.waiting import wait_until

CALLS = {"openat": 60, "write": 30, "fsync": 12, "rename": 8, "unlink": 8, "mkdir": 6}
"""System calls, and the highest number of one at which the worker is killed."""
ROOT = """
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch:
        kind: FilesGlob
        path: {name}/*.csv
        order: ByName
      read: {{kind: Csv, header: true, schema: ["event_time TIMESTAMP", "city STRING", "x DOUBLE"]}}
      merge: {{kind: Append}}
"""
QUERIES = {
    "windowed": "SELECT window.start AS event_time, city, sum(x) AS s, count(*) AS n "
    "FROM l GROUP BY window(event_time, '1 day'), city",
    "running": "SELECT max(event_time) AS event_time, city, sum(x) AS s FROM l GROUP BY city",
    "joined": "SELECT l.event_time, l.city, l.x, r.x AS y FROM l LEFT JOIN r ON l.city = r.city "
    "AND r.event_time BETWEEN l.event_time AND l.event_time + INTERVAL 2 HOURS",
}


def make(folder: Path) -> None:
    odf(folder, "init")
    texts = [ROOT.format(name=name) for name in ("l", "r")]
    inputs = ", ".join(f"{{datasetRef: {name}, alias: {name}}}" for name in ("l", "r"))
    for name, query in QUERIES.items():
        used = inputs if name == "joined" else "{datasetRef: l, alias: l}"
        texts.append(DERIVATIVE.format(name=name, inputs=used, query=query))
    (folder / "all.yaml").write_text("---".join(texts))
    odf(folder, "add", "all.yaml")
    for name in ("l", "r"):
        (folder / name).mkdir()


def feed(folder: Path, number: int) -> None:
    for name in ("l", "r"):
        chance = random.Random(f"{name}{number}")
        lines = [
            f"2024-01-{1 + number:02d}T{chance.randrange(24):02d}:{chance.randrange(60):02d}:00Z,"
            f"c{chance.randrange(9)},{chance.random()}\n"
            for _ in range(5000)
        ]
        (folder / name / f"{number:03d}.csv").write_text("event_time,city,x\n" + "".join(lines))


def odf(folder: Path, *arguments: str, code: int | None = 0) -> Any:
    command = [sys.executable, "-m", "odf_tui", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert code is None or done.returncode == code, done.stderr
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


def killed(folder: Path, chance: random.Random) -> tuple[str, bool]:
    """Kill the worker at one system call of a pull; return which one, and whether it was reached."""
    worker = odf(folder, "worker", "start", "--json")["status"]["pid"]
    odf(folder, "sql", "SELECT 1")  # Java runs from now on: only the worker itself is traced
    name = chance.choice(list(CALLS))
    number = chance.randint(1, CALLS[name])
    tracer = subprocess.Popen(
        [
            "strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={name}",
            "-e", f"inject={name}:signal=KILL:when={number}", "-p", str(worker),
        ],
        stderr=subprocess.PIPE,
    )  # fmt: skip
    status = Path(f"/proc/{worker}/status")
    wait_until(lambda: "TracerPid:\t0" not in status.read_text() or tracer.poll() is not None)
    assert tracer.poll() is None, tracer.communicate()[1]
    odf(folder, "pull", "--all", code=None)
    reached = not status.exists() or "State:\tZ" in status.read_text()
    tracer.terminate()
    tracer.communicate()
    return f"{name} #{number} of a thread", reached


def heads(folder: Path) -> dict[str, str]:
    return {str(entry.alias): str(entry.dataset.state().head) for entry in Workspace(folder).datasets()}


def chains(folder: Path) -> dict[str, list[str]]:
    found = Workspace(folder).datasets()
    return {str(entry.alias): [str(block.hash) for block in entry.dataset.blocks()] for entry in found}


def contents(folder: Path) -> dict[str, str]:
    """The logical hash of all rows of each dataset, without the times at which they were added."""
    found: dict[str, str] = {}
    for entry in Workspace(folder).datasets():
        hasher: LogicalHasher | None = None
        for row in entry.dataset.slices():
            for batch in read_batches(entry.dataset.slice_path(row)):
                kept = batch.drop_columns(["system_time"])
                hasher = hasher or LogicalHasher(kept.schema)
                hasher.update(kept)
        found[str(entry.alias)] = str(hasher.finish()) if hasher else "empty"
    return found


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    chance = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    root = Path(tempfile.mkdtemp(prefix="odf-kills-"))
    calm, stormy = root / "calm", root / "stormy"
    try:
        for folder in (calm, stormy):
            folder.mkdir()
            make(folder)
        reached = landed = 0
        for number in range(kills):
            feed(stormy, number)
            before = heads(stormy)
            place, was_reached = killed(stormy, chance)
            for name, chain in chains(stormy).items():
                assert before[name] in chain, f"{name} lost its head"
            reached += was_reached
            landed += was_reached and heads(stormy) != before
            print(f"kill {number + 1}: {place}{'' if was_reached else ', not reached'}", flush=True)
            if chance.random() < 0.5:
                odf(stormy, "fsck", "--repair", "--now")
                odf(stormy, "fsck")
        odf(stormy, "pull", "--all")
        for number in range(kills):
            feed(calm, number)
            odf(calm, "pull", "--all")
        assert contents(calm) == contents(stormy), (contents(calm), contents(stormy))
        assert odf(stormy, "verify", "--all", "--json")["valid"]
        print(f"{reached} kills, {landed} of them after a commit: the same rows, all of it valid by replay")
    finally:
        for folder in (calm, stormy):
            odf(folder, "worker", "stop", code=None)
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
