"""A process that pushes, for tests of several at once and of one that is killed.

    python -m tests.sync.pusher WORKSPACE URL

It pushes the only dataset of a workspace once it is told to, by a line, and says what came of it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from odf_engine.base.progress import Reporter
from odf_engine.errors import OdfError
from odf_engine.net.credentials import Credentials, RemoteAccess
from odf_engine.sync.push import push
from odf_engine.sync.remotes.transports import open_remote
from odf_engine.workspace.workspace import Workspace

_PROJECT = Path(__file__).parents[2]


class Pusher:
    """Such a process, seen from the one that starts it."""

    def __init__(self, workspace: Workspace, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.sync.pusher", str(workspace.folder), url],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_PROJECT,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def go(self) -> None:
        """Lets it begin."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def outcome(self) -> str:
        """Waits for its end; ``updated``, ``up-to-date``, or the name of an error."""
        return self.process.communicate(timeout=60)[0].strip()

    def kill(self, after: float) -> str:
        """Kills it so many seconds after it began; its outcome, which is empty unless it was done."""
        self.go()
        time.sleep(after)
        self.process.kill()
        return self.outcome()


def main() -> None:
    """Pushes."""
    workspace = Workspace(Path(sys.argv[1]))
    (entry,) = workspace.datasets()
    access = RemoteAccess(workspace.config, Credentials(workspace.odf), Reporter())
    remote = open_remote(sys.argv[2], access)
    remote.head()  # whatever has to be loaded is loaded now
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        print(push(entry, remote, Reporter(), force=False, parallel=4).status, flush=True)
    except OdfError as error:
        print(type(error).__name__, flush=True)


if __name__ == "__main__":
    main()
