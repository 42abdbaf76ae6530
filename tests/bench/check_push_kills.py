"""Kills pushes to a server that speaks S3 with -9 at random moments.

    python tests/bench/check_push_kills.py [KILLS] [SEED]

After every kill the other place is read as a stranger reads it: its head is the old one or the new one, and
all blocks and data down to the first one are there and right. What was whole is never written again, and at
the end one more push makes the other place equal to the dataset here.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from odf_engine.net.credentials import Credentials, RemoteAccess
from odf_engine.progress import Reporter
from odf_engine.sync import open_remote
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.bench.common import timed
from tests.s3_server import S3Server, s3_server
from tests.sync.builders import add_files, make_root
from tests.sync.pusher import Pusher
from tests.sync.pushing import chain, read_whole, send

FILES, SIZE = 40, 100_000


def storm(workspace: Workspace, url: str, kills: int, chance: random.Random, written: Written) -> None:
    """Kills, looks, and pushes again, so many times."""
    entry = make_root(workspace, slices=1)
    remote = open_remote(url, RemoteAccess(workspace.config, Credentials(workspace.odf), Reporter()))
    send(entry, remote)  # so that the place is there
    add_files(entry, FILES, SIZE)
    pusher = Pusher(workspace, url)
    whole = timed(lambda: (pusher.go(), pusher.outcome()))
    old, new = more(entry)
    before, landed, moved = written(), 0, 0
    for number in range(kills):
        Pusher(workspace, url).kill(chance.uniform(0, whole))
        seen, now = read_whole(remote, known=old), written()
        assert seen in (old, new), f"kill {number + 1}: readers see something else"
        assert before.items() <= now.items(), f"kill {number + 1}: something whole was written again"
        landed += len(now) > len(before)
        before = now
        if seen == new:
            moved += 1
            old, new = more(entry)
    send(entry, remote)
    assert read_whole(remote) == chain(entry)
    assert before.items() <= written().items()
    print(
        f"{url.partition(':')[0]}: {kills} kills within {whole:.2f} s, {landed} of them after something was"
        f" written, {moved} after the head had moved; readers saw the old or the new, nothing went twice",
        flush=True,
    )


Written = Callable[[], dict[str, int]]


def more(entry: DatasetEntry) -> tuple[list[str], list[str]]:
    """The chain before and after there is something new."""
    old = chain(entry)
    add_files(entry, FILES, SIZE, seed=len(old))
    return old, chain(entry)


def in_s3(server: S3Server) -> dict[str, int]:
    """How often each object was written, of those that are there."""
    times: dict[str, int] = {}
    for asked in server.requests:
        name = unquote(asked.path).rpartition("/")[2]
        if asked.command == "PUT" and name.startswith("f16") and asked.condition is None:
            times[name] = times.get(name, 0) + 1
    there = {key.rpartition("/")[2] for key in server.objects}
    return {name: count for name, count in times.items() if name in there}


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    chance = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    root = Path(tempfile.mkdtemp(prefix="odf-kills-"))
    os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    try:
        with s3_server() as server:
            url = f"s3+{server.endpoint}/bucket/numbers/"
            storm(Workspace.init(root / "here"), url, kills, chance, lambda: in_s3(server))
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
