"""``odf serve`` with 64 clients that pull at once: all finish, all have it right, and its memory.

    python tests/bench/bench_serve.py [simple] [smart] [SLICES]

Each client pulls a dataset of its own choosing into a workspace of its own: 64 threads in four processes,
which begin together. Without arguments: both protocols, 20 slices of 1 MiB and 1,003 blocks.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from common import table

from odf_engine.identity.names import DatasetAlias
from odf_engine.net.credentials import Credentials, RemoteAccess
from odf_engine.progress import Reporter
from odf_engine.sync import open_remote
from odf_engine.sync.pull import clone_dataset
from odf_engine.workspace.workspace import Workspace
from tests.sync import builders

CLIENTS, PROCESSES = 64, 4
SLICE_BYTES, BLOCKS = 1 << 20, 1003
MOST_MEGABYTES = 300


def main() -> None:
    wanted = sys.argv[1:]
    if wanted[:1] == ["--clients"]:
        clients(Path(wanted[1]), wanted[2], int(wanted[3]))
        return
    slices = int(wanted.pop()) if wanted and wanted[-1].isdigit() else 20
    folder = Path(tempfile.mkdtemp(prefix="odf-serve-"))
    try:
        for protocol in wanted or ["simple", "smart"]:
            measure(folder, protocol, slices)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(folder: Path, protocol: str, slices: int) -> None:
    """Sixty-four pulls at once; the table says how it went."""
    entry = builders.make_root(Workspace.init(folder / protocol / "there"), "shared")
    builders.add_files(entry, slices, SLICE_BYTES)
    builders.add_blocks(entry, BLOCKS - entry.dataset.state().blocks)
    expected = builders.objects(entry.dataset.folder)
    command = [
        sys.executable,
        "-m",
        "odf_tui",
        "serve",
        "-w",
        str(folder / protocol / "there"),
        "--port",
        "0",
    ]
    server = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"] + "shared/"
        idle = memory(server.pid, "VmRSS")
        if protocol == "smart":
            url = f"odf+{url}"
        began = time.perf_counter()
        outcomes = pull_all(folder / protocol, url)
        seconds = time.perf_counter() - began
        peak = memory(server.pid, "VmHWM")
    finally:
        server.terminate()
        ended = server.wait(20)
    right = 0
    for at in range(CLIENTS):
        found = folder / protocol / str(at) / ".odf" / "datasets" / entry.id.multibase
        right += builders.objects(found) == expected
    failed = [each for each in outcomes if each != "updated"]
    size = slices * SLICE_BYTES * CLIENTS / 1e6
    table(
        f"{CLIENTS} clients at once ({protocol} protocol, {slices} slices of 1 MiB, {BLOCKS:,} blocks)",
        [
            ("finished, and right", f"{64 - len(failed)}, {right}", "64", "yes" if right == 64 else "NO"),
            ("memory of the server", f"{peak:.0f} MB ({idle:.0f} idle)", f"{MOST_MEGABYTES} MB",
             "yes" if peak <= MOST_MEGABYTES else "NO"),
            ("all of it", f"{seconds:.1f} s", f"{size / seconds:.0f} MB/s", ""),
            ("exit code after SIGTERM", str(ended), "0", "yes" if ended == 0 else "NO"),
        ],
    )  # fmt: skip
    for problem in sorted(set(failed)):
        print(problem)
    shutil.rmtree(folder / protocol)


def pull_all(folder: Path, url: str) -> list[str]:
    """What became of each pull."""
    each = CLIENTS // PROCESSES
    processes: list[subprocess.Popen[str]] = []
    for at in range(PROCESSES):
        for number in range(each):
            Workspace.init(folder / str(at * each + number))
        command = [sys.executable, __file__, "--clients", str(folder), url, str(at)]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    for process in processes:  # they have loaded what they need
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outcomes: list[str] = []
    for process in processes:
        out, _ = process.communicate(timeout=600)
        outcomes += json.loads(out)
    return outcomes


def clients(folder: Path, url: str, at: int) -> None:
    """Some of the clients, in a process of their own."""
    each = CLIENTS // PROCESSES
    outcomes = ["" for _ in range(each)]

    def pull(number: int) -> None:
        workspace = Workspace(folder / str(at * each + number))
        reporter = Reporter()
        remote = open_remote(url, RemoteAccess(workspace.config, Credentials(workspace.odf), reporter))
        try:
            alias = DatasetAlias(None, "pulled")
            parallel = workspace.config.sync.parallel
            _, pulled = clone_dataset(workspace, alias, remote, reporter, parallel=parallel)
            outcomes[number] = pulled.status
        except Exception as error:  # the table tells of it
            outcomes[number] = f"{type(error).__name__}: {error}"
        finally:
            remote.close()

    print("ready", flush=True)
    sys.stdin.readline()
    threads = [threading.Thread(target=pull, args=(number,)) for number in range(each)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(outcomes))


def memory(pid: int, what: str) -> float:
    """Megabytes that a process holds (VmRSS), or held at most (VmHWM)."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1000


if __name__ == "__main__":
    main()
