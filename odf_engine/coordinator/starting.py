"""Starting a worker that outlives whoever starts it."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

from odf_engine.coordinator.rendezvous import Rendezvous
from odf_engine.errors import OdfError, has_surrogates
from odf_engine.files import open_file
from odf_engine.processes import python_environment

_ALREADY_RUNNING: Final = 75
_WAIT: Final = 0.02
_HINTS: Final = {
    errno.EROFS: "the disk can only be read, and so can what is here; a job has to write",
    errno.ENOSPC: "make room on the disk; what is here can be read meanwhile",
    errno.EDQUOT: "make room on the disk; what is here can be read meanwhile",
}

_children: list[subprocess.Popen[bytes]] = []
"""Workers started by this process, kept so that those that end are not left as zombies."""


class Starter:
    """Starts a workspace's worker and waits for it, one short step at a time.

    Several clients may do so at once: of their workers one gets the lock and the others leave.
    """

    def __init__(
        self, files: Rendezvous, timeout: float, command: Sequence[str] | None = None, *, warm: bool = True
    ) -> None:
        self._files = files
        self._deadline = time.monotonic() + timeout
        self._command = command
        self._warm = warm
        self._child: subprocess.Popen[bytes] | None = None

    async def step(self) -> None:
        """Starts a worker if none runs or starts, then waits a moment.

        Raises:
            OdfError: it ended at once (the message has the end of its log), or takes too long.
        """
        code = None if self._child is None else self._child.poll()
        if code is not None and code != _ALREADY_RUNNING:
            raise self._failed("the worker ended right after its start")
        if time.monotonic() > self._deadline:
            raise self._failed("the worker does not answer")
        if (self._child is None or code == _ALREADY_RUNNING) and not self._files.worker_alive():
            self._child = self._spawn()
        await asyncio.sleep(_WAIT)

    def _spawn(self) -> subprocess.Popen[bytes]:
        workspace = str(self._files.workspace)
        if has_surrogates(workspace):
            problem = "no worker can run in a folder whose path is not UTF-8 text"
            raise OdfError(problem, where=workspace, hint="rename the folder")
        command = self._command or [
            *(sys.executable, "-P", "-m", "odf_engine.coordinator.worker"),
            *([] if self._warm else ["--spark-later"]),
            workspace,
        ]
        try:
            log = open_file(self._files.log, "ab")
        except OSError as error:
            raise OdfError(
                f"no worker can be started here: {(error.strerror or str(error)).lower()}",
                hint=_HINTS.get(error.errno or 0, f"look who owns {self._files.log}, and its mode"),
            ) from None
        with log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._files.workspace,
                env=python_environment(),  # the worker's own folder is full of other people's files
                start_new_session=True,
            )
        _children[:] = [each for each in _children if each.poll() is None]
        _children.append(child)
        return child

    def _failed(self, message: str) -> OdfError:
        hint, reason = f"its log is {self._files.log}", ""
        for line in self._files.log_tail().splitlines():
            if line.startswith("hint: "):  # what it said for people, before it ended
                hint = line.removeprefix("hint: ")
            elif line.strip():
                reason = line.strip()
        return OdfError(
            f"{message}: {reason}" if reason else message, where=str(self._files.workspace), hint=hint
        )
