"""The driver of the terminal: input that nothing breaks, and a terminal that every end restores."""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import sys
import termios
import time
from codecs import getincrementaldecoder
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from types import FrameType
from typing import Any, Final, TextIO, TypeVar, cast

from textual import events
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message
from textual.message_pump import MessagePump
from textual.widget import Widget

from odf_tui.services.terminal_input import TerminalInput
from odf_tui.state import typed_keys

_READ_BYTES: Final = 1 << 16
_PASTED_BYTES: Final = 1 << 10
"""Bytes of a read that are a part of a paste, whose next part follows soon."""
_PASTE_SECONDS: Final = 0.005
_MAX_BYTES: Final = 1 << 22
_IDLE_SECONDS: Final = 0.1
_WAITING_SECONDS: Final = 0.01
_BUSY_SECONDS: Final = 1.0
"""Maximum time that a key waits for the one before it."""
_Result = TypeVar("_Result")
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_RESTORATION: Final = (
    b"\x1b[?2004l\x1b[?7h\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l\x1b[?1004l\x1b[?2048l"
    b"\x1b[<u\x1b[?1049l\x1b[?25h"
)
"""Leaves the modes that the driver sets: paste, wrapping, mouse, focus, resize, keyboard, screen, cursor."""


async def _wait_for_queue(node: MessagePump) -> None:
    """Wait until the messages that a node has received were handled."""
    handled = asyncio.Event()
    if node.call_later(handled.set):
        await handled.wait()


class _Output:
    """A stream that discards what is written after the terminal was closed. Else its writer would stop."""

    def __init__(self, file: TextIO | None) -> None:
        assert file is not None
        self._file = file
        self.fileno = file.fileno

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()


class TerminalDriver(LinuxDriver):
    """Textual's driver, with other input, and with signals that restore the terminal.

    Input that is not UTF-8 is replaced, and unknown control sequences are dropped
    (:mod:`odf_tui.services.terminal_input`). The end of the input, and signals that end a program, end the
    application; a second signal does so immediately.
    """

    _is_ending = False

    def __init__(self, app: App[Any], **options: Any) -> None:
        """Create the driver; the arguments are as for Textual's driver."""
        super().__init__(app, **options)
        self._file = cast("TextIO", _Output(sys.__stderr__))

    def start_application_mode(self) -> None:
        """Enter the screen, and handle signals."""
        self._loop = asyncio.get_running_loop()
        super().start_application_mode()
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # such as by nohup
                # Wakes the event loop also if another thread receives the signal.
                self._loop.add_signal_handler(number, lambda: None)
                signal.signal(number, self._end_by_signal)

    def close(self) -> None:
        """Release the terminal."""
        for number in _ENDING:
            with suppress(RuntimeError, ValueError):
                self._loop.remove_signal_handler(number)
        super().close()

    def run_input_thread(self) -> None:
        """Read input until the driver stops, or until there is none."""
        reader = TerminalInput()
        decode = getincrementaldecoder("utf-8")("replace").decode
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(_WAITING_SECONDS if reader.is_waiting else _IDLE_SECONDS):
                    data = self._read(selector)
                    if not data:
                        self._loop.call_soon_threadsafe(self._app.exit, None, 128 + signal.SIGHUP)
                        return
                    self._send(reader.feed(decode(data), time.monotonic()))
                self._send(reader.tick(time.monotonic()))

    def _read(self, selector: selectors.BaseSelector) -> bytes:
        """Return what was typed, or all of a text that is pasted; b"" if the terminal was closed."""
        data = bytearray()
        with suppress(OSError):
            while part := os.read(self.fileno, _READ_BYTES):
                data += part
                is_paste = len(part) >= _PASTED_BYTES and len(data) < _MAX_BYTES
                if not is_paste or not selector.select(_PASTE_SECONDS):
                    break
        return bytes(data)

    def _send(self, messages: Iterable[Message]) -> None:
        """Send messages. After a key or a paste, wait until it was handled.

        It can open a dialog, which gets the keys that follow, even if they were read at the same time.
        """
        for message in messages:
            is_typed = isinstance(message, events.Key | events.Paste)
            before = self._run(self._focused_nodes()) if is_typed else None
            self.process_message(message)
            if before is not None:
                self._run(self._wait_until_handled(before))

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result | None:
        """Run a coroutine in the application; return None if it has ended, or is busy for too long."""
        end = time.monotonic() + _BUSY_SECONDS
        with suppress(RuntimeError, CancelledError):
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            while time.monotonic() < end and not self.exit_event.is_set():
                with suppress(TimeoutError):
                    return future.result(_WAITING_SECONDS)
        return None

    async def _focused_nodes(self) -> list[MessagePump]:
        """Return the application and the widgets that get a key, from the focused one to its screen."""
        if not self._app.screen_stack:
            return [self._app]
        widget = self._app.screen.focused or self._app.screen
        return [self._app, *(node for node in widget.ancestors_with_self if node is not self._app)]

    async def _wait_until_handled(self, nodes: Sequence[MessagePump]) -> None:
        for node in nodes:
            await _wait_for_queue(node)
        while typed_keys.are_held():
            await asyncio.sleep(_WAITING_SECONDS)
        screen = self._app.screen
        if screen not in nodes:  # a new dialog, whose widgets get the focus when they are mounted
            await _wait_for_queue(screen)
            await asyncio.gather(*map(_wait_for_queue, screen.walk_children(Widget)))
            while typed_keys.are_held():
                await asyncio.sleep(_WAITING_SECONDS)

    def _end_by_signal(self, number: int, _: FrameType | None) -> None:
        if self._is_ending:
            self._restore()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self._is_ending = True
        self._loop.call_soon_threadsafe(self._app.exit, None, 128 + number)

    def _restore(self) -> None:
        """Restore the terminal without the threads of the driver."""
        with suppress(OSError, termios.error):  # the terminal was closed
            os.write(self._file.fileno(), _RESTORATION)
            if self.attrs_before is not None:
                termios.tcsetattr(self.fileno, termios.TCSANOW, self.attrs_before)
