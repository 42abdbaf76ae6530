"""Two processes that push different blocks to one remote dataset at the same time, many times.

    python -m tests.sync.push_race WORKSPACE URL

is one of the processes: it pushes the only dataset of a workspace for each line of its standard input.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from odf_engine.base.progress import Reporter
from odf_engine.errors import Conflict, OdfError
from odf_engine.net.credentials import Credentials, RemoteAccess
from odf_engine.sync.pull import pull_dataset
from odf_engine.sync.push import push
from odf_engine.sync.remotes.transports import open_remote
from odf_engine.workspace.workspace import Workspace
from tests.sync.builders import copy_into, describe, make_root
from tests.sync.push_helpers import chain, read_whole, send

_PROJECT = Path(__file__).parents[2]


def run_push_race(here: Workspace, there: Workspace, url: str, rounds: int) -> tuple[int, int]:
    """Run the race; the loser of a round discards its block, as a user would.

    Returns:
        Number of rounds with exactly one winner whose chain is the remote one, and of other rounds.
    """
    entry = make_root(here)
    access = RemoteAccess(here.config, Credentials(here.odf), Reporter())
    remote = open_remote(url, access)
    send(entry, remote)
    entries = [entry, copy_into(there, entry)]
    racers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.sync.push_race", str(workspace.folder), url],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_PROJECT, bufsize=1,
        )
        for workspace in (here, there)
    ]  # fmt: skip
    right = 0
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        known = chain(entry)
        for number in range(rounds):
            for name, each in zip("ab", entries, strict=True):
                describe(each, f"{name} {number}")
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write("go\n")
            outcomes = [racer.stdout.readline().strip() for racer in racers if racer.stdout is not None]
            blocks, known = len(known), read_whole(remote, known)
            winners = [each for each, outcome in zip(entries, outcomes, strict=True) if outcome == "updated"]
            losers = [each for each, outcome in zip(entries, outcomes, strict=True) if outcome == "conflict"]
            if len(winners) == len(losers) == 1 and chain(winners[0]) == known and len(known) == blocks + 1:
                right += 1
            else:
                print(f"round {number}: {outcomes}", flush=True)
            for loser in losers:
                pull_dataset(loser, remote, Reporter(), force=True, parallel=1)
    finally:
        for racer in racers:
            racer.communicate()
    return right, rounds - right


def main() -> None:
    workspace = Workspace(Path(sys.argv[1]))
    access = RemoteAccess(workspace.config, Credentials(workspace.odf), Reporter())
    remote = open_remote(sys.argv[2], access)
    remote.head()  # imports the libraries
    print("ready", flush=True)
    for _ in sys.stdin:
        (entry,) = workspace.datasets()
        try:
            print(push(entry, remote, Reporter(), force=False, parallel=2).status, flush=True)
        except Conflict:
            print("conflict", flush=True)
        except OdfError as error:
            print(str(error).replace("\n", " "), flush=True)


if __name__ == "__main__":
    main()
