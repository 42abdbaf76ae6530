"""Shows two workspaces on two networks: one serves, the other pulls, pushes, and loses its line meanwhile.

Run as root: ``python tests/bench/show_namespaces.py``, with ``ip`` and ``tc``. It makes two network
namespaces with a cable of 200 Mbit/s between them, a workspace in each, and prints a table of what the
``odf`` command said.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from odf_engine.workspace.workspace import Workspace
from tests.sync.builders import add_blocks, add_files, make_root

ODF = (sys.executable, "-c", "from odf_tui.main import main; main()")
NEAR, FAR = "odf-near", "odf-far"
ADDRESS = "10.213.7.2"
SLICES, MEGABYTE = 60, 1_000_000


def ip(*words: str) -> None:
    """A command of ``ip``."""
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def two_networks() -> Iterator[None]:
    """Two network namespaces, and a cable between them."""
    for name in (NEAR, FAR):
        ip("netns", "add", name)
    try:
        ip("link", "add", "odf0", "netns", NEAR, "type", "veth", "peer", "name", "odf1", "netns", FAR)
        for name, device, address in ((NEAR, "odf0", "10.213.7.1"), (FAR, "odf1", ADDRESS)):
            ip("-n", name, "address", "add", f"{address}/24", "dev", device)
            ip("-n", name, "link", "set", device, "up")
        rate = ("rate", "200mbit", "burst", "256kb", "latency", "50ms")
        subprocess.run(["tc", "-n", FAR, "qdisc", "add", "dev", "odf1", "root", "tbf", *rate], check=True)
        yield
    finally:
        for name in (NEAR, FAR):
            ip("netns", "del", name)


class Site:
    """A workspace on a network."""

    def __init__(self, network: str, folder: Path) -> None:
        self.network, self.workspace = network, Workspace.init(folder)

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        """Starts ``odf`` there."""
        environment = {name: value for name, value in os.environ.items() if name != "ODF_WORKSPACE"}
        command = ["ip", "netns", "exec", self.network, *ODF, *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command,
            cwd=self.workspace.folder,
            env=environment,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            **more,
        )

    def odf(self, *words: str, given: str = "") -> tuple[int, str]:
        """Runs ``odf`` there: its exit code, and what it said: the last line, or the error."""
        process = self.start(*words)
        out, err = process.communicate(given, timeout=120)
        errors = [line for line in err.splitlines() if line.startswith("error: ")]
        return process.returncode, (errors[:1] or (out or err).strip().splitlines()[-1:])[0]


@contextlib.contextmanager
def serving(site: Site) -> Iterator[str]:
    """``odf serve`` on a site's network; its URL."""
    process = site.start("serve", "--host", ADDRESS, "--port", "0", "--allow-push", "--json")
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.communicate(timeout=20)


def lose_the_line(near: Site, seconds: float) -> tuple[int, str]:
    """A pull whose cable is pulled out for a while in the middle of it."""
    began = time.monotonic()
    process = near.start("pull", "far/large")
    incoming = near.workspace.odf / "incoming"

    def arrived() -> int:
        total = 0
        for path in incoming.rglob("f1*"):
            with contextlib.suppress(OSError):  # it has just got to its place
                total += path.stat().st_size
        return total

    while arrived() < SLICES * MEGABYTE // 4:
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    ip("-n", NEAR, "link", "set", "odf0", "down")
    there = arrived() // MEGABYTE
    time.sleep(seconds)
    ip("-n", NEAR, "link", "set", "odf0", "up")
    out, err = process.communicate(timeout=120)
    said = (out.strip() or err.strip()).splitlines()[-1]
    took = time.monotonic() - began
    lost = f"line lost after {there} MB for {seconds:.0f} s; {took:.1f} s in all"
    return process.returncode, f"{said} ({lost})"


def main() -> None:
    """Prints the table."""
    folder = Path(tempfile.mkdtemp(prefix="odf-networks-"))
    try:
        with two_networks():
            _show(Site(NEAR, folder / "near"), Site(FAR, folder / "far"))
    finally:
        shutil.rmtree(folder)


def _show(near: Site, far: Site) -> None:
    small = make_root(far.workspace, "small", slices=3)
    add_files(make_root(far.workspace, "large"), SLICES, MEGABYTE)
    mine = make_root(near.workspace, "mine", slices=2)
    token = subprocess.run(
        [*ODF, "keys", "token", "new", "near"],
        cwd=far.workspace.folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()[-1]

    def row(what: str, did: tuple[int, str]) -> None:
        print(f"| {what} | {did[0]} | {did[1]} |", flush=True)

    print("| what | exit | what odf said |\n|---|---|---|")
    with serving(far) as url:
        near.odf("repo", "add", "web", url)
        near.odf("repo", "add", "far", f"odf+{url}")
        row("search", near.odf("search", "small", "--repo", "far"))
        row("pull, simple", near.odf("pull", "web/small"))
        add_blocks(small, 5)
        row("pull of what is new, smart", near.odf("pull", "small", "--from", "far"))
        row(f"pull of {SLICES} MB, smart, line lost", lose_the_line(near, 3))
        row("verify", near.odf("verify", "small", "--integrity"))
        row("push without a login", near.odf("push", "mine", "--to", "far"))
        near.odf("repo", "login", "far", "--stdin", given=token)
        row("push", near.odf("push", "mine", "--to", "far"))
        add_blocks(mine, 2)
        row("push of what is new", near.odf("push", "mine"))
        row("status", near.odf("repo", "status", "mine"))
    row("pull, nobody serves", near.odf("pull", "small"))
    assert far.workspace.resolve("mine").dataset.head() == mine.dataset.head()
    for site in (near, far):
        site.odf("worker", "stop")


if __name__ == "__main__":
    main()
