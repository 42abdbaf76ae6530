"""Workspaces in an object store that responds after 20 ms, compared with a local workspace.

The requests and the time of a commit, of opening a dataset, of reading rows and of listing 1,000 datasets are
measured. The store is the server of moto behind a proxy on this machine.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from odf_engine.base.settings import save, set_value
from odf_engine.rows.row_window import RowWindowReader
from odf_engine.workspace.workspace import Workspace
from tests.bench.measure import Figure, Metric, Size, timed
from tests.s3_server import S3Server, s3_server
from tests.sync.builders import add_slices, make_root

OPERATIONS = {
    "commit": Metric("commit of a small slice"),
    "open": Metric("first opening of 200 blocks"),
    "rows": Metric("first read of the last rows of a large slice"),
    "rows again": Metric("the same rows in another process"),
    "list": Metric("first list of the datasets"),
    "checked list": Metric("first list, with a check of all heads"),
    "refresh": Metric("list after store.refreshSeconds", "local workspace", "<= 2x"),
    "warm list": Metric("list with a warm cache", "local workspace", "<= 1.5x"),
}
METRICS = {
    name: metric
    for key, operation in OPERATIONS.items()
    for name, metric in (
        (key, operation),
        (f"{key}: requests", Metric(f"{operation.what}: requests", unit="requests")),
    )
}


def run(size: Size, folder: Path) -> list[Figure]:
    os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with s3_server() as server:
        return measure(size, folder, server)


def measure(size: Size, folder: Path, server: S3Server) -> list[Figure]:
    figures: list[Figure] = []

    def add(
        name: str,
        work: Callable[[], object],
        *,
        calls: int = 1,
        turns: int = 1,
        baseline: float | None = None,
    ) -> None:
        seconds: list[float] = []
        for _ in range(turns):
            server.forget()
            seconds.append(timed(work) / calls)
        figures.append(METRICS[name].figure(min(seconds), baseline))
        figures.append(METRICS[f"{name}: requests"].figure(len(server.forget()) / calls))

    one = f"s3+{server.endpoint}/bucket/one"
    writer, reader = Workspace.init(folder / "a", one), Workspace.init(folder / "b", one)
    entry = make_root(writer)
    local, many = make_workspaces(folder, server, size.pick(1000, 20))
    url = many.config.store.url
    delay(server, 0.02)
    add("commit", lambda: add_slices(entry, 10), calls=10)
    delay(server, 0)
    for _ in range(size.pick(20, 2)):
        add_slices(entry, 10)
    add_slices(entry, 1, size.pick(3_000_000, 30_000))
    delay(server, 0.02)
    add("open", lambda: reader.resolve("numbers").dataset.state())
    rows, again = (RowWindowReader(reader.resolve("numbers").dataset) for _ in range(2))
    add("rows", lambda: read_last_rows(rows))
    add("rows again", lambda: read_last_rows(again))
    add("list", lambda: list_datasets(Workspace.init(folder / "first", url)))
    baseline = min(timed(lambda: list_datasets(local)) for _ in range(4))
    add("refresh", lambda: refresh_datasets(many), turns=3, baseline=baseline)
    add("warm list", lambda: list_datasets(many), turns=3, baseline=baseline)
    expire_heads(server)
    add("checked list", lambda: list_datasets(Workspace.init(folder / "checked", url)))
    return figures


def make_workspaces(folder: Path, server: S3Server, datasets: int) -> tuple[Workspace, Workspace]:
    """Create a local workspace, and one in the server that has read its datasets, without requests."""
    local = Workspace.init(folder / "local")
    made = Workspace.init(folder / "made", (folder / "store").as_uri())
    for number in range(datasets):
        make_root(local, f"numbers{number}")
        make_root(made, f"numbers{number}")
    made.close()
    for path in (folder / "store").rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            server.objects[f"bucket/many/{path.relative_to(folder / 'store')}"] = path.read_bytes()
    save(set_value(made.config, "store.url", f"s3+{server.endpoint}/bucket/many/"), made.config_path)
    return local, Workspace.find(explicit=made.folder)


def delay(server: S3Server, seconds: float) -> None:
    """Delay the responses of the server."""

    def wait(_: object) -> bool:
        time.sleep(seconds)
        return False

    server.before = wait


def expire(workspace: Workspace) -> None:
    """Make the cache of the store as old as after ``store.refreshSeconds``."""
    caches = (workspace.odf / "cache").glob("store*.json")
    for path in (*caches, *workspace.odf.glob("datasets/*/info/store.json")):
        os.utime(path, (0, 0))


def expire_heads(server: S3Server) -> None:
    """Let more than an hour pass since all heads were compared with the list."""
    key = "bucket/many/odf-heads.json"
    server.objects[key] = msgspec.json.encode(msgspec.json.decode(server.objects[key]) | {"checked": 1.0})


def list_datasets(workspace: Workspace) -> None:
    opened = Workspace.find(explicit=workspace.folder)
    assert opened.config, "every command reads the settings"
    assert opened.overview()


def refresh_datasets(workspace: Workspace) -> None:
    expire(workspace)
    list_datasets(workspace)


def read_last_rows(reader: RowWindowReader) -> None:
    assert reader.window(reader.row_count - 20, 20).num_rows == 20
