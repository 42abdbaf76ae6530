"""Citations and crates of a dataset with 1,000 blocks, by the command line.

The commands are compared with the same commands on a dataset of 10 blocks, which shows the cost of their
start, and a crate with data with a copy of the dataset's folder. Each block adds a slice of three rows.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from odf_engine.workspace.workspace import Workspace
from tests.bench.measure import Figure, Metric, Size, median
from tests.sync import builders

METRICS = {
    "text": Metric("odf cite of 1,000 blocks", "10 blocks", "<= 2 s"),
    "version": Metric("odf cite --at a block", "10 blocks", "<= 2 s"),
    "crate": Metric("odf cite -o of 1,000 blocks", "10 blocks", "<= 2.5x"),
    "data": Metric("odf cite -o --with-data", "cp -r"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    workspace, rounds = Workspace.init(folder / "here"), size.pick(5, 1)
    long = builders.make_root(workspace, "long", slices=size.pick(1000, 20) - 2)
    builders.make_root(workspace, "short", slices=8)
    workspace.close()

    def cite(name: str, *options: str) -> float:
        return median(lambda: _cite(workspace.folder, name, *options), rounds)

    def copy() -> None:
        shutil.rmtree(folder / "copy", ignore_errors=True)
        subprocess.run(["cp", "-r", long.dataset.folder, folder / "copy"], check=True)

    crate = str(folder / "crate.zip")
    return [
        METRICS["text"].figure(cite("long"), cite("short")),
        METRICS["version"].figure(cite("long", "--at", str(size.pick(900, 15))), cite("short", "--at", "8")),
        METRICS["crate"].figure(cite("long", "-o", crate), cite("short", "-o", crate)),
        METRICS["data"].figure(cite("long", "-o", crate, "--with-data"), median(copy, rounds)),
    ]


def _cite(workspace: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "odf_tui", "-q", "cite", *arguments], cwd=workspace, check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
