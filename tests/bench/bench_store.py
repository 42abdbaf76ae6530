"""Workspaces in an object store that responds after a delay, compared with local workspaces.

    python tests/bench/bench_store.py [DATASETS] [DELAY_MILLISECONDS]

Prints the requests and the time of a commit, of listing all datasets, of opening a dataset with many blocks,
and of reading the last rows of a large slice. The store is moto's server behind a proxy on this machine.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from odf_engine.views.row_window import RowWindowReader
from odf_engine.workspace.workspace import Workspace
from tests.s3_server import S3Server, s3_server
from tests.sync.builders import add_slices, make_root

_COMMITS = 10
_BLOCKS = 200
_ROWS = 3_000_000


def expire(workspace: Workspace) -> Workspace:
    """Open the workspace as a later command does, for which the store was read long ago."""
    for path in (workspace.odf / "cache" / "store.json", *workspace.odf.glob("datasets/*/info/store.json")):
        os.utime(path, (0, 0))
    return Workspace.find(explicit=workspace.folder)


def measure(server: S3Server, title: str, work: Callable[[], object], count: int = 1) -> float:
    """Print the requests and the time of each of ``count`` repetitions in ``work``; return the time."""
    server.forget()
    start = time.perf_counter()
    work()
    seconds = (time.perf_counter() - start) / count
    requests = len(server.forget()) / count
    print(f"{title:<58} {requests:8.1f} requests {1000 * seconds:9.1f} ms", flush=True)
    return seconds


def copy_store(folder: Path, server: S3Server) -> None:
    """Store the files of a store in a folder as objects, without requests."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            server.objects[f"bucket/many/{path.relative_to(folder)}"] = path.read_bytes()


def list_datasets(workspace: Workspace) -> None:
    found = Workspace.find(explicit=workspace.folder)
    assert found.config, "every command reads the settings"
    assert found.summaries()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    delay = float(sys.argv[2]) / 1000 if len(sys.argv) > 2 else 0.02
    os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    logging.getLogger("werkzeug").setLevel(logging.ERROR)

    def wait(_: Any) -> bool:
        time.sleep(delay)
        return False

    with tempfile.TemporaryDirectory() as name, s3_server() as server:
        folder = Path(name)
        url = f"s3+{server.endpoint}/bucket"
        a, b = Workspace.init(folder / "a", f"{url}/one"), Workspace.init(folder / "b", f"{url}/one")
        entry = make_root(a)
        local = Workspace.init(folder / "local")
        made = Workspace.init(folder / "made", (folder / "store").as_uri())
        for number in range(count):
            make_root(local, f"numbers{number}")
            make_root(made, f"numbers{number}")
        copy_store(folder / "store", server)
        many = Workspace.init(folder / "many", f"{url}/many")
        server.before = wait
        print(f"each request takes {1000 * delay:.0f} ms longer")
        measure(server, "commit of a small slice", lambda: add_slices(entry, _COMMITS), _COMMITS)
        server.before = lambda _: False
        for _ in range(_BLOCKS // 10):
            add_slices(entry, 10)
        add_slices(entry, 1, _ROWS)
        server.before = wait
        measure(server, f"first opening of {_BLOCKS} blocks", lambda: b.resolve("numbers").dataset.state())
        reader = RowWindowReader(b.resolve("numbers").dataset)
        size = reader.slices[-1].size
        measure(server, f"first read of the last rows, {size >> 10} KiB", lambda: last_rows(reader))
        measure(
            server, "the same rows in another process", lambda: last_rows(RowWindowReader(reader._dataset))
        )
        measure(server, f"first list of {count} datasets", lambda: list_datasets(many))
        list_datasets(local)
        base = min(
            measure(server, "list of a local workspace", lambda: list_datasets(local)) for _ in range(3)
        )
        expire(many)
        old = measure(server, "list after store.refreshSeconds", lambda: list_datasets(many))
        warm = min(measure(server, "list with a warm cache", lambda: list_datasets(many)) for _ in range(3))
        print(f"warm ÷ local: {warm / base:.2f} (goal: at most 1.5); after refreshSeconds: {old / base:.1f}")


def last_rows(reader: RowWindowReader) -> None:
    assert reader.window(reader.row_count - 20, 20).num_rows == 20


if __name__ == "__main__":
    main()
