"""Work in order within executors, side by side between them."""

from __future__ import annotations

import threading

import pytest

from odf_engine.data.digest import SerialExecutors
from tests.waiting import wait_until


def test_each_executor_keeps_its_order() -> None:
    done: list[list[int]] = [[], [], []]
    with SerialExecutors(3) as executors:
        lanes = [executors.new_executor() for _ in done]
        for number in range(200):
            for executor, seen in zip(lanes, done, strict=True):
                executor.submit(lambda seen=seen, number=number: seen.append(number))
        executors.wait()
    assert done == [list(range(200))] * 3


def test_executors_run_side_by_side() -> None:
    both = threading.Barrier(2, timeout=60)
    with SerialExecutors(2) as executors:
        for _ in range(2):
            executors.new_executor().submit(lambda: both.wait() and None)
        executors.wait()


def test_submit_blocks_while_the_queue_is_full() -> None:
    go = threading.Event()
    put: list[tuple[int, bool]] = []
    with SerialExecutors(1, depth=2) as executors:
        executor = executors.new_executor()

        def fill() -> None:
            for number in range(4):
                executor.submit(lambda: go.wait(60) and None)
                put.append((number, go.is_set()))

        filler = threading.Thread(target=fill)
        filler.start()
        wait_until(lambda: len(put) >= 2)
        go.set()
        filler.join(60)
    assert put == [(0, False), (1, False), (2, True), (3, True)]


def test_error_is_raised_on_submit_and_wait() -> None:
    with SerialExecutors(1) as executors:
        executor = executors.new_executor()
        executor.submit(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
        with pytest.raises(ZeroDivisionError):
            executors.wait()
        with pytest.raises(ZeroDivisionError):
            executor.submit(lambda: None)


def test_exception_discards_tasks_that_have_not_started() -> None:
    started, go = threading.Event(), threading.Event()
    done: list[str] = []

    def first() -> None:
        started.set()
        go.wait(60)

    with pytest.raises(KeyboardInterrupt), SerialExecutors(1, depth=5) as executors:
        executor = executors.new_executor()
        executor.submit(first)
        executor.submit(lambda: done.append("second"))
        started.wait(60)
        cancel_pending = executor.cancel_pending
        executor.cancel_pending = lambda: (cancel_pending(), go.set(), executor.wait())  # type: ignore[method-assign]
        raise KeyboardInterrupt
    assert done == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hash")]
