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
import os
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import DatasetAlias
from odf_engine.net.credentials import Credentials, RemoteAccess
from odf_engine.progress import Reporter
from odf_engine.sync import open_remote
from odf_engine.sync.pull import clone_dataset, pull_dataset
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.bench.common import table, timed, verdict
from tests.sync import builders

SLICES, SLICE_BYTES = 1000, 1 << 20
ROUNDS = 3
NGINX = """
worker_processes auto; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 256; }}
http {{
  log_format names '$asked'; map $uri $asked {{ ~/([^/]+/[^/]+)$ $1; }}
  access_log {log}; sendfile on; tcp_nopush on; keepalive_requests 100000;
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
    command = [
        "curl",
        "--parallel",
        "--silent",
        "--show-error",
        "--fail",
        "--no-progress-meter",
        "--config",
        str(listing),
    ]
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
    remote = open_remote(url, RemoteAccess(workspace.config, Credentials(workspace.odf), reporter))
    began = time.perf_counter()
    here = workspace.datasets()
    parallel = workspace.config.sync.parallel
    if here:
        pulled = pull_dataset(here[0], remote, reporter, force=False, parallel=parallel)
    else:
        _, pulled = clone_dataset(
            workspace, DatasetAlias(None, "pulled"), remote, reporter, parallel=parallel
        )
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
                    seconds[blocks].append(ten(here, entry, f"{url}{source.id.multibase}/"))
    short, long = (statistics.median(found) for found in seconds.values())
    print(f"onto 100 {rounded(seconds[100], 3)}   onto 100,000 {rounded(seconds[100_000], 3)}")
    table(
        "Pull onto a chain",
        [("10 blocks onto 100,000", f"{long * 1e3:.1f} ms", f"{short * 1e3:.1f} ms onto 100",
          verdict(long / short, 1.5))],
    )  # fmt: skip


def ten(here: Workspace, entry: DatasetEntry, url: str) -> float:
    """Seconds for ten blocks."""
    reporter = Reporter()
    remote = open_remote(url, RemoteAccess(here.config, Credentials(here.odf), reporter))
    began = time.perf_counter()
    pulled = pull_dataset(entry, remote, reporter, force=False, parallel=4)
    seconds = time.perf_counter() - began
    assert pulled.blocks == 10
    remote.close()
    return seconds


# --- Servers ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def nginx(folder: Path, root: Path, *, log: bool = False) -> Iterator[str]:
    """A plain nginx over a folder; its URL. With ``log`` it notes the names of files that are asked for."""
    port = free_port()
    for each in (folder, folder / "there", folder / "there" / ".odf"):
        each.chmod(0o755)  # its workers are nobody
    kept = f"{folder}/access.log names" if log else "off"
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, port=port, root=root, log=kept))
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
    chance = random.Random(seed)
    found = {"old": 0, "new": 0}
    spared = 0
    with scratch() as folder:
        there, half = Workspace.init(folder / "there"), Workspace.init(folder / "half")
        source = builders.make_root(there)
        builders.add_files(source, 15, 200_000)
        old = builders.copy_into(half, source)
        builders.add_files(source, 15, 200_000, seed=1)
        builders.add_blocks(source, 20)
        heads = {"new": [None, source.dataset.head()], "into": [old.dataset.head(), source.dataset.head()]}
        with nginx(folder, there.odf / "datasets", log=True) as url:
            url += f"{source.id.multibase}/"
            longest = max(one_pull(folder / "trial", old if kind == "into" else None, url) for kind in heads)
            for number in range(count):
                kind = ("new", "into")[number % 2]
                fresh(folder / "here", old if kind == "into" else None)
                child = pulling(folder / "here", url)
                time.sleep(chance.uniform(0, longest))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                head = head_of(folder / "here")
                assert head in heads[kind], f"kill {number}: the head is {head}"
                found["old" if head == heads[kind][0] else "new"] += 1
                time.sleep(0.1)  # nginx notes what was cut off when it sees that
                whole = arrived(folder / "here", source)
                (folder / "access.log").write_text("")
                assert os.waitpid(pulling(folder / "here", url), 0)[1] == 0, "the second try failed"
                again = set((folder / "access.log").read_text().split())
                assert not whole & again, "what was whole came twice"
                spared += len(whole)
                check_whole(folder / "here", source)
    print(f"{count} kills: head old after {found['old']}, new after {found['new']}, never anything else;")
    print(f"every second try finished; {spared} objects were whole by then, and none of them came twice")


def one_pull(folder: Path, old: DatasetEntry | None, url: str) -> float:
    fresh(folder, old)
    return timed(lambda: os.waitpid(pulling(folder, url), 0))


def fresh(folder: Path, old: DatasetEntry | None) -> None:
    """A new workspace, with the first half of the dataset in it."""
    shutil.rmtree(folder, ignore_errors=True)
    workspace = Workspace.init(folder)
    if old is not None:
        builders.copy_into(workspace, old).dataset.state()


def pulling(folder: Path, url: str) -> int:
    """A process that pulls, as fast as one starts."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with contextlib.redirect_stdout(None):
                pull(folder, url)
            code = 0
        finally:
            os._exit(code)
    return child


def head_of(folder: Path) -> Multihash | None:
    """The head of the dataset, all of which has to be there; None when there is none."""
    entries = Workspace(folder).datasets()
    if not entries:
        return None
    (entry,) = entries
    at = entry.dataset.head()
    while at is not None:
        found = entry.dataset.block(at).block
        at = found.prev_block_hash
    for row in entry.dataset.slices():
        content = entry.dataset.slice_path(row).read_bytes()
        assert Multihash.sha3_256(content) == row.physical_hash, "a slice is not whole"
    return entry.dataset.head()


def arrived(folder: Path, source: DatasetEntry) -> set[str]:
    """The objects that are whole, by size, wherever in the workspace they are, such as ``data/f1620…``."""
    sizes = builders.objects(source.dataset.folder)
    found = [path for path in (folder / ".odf").rglob("f1620*") if path.is_file()]
    names = {path: f"{path.parent.name}/{path.name}" for path in found}
    return {name for path, name in names.items() if path.stat().st_size == sizes[name]}


def check_whole(folder: Path, source: DatasetEntry) -> None:
    assert head_of(folder) == source.dataset.head()
    (entry,) = Workspace(folder).datasets()
    for name in builders.objects(source.dataset.folder):
        same = (entry.dataset.folder / name).read_bytes() == (source.dataset.folder / name).read_bytes()
        assert same, f"{name} differs"
    assert not [each for each in (folder / ".odf").glob("incoming/*") if each.is_dir()]


if __name__ == "__main__":
    main()
