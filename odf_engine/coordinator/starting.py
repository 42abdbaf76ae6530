"""Starting a worker that outlives whoever starts it."""

from __future__ import annotations

import asyncio
import os
import site
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from odf_engine.coordinator.rendezvous import Rendezvous
from odf_engine.errors import OdfError

_ALREADY_RUNNING: Final = 75
_WAIT: Final = 0.02

_children: list[subprocess.Popen[bytes]] = []
"""Workers started by this process, kept so that those that end are not left as zombies."""


class Starter:
    """Starts a workspace's worker and waits for it, one short step at a time.

    Several clients may do so at once: of their workers one gets the lock and the others leave.
    """

    def __init__(self, files: Rendezvous, timeout: float, command: Sequence[str] | None = None) -> None:
        self._files = files
        self._deadline = time.monotonic() + timeout
        self._command = command
        self._child: subprocess.Popen[bytes] | None = None

    async def step(self) -> None:
        """Starts a worker if none runs or starts, then waits a moment.

        Raises:
            OdfError: it ended at once (the message has the end of its log), or takes too long.
        """
        code = None if self._child is None else self._child.poll()
        if code is not None and code != _ALREADY_RUNNING:
            raise self._failed(f"the worker ended right after its start (exit code {code})")
        if time.monotonic() > self._deadline:
            raise self._failed("the worker does not answer")
        if (self._child is None or code == _ALREADY_RUNNING) and not self._files.worker_alive():
            self._child = self._spawn()
        await asyncio.sleep(_WAIT)

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = self._command or [
            *(sys.executable, "-P", "-m", "odf_engine.coordinator.worker"),
            str(self._files.workspace),
        ]
        with self._files.log.open("ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._files.workspace,
                env=_environment(),
                start_new_session=True,
            )
        _children[:] = [each for each in _children if each.poll() is None]
        _children.append(child)
        return child

    def _failed(self, message: str) -> OdfError:
        tail = self._files.log_tail()
        return OdfError(
            message + (f":\n{tail}" if tail else ""),
            where=str(self._files.workspace),
            hint=f"its log is {self._files.log}",
        )


def _environment() -> dict[str, str]:
    """This process's environment, so that the worker finds the same code, even in a source folder.

    The worker's own folder is the workspace, and must never be searched for modules (``-P``): it is
    full of other people's files.
    """
    environment = dict(os.environ)
    root = Path(__file__).resolve().parents[2]
    if str(root) not in site.getsitepackages():
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{root}{os.pathsep}{known}" if known else str(root)
    return environment
