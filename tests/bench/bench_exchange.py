"""Pulling from elsewhere: against curl without any check, onto long chains, and with kills in between.

    python tests/bench/bench_exchange.py [simple] [smart] [chain] [kills [COUNT [SEED]]]

``simple``: 1,000 slices of 1 MB and 1,003 blocks from nginx, by the simple protocol; ``smart``: the same
from ``odf serve``; each against ``curl --parallel`` of the same files from the same server, in turns.
``chain``: 10 new blocks onto 100,000 and onto 100. ``kills``: a pull is ended by SIGKILL at random moments.
Without arguments: all of them. nginx and curl have to be there.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from common import table, timed, verdict

from odf_engine.identity.refs import DatasetAlias
from odf_engine.progress import Reporter
from odf_engine.sync.places import Access, open_remote
from odf_engine.sync.pull import pull_into, pull_new
from odf_engine.workspace.credentials import Credentials
from odf_engine.workspace.workspace import DatasetEntry, Workspace
from tests.sync import builders

SLICES, SLICE_BYTES = 1000, 1 << 20
ROUNDS = 3
NGINX = """
worker_processes auto; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 256; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{ listen 127.0.0.1:{port}; root {root}; default_type application/octet-stream; }}
}}
"""


def main() -> None:
    wanted = sys.argv[1:]
    if wanted[:1] == ["--pull"]:
        pull(Path(wanted[1]), wanted[2])
        return
    kinds: dict[str, Callable[..., None]] = {
        "simple": simple, "smart": smart, "chain": chain, "kills": kills,
    }  # fmt: skip
    if wanted[:1] == ["kills"]:
        kills(*map(int, wanted[1:]))
        return
    for name in wanted or list(kinds):
        kinds[name]()


# --- Against curl ----------------------------------------------------------------------------------


def simple() -> None:
    """From nginx, by the simple protocol."""
    with scratch() as folder, large(folder) as entry, nginx(folder, entry.dataset.folder) as url:
        against_curl("simple protocol, from nginx", folder, entry, url, url, 1.5)


def smart() -> None:
    """From ``odf serve``, by the smart protocol."""
    with scratch() as folder, large(folder) as entry, served(folder / "there") as url:
        base = f"{url}{entry.alias}/"
        against_curl("smart protocol, from odf serve", folder, entry, base, f"odf+{base}", 1.3)


def against_curl(what: str, folder: Path, entry: DatasetEntry, files: str, url: str, goal: float) -> None:
    names = ["refs/head", *(name for name in builders.objects(entry.dataset.folder) if "head" not in name)]
    curls, pulls = [], []
    for _ in range(ROUNDS):
        curls.append(curl(folder / "curl", files, names))
        pulls.append(pull_apart(folder / "here", url))
    print(f"curl {rounded(curls)}   pull {rounded(pulls)}")
    ours, theirs = statistics.median(pulls), statistics.median(curls)
    size = f"{SLICES:,} slices of {SLICE_BYTES >> 20} MiB, {entry.dataset.state().blocks:,} blocks"
    table(
        f"Pull, checked ({what})",
        [(size, f"{ours:.2f} s", f"{theirs:.2f} s by curl --parallel", verdict(ours / theirs, goal))],
    )


def curl(folder: Path, url: str, names: list[str]) -> float:
    """Seconds for all files, into a fresh folder."""
    shutil.rmtree(folder, ignore_errors=True)
    for kind in ("refs", "blocks", "data"):
        (folder / kind).mkdir(parents=True)
    listing = folder / "list"
    listing.write_text("".join(f'url = "{url}{name}"\noutput = "{folder}/{name}"\n' for name in names))
    command = ["curl", "--parallel", "--silent", "--show-error", "--fail", "--config", str(listing)]
    seconds = timed(lambda: subprocess.run(command, check=True))
    assert len(list((folder / "data").iterdir())) == SLICES
    shutil.rmtree(folder)
    return seconds


def pull_apart(folder: Path, url: str) -> float:
    """Seconds of a pull into a fresh workspace, in a process of its own that is running already."""
    shutil.rmtree(folder, ignore_errors=True)
    Workspace.init(folder)
    command = [sys.executable, __file__, "--pull", str(folder), url]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert found["bytes"] == SLICES * SLICE_BYTES, found
    shutil.rmtree(folder)
    return found["seconds"]


def pull(folder: Path, url: str) -> None:
    """Pulls into a workspace, and says how long that took (in a process of its own)."""
    workspace = Workspace(folder)
    reporter = Reporter()
    remote = open_remote(url, Access(workspace.config, Credentials(workspace.odf), reporter))
    began = time.perf_counter()
    here = workspace.datasets()
    parallel = workspace.config.sync.parallel
    if here:
        pulled = pull_into(here[0], remote, reporter, force=False, parallel=parallel)
    else:
        _, pulled = pull_new(workspace, DatasetAlias(None, "pulled"), remote, reporter, parallel=parallel)
    seconds = time.perf_counter() - began
    remote.close()
    print(json.dumps({"seconds": seconds, "blocks": pulled.blocks, "bytes": pulled.bytes}))


@contextlib.contextmanager
def large(folder: Path) -> Iterator[DatasetEntry]:
    """A dataset of 1,000 slices and 1,003 blocks."""
    entry = builders.make_root(Workspace.init(folder / "there"))
    builders.describe(entry, "to be measured")
    builders.add_files(entry, SLICES, SLICE_BYTES)
    assert entry.dataset.state().blocks == SLICES + 3
    subprocess.run(["sync"], check=True)
    yield entry


# --- Onto long chains ------------------------------------------------------------------------------


def chain() -> None:
    """Ten new blocks, each with a slice, onto chains of 100 and 100,000."""
    seconds: dict[int, list[float]] = {100: [], 100_000: []}
    with scratch() as folder:
        there, here = Workspace.init(folder / "there"), Workspace.init(folder / "here")
        pairs: dict[int, tuple[DatasetEntry, DatasetEntry]] = {}
        for blocks in seconds:
            source = builders.make_root(there, f"of-{blocks}")
            builders.add_blocks(source, blocks - 2)
            pairs[blocks] = source, builders.copy_into(here, source)
            pairs[blocks][1].dataset.state()  # the index knows it
        with nginx(folder, there.odf / "datasets") as url:
            for _ in range(7):
                for blocks, (source, entry) in pairs.items():
                    builders.add_slices(source, 10)
                    seconds[blocks].append(timed(lambda: ten(here, entry, f"{url}{source.id.multibase}/")))
    short, long = (statistics.median(found) for found in seconds.values())
    print(f"onto 100 {rounded(seconds[100], 3)}   onto 100,000 {rounded(seconds[100_000], 3)}")
    table(
        "Pull onto a chain",
        [("10 blocks onto 100,000", f"{long * 1e3:.1f} ms", f"{short * 1e3:.1f} ms onto 100",
          verdict(long / short, 1.5))],
    )  # fmt: skip


def ten(here: Workspace, entry: DatasetEntry, url: str) -> None:
    reporter = Reporter()
    remote = open_remote(url, Access(here.config, Credentials(here.odf), reporter))
    assert pull_into(entry, remote, reporter, force=False, parallel=4).blocks == 10
    remote.close()


# --- Servers ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def nginx(folder: Path, root: Path) -> Iterator[str]:
    """A plain nginx over a folder; its URL."""
    port = free_port()
    for each in (folder, folder / "there", folder / "there" / ".odf"):
        each.chmod(0o755)  # its workers are nobody
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, port=port, root=root))
    with running(["nginx", "-c", str(config)], port):
        yield f"http://127.0.0.1:{port}/"


@contextlib.contextmanager
def served(workspace: Path) -> Iterator[str]:
    """``odf serve`` of a workspace; its URL."""
    port = free_port()
    command = [sys.executable, "-m", "odf_tui", "--workspace", str(workspace), "serve", "--port", str(port)]
    with running(command, port):
        yield f"http://127.0.0.1:{port}/"


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(20)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="odf-exchange-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def rounded(values: list[float], digits: int = 2) -> str:
    return " ".join(f"{value:.{digits}f}" for value in values)


# --- Kills -----------------------------------------------------------------------------------------


def kills(count: int = 200, seed: int = 1) -> None:
    """SIGKILL at random moments of a pull: the head is old or new, and nothing whole comes twice."""


if __name__ == "__main__":
    main()
