"""Reads in threads, and coroutines whose errors become notices."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from textual.screen import Screen
from textual.worker import Worker, get_current_worker

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
) -> None:
    """Run a function in a thread, then call ``then`` on the event loop.

    Args:
        screen: the screen that shows the result.
        group: the name of the kind of read.
        function: the read. It may block.
        then: gets the result and an empty text, or None and an error message.
        replaces: whether the results of older reads of the group are dropped.
    """

    def work() -> None:
        worker = get_current_worker()
        try:
            result, error_text = function(), ""
        except Exception as error:  # any error is shown, and the screen stays open
            result, error_text = None, error_with_hint(error)
        if not worker.is_cancelled:
            screen.call_later(then, result, error_text)

    screen.run_worker(work, thread=True, exclusive=replaces, group=group, name=group)


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

    return screen.run_worker(guarded(), group=group, name=group)
