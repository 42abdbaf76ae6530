"""The answers of an engine that is asked by gRPC: progress while it works, then what came of it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import grpc
import msgspec

from odf_engine.errors import InvalidQuery, OdfError
from odf_engine.metadata.flatbuffers import encode_table
from odf_engine.progress import Reporter
from odf_engine.transform.grpc_documents import Failed, Line, Told, encode, failed
from odf_engine.transform.grpc_wire import wrap

_PROGRESS_SECONDS: Final = 1.0
_NEWS_SECONDS: Final = 0.25


class Form(Protocol):
    """How the answers of a service are written."""

    def told(self, told: Told) -> bytes:
        """A message of progress."""
        ...

    def failed(self, failure: Failed, *, invalid: bool) -> bytes:
        """A message that an error was; ``invalid`` when the query is to blame."""
        ...


class Alone:
    """Messages of one JSON document."""

    def told(self, told: Told) -> bytes:
        return wrap(encode(told))

    def failed(self, failure: Failed, *, invalid: bool) -> bytes:
        return wrap(encode(failure))


class Beside:
    """Messages of a FlatBuffer, and a JSON document for those who know it."""

    def __init__(self, progress: Any, invalid: Callable[[str], Any], failed: Callable[[str], Any]) -> None:
        self._progress, self._invalid, self._failed = progress, invalid, failed

    def told(self, told: Told) -> bytes:
        return wrap(encode_table(self._progress), encode(told))

    def failed(self, failure: Failed, *, invalid: bool) -> bytes:
        place = f"{failure.where}: " if failure.where else ""
        hint = f" ({failure.hint})" if failure.hint else ""
        text = f"{place}{failure.message}{hint}"
        return wrap(encode_table((self._invalid if invalid else self._failed)(text)), encode(failure))


class _Telling(Reporter):
    """Gathers what there is to tell, for the next message."""

    def __init__(self) -> None:
        super().__init__()
        self._news = threading.Lock()
        self._phase: str | None = None
        self._amounts: dict[str, int] = {}
        self._lines: list[Line] = []

    def phase(self, name: str) -> None:
        """See :class:`Reporter`."""
        with self._news:
            self._phase, self._amounts = name, {}

    def amount(self, **amounts: int | None) -> None:
        """See :class:`Reporter`."""
        with self._news:
            self._amounts |= {name: value for name, value in amounts.items() if value is not None}

    def line(self, text: str, level: Any = "info") -> None:
        """See :class:`Reporter`."""
        with self._news:
            self._lines.append(Line(text, level))

    def told(self) -> Told:
        """What is new since it was asked last."""
        with self._news:
            told = Told(self._phase, self._amounts, self._lines)
            self._phase, self._amounts, self._lines = None, {}, []
        return told


class Requests:
    """The requests that are being worked on.

    Args:
        left: called, in a thread of its own, after a request was cancelled.
    """

    def __init__(self, left: Callable[[], None]) -> None:
        self._left = left
        self._gate = threading.Condition()
        self._open = 0
        self._held = False

    def busy(self) -> bool:
        """Whether there are any."""
        return self._open > 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """New requests wait until the end of the block."""
        with self._gate:
            self._held = True
        try:
            yield
        finally:
            with self._gate:
                self._held = False
                self._gate.notify_all()

    def answers(
        self, work: Callable[[Reporter], bytes], context: grpc.ServicerContext, form: Form
    ) -> Iterator[bytes]:
        """Progress while the work runs, then what came of it. A client that goes away stops the work."""
        reporter = _Telling()
        done: queue.Queue[bytes] = queue.Queue()
        context.add_callback(reporter.cancel)
        threading.Thread(
            target=self._run, args=(work, reporter, form, done), name="engine-request", daemon=True
        ).start()
        silent = 0.0
        answer: bytes | None = None
        while answer is None:
            try:
                answer = done.get(timeout=_NEWS_SECONDS)
            except queue.Empty:
                silent += _NEWS_SECONDS
            told = reporter.told()
            if told != Told() or (answer is None and silent >= _PROGRESS_SECONDS):
                silent = 0.0
                yield form.told(told)
        yield answer

    def _run(
        self, work: Callable[[Reporter], bytes], reporter: Reporter, form: Form, done: queue.Queue[bytes]
    ) -> None:
        with self._gate:
            self._gate.wait_for(lambda: not self._held)
            self._open += 1
        try:
            done.put(work(reporter))
        except OdfError as error:
            done.put(form.failed(failed(error), invalid=isinstance(error, InvalidQuery)))
        except msgspec.MsgspecError as error:
            done.put(form.failed(Failed(f"the request cannot be read: {error}"), invalid=False))
        except Exception as error:
            done.put(form.failed(Failed(f"{type(error).__name__}: {error}"), invalid=False))
        finally:
            with self._gate:
                self._open -= 1
        if reporter.cancelled:
            self._left()
