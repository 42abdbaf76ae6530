"""Two machines that use one store, whose requests take turns in a given order; either can be killed."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from odf_engine.errors import OdfError
from odf_engine.mirror.dataset_store import DatasetStore
from odf_engine.mirror.store_client import FolderClient

_METHODS = ("read", "read_changed", "chunks", "write", "upload", "list_all")


class Killed(BaseException):
    """The machine has lost its power: it sends no other request."""


class Schedule:
    """Lets the machines send so many requests in turn: ``turns`` of the first, then of the second, and so on.

    After the last turn, the machines run to their ends, one after the other.

    Args:
        turns: numbers of requests.
        killed: number of requests after which the first machine is killed, or None for never.
    """

    def __init__(self, turns: Sequence[int], killed: int | None = None) -> None:
        self._turns = list(turns)
        self._killed = killed
        self._condition = threading.Condition()
        self._machines: dict[int, int] = {}
        self._ended: set[int] = set()
        self._active = 0
        self.requests = [0, 0]

    def run(self, *work: Callable[[], object]) -> list[BaseException | None]:
        """Run the work of each machine; return the errors."""
        errors: list[BaseException | None] = [None for _ in work]

        def run_machine(number: int) -> None:
            try:
                self._machines[threading.get_ident()] = number
                work[number]()
            except (OdfError, Killed) as error:
                errors[number] = error
            finally:
                with self._condition:
                    self._ended.add(number)
                    self._active = 1 - number
                    self._condition.notify_all()

        threads = [threading.Thread(target=run_machine, args=(number,)) for number in range(len(work))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return errors

    def step(self) -> None:
        """Wait for the turn of this thread's machine, before a request."""
        number = self._machines.get(threading.get_ident())
        if number is None:
            return
        with self._condition:
            is_next = lambda: self._active == number or 1 - number in self._ended  # noqa: E731
            assert self._condition.wait_for(is_next, timeout=60), "the other machine neither ends nor waits"
            if number == 0 and self._killed is not None and self.requests[0] >= self._killed:
                raise Killed
            self.requests[number] += 1
            if self._turns and 1 - number not in self._ended:
                self._turns[0] -= 1
                if self._turns[0] <= 0:
                    del self._turns[0]
                    self._active = 1 - number
                    self._condition.notify_all()


def follow_schedule(monkeypatch: pytest.MonkeyPatch, schedule: Schedule) -> None:
    """Make each request to a store wait for its turn; the deletion of each object is a request."""
    inner = threading.local()
    for name in _METHODS:
        original = getattr(FolderClient, name)

        def method(client: FolderClient, *arguments: Any, _original: Any = original) -> Any:
            if getattr(inner, "is_set", False):  # a part of a request, which holds a lock
                return _original(client, *arguments)
            schedule.step()
            inner.is_set = True
            try:
                return _original(client, *arguments)
            finally:
                inner.is_set = False

        monkeypatch.setattr(FolderClient, name, method)
    delete = FolderClient.delete

    def delete_each(client: FolderClient, names: Sequence[str]) -> None:
        for name in names:
            schedule.step()
            delete(client, [name])

    monkeypatch.setattr(FolderClient, "delete", delete_each)

    def run_one_by_one(store: DatasetStore, work: Callable[[Any], Any], items: list[Any]) -> list[Any]:
        return [work(item) for item in items]

    monkeypatch.setattr(DatasetStore, "run_parallel", run_one_by_one)


def restore(template: Path, folder: Path) -> None:
    """Copy the folder of both machines and their store from a template."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
