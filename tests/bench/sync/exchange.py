"""Pulls from nginx (simple protocol) and ``odf serve`` (smart protocol), compared with curl without checks.

There are 1,000 slices of 1 MiB and 1,003 blocks, which ``curl --parallel`` gets from the same server, in
turns. A pull of 10 blocks onto a chain of 100,000 blocks is compared with a chain of 100 blocks.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
from contextlib import closing
from pathlib import Path

from odf_engine.base.progress import Reporter
from odf_engine.identity.names import DatasetAlias
from odf_engine.net.credentials import Credentials, RemoteAccess
from odf_engine.sync.pull import clone_dataset, pull_dataset
from odf_engine.sync.remotes.base import RemoteDataset
from odf_engine.sync.remotes.transports import open_remote
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.bench.measure import Figure, Metric, Size, require, run_in_process, timed
from tests.bench.servers import run_nginx, run_odf_serve
from tests.sync import builders

SLICE_BYTES = 1 << 20
METRICS = {
    "simple": Metric("pull of 1 GiB from nginx", "curl --parallel", "<= 1.5x"),
    "smart": Metric("pull of 1 GiB from odf serve", "curl --parallel", "<= 1.3x"),
    "chain": Metric("pull of 10 blocks onto a long chain", "onto 100 blocks", "<= 1.5x"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    require("nginx", "curl")
    slices, rounds = size.pick(1000, 20), size.pick(3, 1)
    there = Workspace.init(folder / "there")
    entry = builders.make_root(there)
    builders.describe(entry, "to be measured")
    builders.add_files(entry, slices, SLICE_BYTES)
    subprocess.run(["sync"], check=True)
    with run_nginx(folder, entry.dataset.folder) as url:
        simple = compare_with_curl("simple", folder, entry, url, url, rounds)
    with run_odf_serve(folder / "there") as (base, _):
        url = f"{base}{entry.alias}/"
        smart = compare_with_curl("smart", folder, entry, url, f"odf+{url}", rounds)
    return [simple, smart, measure_long_chain(folder / "chains", size.pick(100_000, 1000), size.pick(7, 1))]


def compare_with_curl(
    name: str, folder: Path, entry: DatasetEntry, files: str, url: str, rounds: int
) -> Figure:
    names = ["refs/head", *(name for name in builders.objects(entry.dataset.folder) if "head" not in name)]
    curls: list[float] = []
    pulls: list[float] = []
    for _ in range(rounds):
        curls.append(run_curl(folder / "curl", files, names))
        pulls.append(run_in_process(clone, folder / "here", url, entry.dataset.state().data_size))
    return METRICS[name].figure(statistics.median(pulls), statistics.median(curls))


def run_curl(folder: Path, url: str, names: list[str]) -> float:
    """Return the seconds in which curl downloads all files into a new folder."""
    for kind in ("refs", "blocks", "data"):
        (folder / kind).mkdir(parents=True)
    config = folder / "list"
    config.write_text("".join(f'url = "{url}{name}"\noutput = "{folder}/{name}"\n' for name in names))
    command = ["curl", "--parallel", "--silent", "--show-error", "--fail", "--no-progress-meter"]
    seconds = timed(lambda: subprocess.run([*command, "--config", str(config)], check=True))
    assert all((folder / name).is_file() for name in names)
    shutil.rmtree(folder)
    return seconds


def clone(folder: Path, url: str, data_size: int) -> float:
    """Return the seconds of a pull into a new workspace."""
    workspace = Workspace.init(folder)
    with closing(open_url(workspace, url)) as remote:

        def pull() -> None:
            alias, parallel = DatasetAlias(None, "pulled"), workspace.config.sync.parallel
            _, pulled = clone_dataset(workspace, alias, remote, Reporter(), parallel=parallel)
            assert pulled.bytes == data_size

        seconds = timed(pull)
    shutil.rmtree(folder)
    return seconds


def open_url(workspace: Workspace, url: str) -> RemoteDataset:
    return open_remote(url, RemoteAccess(workspace.config, Credentials(workspace.odf), Reporter()))


def measure_long_chain(folder: Path, blocks: int, rounds: int) -> Figure:
    """Pull ten new blocks with slices onto a long and a short chain, in turns."""
    folder.mkdir()
    there, here = Workspace.init(folder / "there"), Workspace.init(folder / "here")
    times: dict[int, list[float]] = {blocks: [], 100: []}
    pairs: dict[int, tuple[DatasetEntry, DatasetEntry]] = {}
    for length in times:
        source = builders.make_root(there, f"of-{length}")
        builders.add_blocks(source, length - 2)
        pairs[length] = source, builders.copy_into(here, source)
        pairs[length][1].dataset.state()  # fills the index
    with run_nginx(folder, there.odf / "datasets") as url:
        for _ in range(rounds):
            for length, (source, entry) in pairs.items():
                builders.add_slices(source, 10)
                with closing(open_url(here, f"{url}{source.id.multibase}/")) as remote:
                    times[length].append(timed(lambda: pull_ten_blocks(entry, remote)))  # noqa: B023
    return METRICS["chain"].figure(*(statistics.median(seconds) for seconds in times.values()))


def pull_ten_blocks(entry: DatasetEntry, remote: RemoteDataset) -> None:
    assert pull_dataset(entry, remote, Reporter(), force=False, parallel=4).blocks == 10
