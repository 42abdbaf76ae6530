"""``odf serve`` with 64 clients that pull a dataset at the same time: its memory, and the time.

Each client has a workspace; 64 threads run in four processes, which begin together. The dataset has 20 slices
of 1 MiB and 1,003 blocks. All clients must finish with all objects.
"""

from __future__ import annotations

import multiprocessing.synchronize
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from odf_engine.base.progress import Reporter
from odf_engine.identity.names import DatasetAlias
from odf_engine.sync.pull import clone_dataset
from odf_engine.workspace.workspace import Workspace
from tests.bench.measure import SPAWN, Figure, Metric, Size, read_status, timed
from tests.bench.servers import run_odf_serve
from tests.bench.sync.exchange import open_url
from tests.sync import builders

PROCESSES = 4
SLICE_BYTES = 1 << 20
METRICS = {
    "simple": Metric("64 clients, simple protocol"),
    "simple: memory": Metric("64 clients, simple protocol: memory", "idle server", "<= 300 MB", "MB"),
    "smart": Metric("64 clients, smart protocol"),
    "smart: memory": Metric("64 clients, smart protocol: memory", "idle server", "<= 300 MB", "MB"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    there = Workspace.init(folder / "there")
    entry = builders.make_root(there, "shared")
    builders.add_files(entry, size.pick(20, 2), SLICE_BYTES)
    builders.add_blocks(entry, size.pick(1003, 50) - entry.dataset.state().blocks)
    objects = builders.objects(entry.dataset.folder)
    figures: list[Figure] = []
    for protocol in ("simple", "smart"):
        workspaces = [folder / f"{protocol}-{number}" for number in range(size.pick(64, 8))]
        with run_odf_serve(there.folder) as (url, server):
            idle = read_status("VmRSS", server) / 1000
            url = f"odf+{url}shared/" if protocol == "smart" else f"{url}shared/"
            seconds = pull_together(workspaces, url)
            peak = read_status("VmHWM", server) / 1000
        for workspace in workspaces:
            copy = workspace / ".odf" / "datasets" / entry.id.multibase
            assert builders.objects(copy) == objects, f"{workspace} is not complete"
        figures.append(METRICS[protocol].figure(seconds))
        figures.append(METRICS[f"{protocol}: memory"].figure(peak, idle))
    return figures


def pull_together(workspaces: list[Path], url: str) -> float:
    """Return the seconds in which all clients pull; the processes begin when all of them have started."""
    barrier = SPAWN.Barrier(PROCESSES + 1)
    with ProcessPoolExecutor(PROCESSES, SPAWN, wait_for_others, (barrier,)) as pool:
        parts = [workspaces[number::PROCESSES] for number in range(PROCESSES)]
        futures = [pool.submit(pull_all, part, url) for part in parts]
        barrier.wait(60)
        return timed(lambda: [future.result() for future in futures])


def wait_for_others(barrier: multiprocessing.synchronize.Barrier) -> None:
    barrier.wait(60)


def pull_all(folders: list[Path], url: str) -> None:
    """Pull into new workspaces, each in a thread."""
    with ThreadPoolExecutor(len(folders)) as pool:
        list(pool.map(lambda folder: pull(folder, url), folders))


def pull(folder: Path, url: str) -> None:
    workspace = Workspace.init(folder)
    with closing(open_url(workspace, url)) as remote:
        alias, parallel = DatasetAlias(None, "pulled"), workspace.config.sync.parallel
        clone_dataset(workspace, alias, remote, Reporter(), parallel=parallel)
