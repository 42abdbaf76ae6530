"""Pulls from nginx (simple protocol) and ``odf serve`` (smart protocol), compared with curl without checks.

There are 1,000 slices of 1 MiB and 1,003 blocks, which ``curl --parallel`` gets from the same server, in
turns. Downloads by curl are not checked: on two cores, the hashes of 1 GiB alone take about as long as curl.
Therefore pulls are also compared with curl, followed by two processes of ``openssl dgst``.

A pull of 10 blocks onto a chain of 100,000 blocks, and a push of 2 blocks from it, are compared with a chain
of 100 blocks. A chain of 10,000 blocks is pulled by the smart protocol over a network with a latency of 100
ms; the simple protocol would need a round trip for each block, whose name only the next block has.
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
from odf_engine.sync.push import push
from odf_engine.sync.remotes.base import RemoteDataset
from odf_engine.sync.remotes.transports import open_remote
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.bench.measure import Figure, Metric, Size, require, run_in_process, timed
from tests.bench.servers import run_nginx, run_odf_serve, run_slow_network
from tests.sync import builders

SLICE_BYTES = 1 << 20
METRICS = {
    "simple": Metric("pull of 1 GiB from nginx", "curl --parallel", "<= 1.2x"),
    "simple: checked": Metric("pull of 1 GiB from nginx", "curl, then openssl dgst", "<= 1x"),
    "smart": Metric("pull of 1 GiB from odf serve", "curl --parallel", "<= 1.4x"),
    "smart: checked": Metric("pull of 1 GiB from odf serve", "curl, then openssl dgst", "<= 1x"),
    "latency": Metric("smart pull of 10,000 blocks over 100 ms latency", "", "<= 20 s"),
    "pull": Metric("pull of 10 blocks onto a long chain", "onto 100 blocks", "<= 1.5x"),
    "push": Metric("push of 2 blocks of a long chain", "of 100 blocks", "<= 1.5x"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    require("nginx", "curl", "openssl")
    slices, rounds = size.pick(1000, 20), size.pick(3, 1)
    there = Workspace.init(folder / "there")
    entry = builders.make_root(there)
    builders.describe(entry, "to be measured")
    builders.add_files(entry, slices, SLICE_BYTES)
    subprocess.run(["sync"], check=True)
    with run_nginx(folder, entry.dataset.folder) as url:
        figures = compare_with_curl("simple", folder, entry, (url, url), rounds)
    with run_odf_serve(folder / "there") as (base, _):
        url = f"{base}{entry.alias}/"
        figures += compare_with_curl("smart", folder, entry, (url, f"odf+{url}"), rounds)
        figures.append(measure_latency(folder, there, base, size.pick(10_000, 100)))
    return figures + measure_long_chain(folder / "chains", size.pick(100_000, 1000), size.pick(7, 1))


def compare_with_curl(
    name: str, folder: Path, entry: DatasetEntry, urls: tuple[str, str], rounds: int
) -> list[Figure]:
    """Download all files by curl, and pull the dataset, in turns. The URLs are those of curl and the pull."""
    names = ["refs/head", *(name for name in builders.objects(entry.dataset.folder) if "head" not in name)]
    curls: list[float] = []
    checks: list[float] = []
    pulls: list[float] = []
    for _ in range(rounds):
        curls.append(run_curl(folder / "curl", urls[0], names))
        checks.append(run_openssl(entry.dataset.folder / "data"))
        pulls.append(run_in_process(clone, folder / "here", urls[1], entry.dataset.state().data_size))
    pull, curl, check = map(statistics.median, (pulls, curls, checks))
    return [METRICS[name].figure(pull, curl), METRICS[f"{name}: checked"].figure(pull, curl + check)]


def measure_latency(folder: Path, there: Workspace, base: str, blocks: int) -> Figure:
    builders.add_blocks(builders.make_root(there, "small-blocks"), blocks - 2)
    with run_slow_network(f"{base}small-blocks/", 0.1) as url:
        return METRICS["latency"].figure(run_in_process(clone, folder / "here", f"odf+{url}", 0))


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


def run_openssl(folder: Path) -> float:
    """Return the seconds of two processes that hash the files of a folder together."""
    paths = [str(path) for path in folder.iterdir()]

    def run() -> None:
        command = ["openssl", "dgst", "-sha3-256"]
        halves = [
            subprocess.Popen([*command, *paths[start::2]], stdout=subprocess.DEVNULL) for start in (0, 1)
        ]
        assert [half.wait() for half in halves] == [0, 0]

    return timed(run)


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


def measure_long_chain(folder: Path, blocks: int, rounds: int) -> list[Figure]:
    """Pull ten blocks with slices onto a long and a short chain, and push two blocks of it, in turns."""
    folder.mkdir()
    there, here = Workspace.init(folder / "there"), Workspace.init(folder / "here")
    pulls: dict[int, list[float]] = {blocks: [], 100: []}
    pushes: dict[int, list[float]] = {blocks: [], 100: []}
    pairs: dict[int, tuple[DatasetEntry, DatasetEntry]] = {}
    targets: dict[int, str] = {}
    for length in pulls:
        source = builders.make_root(there, f"of-{length}")
        builders.add_blocks(source, length - 2)
        pairs[length] = source, builders.copy_into(here, source)
        pairs[length][1].dataset.state()  # fills the index
        targets[length] = builders.as_repository(source.dataset.folder, folder / f"of-{length}")
    with run_nginx(folder, there.odf / "datasets") as url:
        for _ in range(rounds):
            for length, (source, entry) in pairs.items():
                builders.add_slices(source, 2)
                with closing(open_url(there, targets[length])) as remote:
                    pushes[length].append(timed(lambda: push_two_blocks(source, remote)))  # noqa: B023
                builders.add_slices(source, 8)
                with closing(open_url(here, f"{url}{source.id.multibase}/")) as remote:
                    pulls[length].append(timed(lambda: pull_ten_blocks(entry, remote)))  # noqa: B023
                with closing(open_url(there, targets[length])) as remote:
                    push(source, remote, Reporter(), force=False, parallel=4)
    return [
        METRICS[name].figure(*(statistics.median(seconds) for seconds in times.values()))
        for name, times in (("pull", pulls), ("push", pushes))
    ]


def pull_ten_blocks(entry: DatasetEntry, remote: RemoteDataset) -> None:
    assert pull_dataset(entry, remote, Reporter(), force=False, parallel=4).blocks == 10


def push_two_blocks(entry: DatasetEntry, remote: RemoteDataset) -> None:
    assert push(entry, remote, Reporter(), force=False, parallel=4).blocks == 2
