"""Reads in threads, and coroutines whose errors become notices."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from textual.app import App
from textual.screen import Screen
from textual.worker import Worker, active_worker, get_current_worker

from odf_tui.state import typed_keys
from odf_tui.text.format import error_with_hint
from odf_tui.widgets.status_bar import Notice

T = TypeVar("T")


def read(
    screen: Screen[Any],
    group: str,
    function: Callable[[], T],
    then: Callable[[T | None, str], object],
    *,
    replaces: bool = True,
    opens: bool = False,
) -> None:
    """Run a function in a thread, then call ``then`` on the event loop.

    Args:
        screen: the screen that shows the result.
        group: the name of the kind of read.
        function: the read. It may block.
        then: gets the result and an empty text, or None and an error message.
        replaces: whether the results of older reads of the group are dropped.
        opens: whether ``then`` may open a dialog. Typed keys wait for it.
    """

    def work() -> None:
        worker = get_current_worker()
        try:
            result, error_text = function(), ""
        except Exception as error:  # any error is shown, and the screen stays open
            result, error_text = None, error_with_hint(error)
        if not worker.is_cancelled:
            screen.call_later(end, worker, result, error_text)

    def end(worker: Worker[None], result: T | None, error_text: str) -> None:
        then(result, error_text)
        typed_keys.release(worker)

    worker = screen.run_worker(work, thread=True, exclusive=replaces, group=group, name=group)
    if opens:
        typed_keys.hold(worker)


def start(screen: Screen[Any], coroutine: Coroutine[Any, Any, None], group: str = "stories") -> Worker[None]:
    """Run a coroutine. An error in it becomes a notice.

    Args:
        screen: the screen that shows the notice.
        coroutine: it may open dialogs and await jobs.
        group: the name of its group of workers. Those in ``stories`` may wait for the user.
    """

    async def guarded() -> None:
        try:
            await coroutine
        except Exception as error:  # whatever it is, it is shown, and the screen stays open
            screen.post_message(Notice(error_with_hint(error), "bad"))

    if group == "stories":
        return run_steps(screen, guarded(), group)
    return screen.run_worker(guarded(), group=group, name=group)


def run_steps(
    screen: Screen[Any], coroutine: Coroutine[Any, Any, None], group: str = "steps"
) -> Worker[None]:
    """Run a coroutine that a key has started. Typed keys wait until it ends, or opens a dialog."""

    async def run() -> None:
        try:
            await coroutine
        finally:
            release_keys()

    worker = screen.run_worker(run(), group=group, name=group)
    typed_keys.hold(worker)
    return worker


async def ask(app: App[Any], dialog: Screen[T]) -> T | None:
    """Open a dialog, and wait for its result. Only within a worker; typed keys wait for its next steps."""
    answer = await app.push_screen_wait(dialog)
    if (worker := active_worker.get(None)) is not None:
        typed_keys.hold(worker)
    return answer


def release_keys() -> None:
    """Let typed keys no longer wait for the current worker, such as before it waits for a job."""
    if (worker := active_worker.get(None)) is not None:
        typed_keys.release(worker)
