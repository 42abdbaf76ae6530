"""A model of two machines that change one dataset in a store, while either of them collects garbage.

Each request of a machine is a step, and any step of the other machine can come before it. Whatever the order,
all objects that a reference in the store needs exist. A machine waits at most 15 minutes before a request, as
:mod:`odf_engine.mirror.unused_objects` requires.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from odf_engine.base.progress import Reporter
from odf_engine.chain.compaction import CompactionPolicy, compact
from odf_engine.chain.references import create_branch, list_old_heads, promote_branch
from odf_engine.errors import ObjectUnchanged, OdfError, WriteConditionFailed
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.flatbuffers import decode_block
from odf_engine.mirror.dataset_store import DatasetStore
from odf_engine.net.bucket_client import StoredObject
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.fsck import collect_garbage
from odf_engine.workspace.workspace import Workspace
from tests.sync.builders import add_slices, make_root

DAY: Final = 86_400.0
MAX_PAUSE: Final = 890.0
"""Maximum of seconds before a request of a machine that is working."""
MOSTLY: Final = st.sampled_from([True, True, True, False])
CITIES: Final = st.sampled_from(["Bern", "Basel", "Brig"])
OPERATIONS: Final = (
    "commit",
    "reset",
    "reset",
    "branch",
    "promote",
    "forget",
    "compact",
    "collect",
    "collect",
)


class Operation(NamedTuple):
    """What a machine does: the number of a head or 0, and the city of the rows that it adds."""

    kind: str
    number: int
    city: str


class Killed(BaseException):
    """The machine has lost its power: it sends no other request."""


class Turns:
    """Stops the thread of a machine before each request, until the model lets it go on."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._killed = False
        self.has_ended = False
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(work,), daemon=True)

    def start(self) -> None:
        """Let the machine work until its first request."""
        self.thread.start()
        self._wait()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.error = error
        self.has_ended = True
        self._stopped.release()

    def _wait(self) -> None:
        assert self._stopped.acquire(timeout=60), "the machine waits for something other than its turn"

    def wait_for_turn(self) -> None:
        """Wait, in the thread of the machine."""
        self._stopped.release()
        self._go.acquire()
        if self._killed:
            raise Killed

    def go_on(self) -> None:
        """Let the machine send its request, and work until the next one."""
        self._go.release()
        self._wait()

    def kill(self) -> None:
        """End the thread before its next request."""
        self._killed = True
        while not self.has_ended:
            self.go_on()


class MemoryClient:
    """A store in memory, whose requests wait for the turns of the machines. Versions are hashes."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.working: list[Turns] = []
        self._now = now

    def _wait(self, name: str) -> None:
        for turns in self.working:
            if "/" in name and turns.thread is threading.current_thread():
                turns.wait_for_turn()

    def read(self, name: str, max_bytes: int) -> StoredObject | None:
        self._wait(name)
        if name not in self.objects:
            return None
        return StoredObject(self.objects[name][0], _version(self.objects[name][0]))

    def read_changed(self, name: str, max_bytes: int, known: Any) -> StoredObject | None:
        stored = self.read(name, max_bytes)
        if stored is not None and stored.version == known:
            raise ObjectUnchanged(name)
        return stored

    def chunks(self, name: str, start: int, end: int) -> Iterator[bytes] | None:
        stored = self.read(name, end)
        return None if stored is None else iter([stored.data[start:end]])

    def write(self, name: str, data: bytes, mode: Any = "overwrite", writer: str = "") -> Any:
        self._wait(name)
        known = _version(self.objects[name][0]) if name in self.objects else "create"
        if mode not in ("overwrite", known):
            raise WriteConditionFailed(name)
        self.objects[name] = data, self._now()
        return _version(data)

    def upload(self, name: str, size: int, pieces: Iterable[bytes]) -> None:
        self.write(name, b"".join(pieces))

    def list_all(self, below: str) -> dict[str, datetime]:
        self._wait(below)
        prefix = f"{below}/" if below else ""
        return {
            name.removeprefix(prefix): datetime.fromtimestamp(stored, UTC)
            for name, (_, stored) in self.objects.items()
            if name.startswith(prefix)
        }

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._wait(name)
            self.objects.pop(name, None)


def _version(data: bytes) -> Any:
    return {"e_tag": hashlib.md5(data).hexdigest()}


@cache
def needed_objects(block: bytes) -> tuple[list[str], str | None]:
    """Return the objects that a block names, and its parent."""
    decoded = decode_block(block).block
    event: Any = decoded.event
    names = [
        f"{kind}/{part.physical_hash}"
        for kind, field in (("data", "new_data"), ("checkpoints", "new_checkpoint"))
        if (part := getattr(event, field, None)) is not None
    ]
    parent = decoded.prev_block_hash
    return names, None if parent is None else str(parent)


class Template:
    """The folders of two machines, and their store: a dataset with heads that it had before."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="model-"))
        self.client = MemoryClient(time.time)
        with mock.patch("odf_engine.mirror.store_client.open_client", lambda *_: self.client):
            workspaces = [Workspace.init(self.folder / name, "s3://bucket/store") for name in "ab"]
            entry = make_root(workspaces[0], slices=2)
            self.name = entry.id.multibase
            self.heads = [_head(entry)]
            first = entry.dataset.block(1).hash
            for city in ("Bern", "Basel"):
                add_slices(entry, 2, city=city)
                self.heads.append(_head(entry))
                entry.dataset.reset(self.heads[0], expected_head=self.heads[-1])
            entry.dataset.reset(first, expected_head=self.heads[0])
            workspaces[1].resolve("numbers").dataset.state()
            for workspace in workspaces:
                workspace.close()


def _head(entry: DatasetEntry) -> Multihash:
    head = entry.dataset.head()
    assert head is not None
    return head


@cache
def template() -> Template:
    return Template()


class StoreMachine(RuleBasedStateMachine):
    """Two machines, the requests of both to one store, and a clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = time.time()
        self.turns: dict[str, Turns] = {}
        self.answered: dict[str, float] = {}
        self.client = MemoryClient(lambda: self.now)
        self.heads = list(template().heads)
        self.folder = Path(tempfile.mkdtemp(prefix="model-"))
        self.stack = ExitStack()
        self.stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        shutil.copytree(template().folder, self.folder, dirs_exist_ok=True)
        clock = SimpleNamespace(time=lambda: self.now, monotonic=time.monotonic, sleep=lambda _: None)

        def run_one_by_one(store: DatasetStore, work: Callable[[Any], Any], items: list[Any]) -> list[Any]:
            return [work(item) for item in items]

        for target, value in (
            ("odf_engine.mirror.store_client.open_client", lambda *_: self.client),
            ("odf_engine.mirror.unused_objects.time", clock),
            ("odf_engine.mirror.dataset_mirror.time", clock),
            ("odf_engine.mirror.dataset_store.DatasetStore.run_parallel", run_one_by_one),
            ("odf_engine.mirror.heads_list.HeadsList.note", lambda *_, **__: None),
            ("os.fsync", lambda _: None),
        ):
            self.stack.enter_context(mock.patch(target, value))

    @initialize(is_forgotten=MOSTLY, is_collected=MOSTLY, is_evicted=st.booleans())
    def begin(self, is_forgotten: bool, is_collected: bool, is_evicted: bool) -> None:
        """The earlier heads may have no reference, and their objects may be about to be deleted."""
        old = self.now - 3 * DAY
        self.client.objects = {name: (data, old) for name, (data, _) in template().client.objects.items()}
        if is_forgotten:
            self.run_now("a", "forget")
            if is_collected:
                self.run_now("a", "collect")
                self.now += 3600.0
        if is_evicted:
            self.evict("b")

    def run_now(self, name: str, operation: str) -> None:
        self.start(name, Operation(operation, 0, "Bern"))
        self.go_on(name, 10_000)

    @rule(
        a=st.builds(Operation, st.sampled_from(OPERATIONS), st.integers(0, 2), CITIES),
        b=st.builds(Operation, st.sampled_from(OPERATIONS), st.integers(0, 2), CITIES),
        turns=st.lists(
            st.tuples(st.sampled_from("ab"), st.integers(1, 30), st.sampled_from([0.0, 0.0, MAX_PAUSE])),
            max_size=8,
        ),
        killed=st.sampled_from(["", "", "", "a", "b"]),
    )
    def race(self, a: Operation, b: Operation, turns: list[tuple[str, int, float]], killed: str) -> None:
        """Let both machines work: so many requests in turn, then one after the other up to the end."""
        self.start("a", a)
        self.start("b", b)
        for name, requests, pause in turns:
            self.go_on(name, requests)
            self.wait(pause)
        if killed in self.turns:
            self.turns[killed].kill()
            self.end_if_done(killed)
        for name in "ba" if turns and turns[-1][0] == "a" else "ab":
            self.go_on(name, 10_000)

    def start(self, name: str, operation: Operation) -> None:
        turns = Turns(lambda: self.operate(name, operation))
        self.client.working.append(turns)
        self.turns[name], self.answered[name] = turns, self.now
        turns.start()
        self.end_if_done(name)

    def operate(self, name: str, work: Operation) -> None:
        operation, number, city = work
        workspace = Workspace.find(explicit=self.folder / name)
        try:
            entry = workspace.resolve("numbers")
            dataset = entry.dataset
            if operation == "commit":
                branch = next(iter(dataset.branch_names()), "") if number else ""
                add_slices(entry.on_branch(branch), city=city)
                if not branch:
                    self.heads.append(_head(entry))
            elif operation == "reset":
                dataset.reset(self.heads[number - 3 if number else 0], expected_head=_head(entry))
                add_slices(entry, city=city)
            elif operation == "branch":
                create_branch(dataset, "trial", self.heads[number], replace=True)
                add_slices(entry.on_branch("trial"), city=city)
            elif operation == "promote":
                promote_branch(dataset, "trial")
            elif operation == "forget":
                dataset.refresh_references()
                for old_head in list_old_heads(dataset):
                    dataset.remove_reference(old_head.name, old_head.block)
            elif operation == "compact":
                compact(dataset, CompactionPolicy(), Reporter())
            else:
                collect_garbage(workspace, [entry], Reporter(), dry_run=False, now=operation == "now")
        finally:
            workspace.close()

    def end_if_done(self, name: str) -> None:
        turns = self.turns[name]
        if not turns.has_ended:
            return
        del self.turns[name]
        self.client.working.remove(turns)
        if not isinstance(turns.error, OdfError | Killed | None):
            raise turns.error

    def go_on(self, name: str, requests: int) -> None:
        for _ in range(requests):
            if name not in self.turns:
                return
            self.turns[name].go_on()
            self.answered[name] = self.now
            self.end_if_done(name)
            self.check()

    @rule(seconds=st.sampled_from([3600.0, 1.1 * DAY]))
    def wait(self, seconds: float) -> None:
        last = min((self.answered[name] for name in self.turns), default=self.now + seconds)
        self.now = min(self.now + seconds, max(self.now, last + MAX_PAUSE))

    @rule(name=st.sampled_from("ab"))
    def collect_alone(self, name: str) -> None:
        self.run_now(name, "now")

    @rule(name=st.sampled_from("ab"))
    def evict(self, name: str) -> None:
        if name not in self.turns:
            shutil.rmtree(
                self.folder / name / ".odf" / "datasets" / template().name / "data", ignore_errors=True
            )

    @invariant()
    def check(self) -> None:
        folder, objects = template().name, self.client.objects
        for name in [name for name in objects if name.startswith(f"{folder}/refs/")]:
            at: str | None = objects[name][0].decode()
            while at is not None:
                assert f"{folder}/blocks/{at}" in objects, f"{name} has lost block {at}"
                names, at = needed_objects(objects[f"{folder}/blocks/{at}"][0])
                for needed in names:
                    assert f"{folder}/{needed}" in objects, f"{name} has lost {needed}"

    def teardown(self) -> None:
        for name in list(self.turns):
            self.turns[name].kill()
        self.stack.close()


def test_no_order_of_requests_loses_a_referenced_object() -> None:
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=100,
            stateful_step_count=6,
            deadline=None,
            database=None,
            derandomize=True,
        ),
    )
