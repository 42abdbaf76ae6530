"""Runs a program of a flow, and terminates it when the worker ends, even by SIGKILL.

    python -I -S command_guard.py GRACE_SECONDS PROGRAM [ARGUMENT...]

It runs as a file and imports only the standard library. The program therefore has the environment of the
worker.

The worker holds the other end of the standard input. At its end the process group, which includes all
programs that the program has started, receives SIGTERM, and SIGKILL after the grace period.

The output passes through this process, so that the program can still write after the end of the worker, and
its handler of SIGTERM runs.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Final

NOT_STARTED: Final = 127
"""Exit code if the program cannot be started."""


def _end_group_with_worker(grace: float) -> None:
    """Wait for the end of the standard input, then end the process group, including this process."""
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGTERM)
    time.sleep(grace)  # not only until the program ends: those that it has started may need the time
    os.killpg(0, signal.SIGKILL)


def _copy_output(source: int) -> None:
    """Copy the output of the program; drop it after the end of the worker."""
    is_open = True
    while data := os.read(source, 1 << 16):
        while data and is_open:
            try:
                data = data[os.write(1, data) :]
            except OSError:
                is_open = False


def main(grace: float, command: list[str]) -> int:
    """Run the program in this process group; return its exit code, as a shell does for signals."""
    # A handler, because the program would inherit that the signal is ignored.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError as error:
        sys.stdout.write(error.strerror or str(error))
        return NOT_STARTED
    ending = threading.Thread(target=_end_group_with_worker, args=(grace,), daemon=True)
    ending.start()
    assert child.stdout is not None
    _copy_output(child.stdout.fileno())
    code = child.wait()
    if select.select([0], [], [], 0)[0]:  # the worker has ended; other programs may run
        ending.join()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    result = main(float(sys.argv[1]), sys.argv[2:])
    sys.stdout.flush()
    os._exit(result)  # the thread waits for the standard input
