"""Waits for the states of programs, servers and widgets.

A time limit only keeps a test from hanging. It says nothing about speed.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

Value = TypeVar("Value")
Text = str | Callable[[], str]


def wait_until(
    condition: Callable[[], Value | None], seconds: float = 60, interval: float = 0.01, what: Text = ""
) -> Value:
    """Wait until a condition is true, and return its value.

    Raises:
        AssertionError: it is still false. The message has ``what``, or the source line of the condition.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, _message(condition, seconds, what)
        time.sleep(interval)
    return value


async def wait_until_async(
    condition: Callable[[], Any],
    seconds: float = 60,
    interval: float = 0.01,
    what: Text = "",
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> Any:
    """Wait as :func:`wait_until` does, and let the event loop run. The condition may be a coroutine."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline, _message(condition, seconds, what)
        await pause(interval)


def _message(condition: Callable[[], object], seconds: float, what: Text) -> str:
    text = what if isinstance(what, str) else what()
    if not text:
        text = inspect.getsource(condition).strip() if inspect.isfunction(condition) else repr(condition)
    return f"not true after {seconds:g} s: {text}"


def run_with_timeout(work: Callable[[], Value], seconds: float = 60) -> Value:
    """Call a function in another thread, and return its result.

    Raises:
        TimeoutError: it has not ended.
    """
    future = Future[Value]()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(seconds)


def wait_until_listening(process: subprocess.Popen[Any], port: int, host: str = "127.0.0.1") -> None:
    """Wait until a server accepts connections.

    Raises:
        AssertionError: it has ended, or accepts none.
    """

    def accepts() -> bool:
        assert process.poll() is None, f"{process.args} ended with exit code {process.returncode}"
        with suppress(OSError), socket.create_connection((host, port), 1):
            return True
        return False

    wait_until(accepts, what=f"{process.args} listens at {host}:{port}")


def read_until(
    file: int, condition: Callable[[bytes], Value | None], shown: bytes = b"", seconds: float = 60
) -> Value:
    """Read from a terminal until a condition of its output is true, and return its value.

    ``shown`` is output that was read before.
    """

    def read() -> Value | None:
        nonlocal shown
        value = condition(shown)
        if not value and select.select([file], [], [], 0.1)[0]:
            shown += os.read(file, 65536)
        return value

    return wait_until(read, seconds, what=lambda: shown.decode(errors="replace"))


def process_state(pid: int) -> str:
    """Return the letter by which Linux shows the state of a process, or "" if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_until_asleep(pid: int) -> None:
    """Wait until the main thread of a process waits for input: it has slept for 0.3 s without waking up.

    Python handles a signal that arrives just before such a wait only after it.
    """

    def switches() -> str:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(line for line in lines if line.startswith("voluntary_ctxt_switches"))

    def is_asleep() -> bool:
        before = switches()
        for _ in range(6):
            time.sleep(0.05)
            if process_state(pid) != "S" or switches() != before:
                return False
        return True

    wait_until(is_asleep, what=f"process {pid} sleeps")


def is_running(pid: int) -> bool:
    """Return whether a process runs. A zombie does not."""
    return process_state(pid) not in ("", "Z")


def send_to_another_thread(pid: int, number: signal.Signals) -> None:
    """Send a signal to a thread of a process that is not the main one, as a busy system may do."""
    threads = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
    ctypes.CDLL(None).tgkill(pid, max(threads), number)
