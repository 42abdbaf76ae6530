"""Random operations on a workspace and two peers, compared with a model in memory after each step.

``python -m tests.faults.workspace_machine --examples 200 --steps 50`` runs the long form and prints counts.
The peers are a folder and a second workspace, which ``odf serve`` serves over HTTP. An operation may be
killed, or one of its calls to the file system fails.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from odf_engine.base.progress import Reporter
from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.data.arrow_schema import decode_schema
from odf_engine.derive.plan import Diverged
from odf_engine.derive.run import reset_dataset
from odf_engine.derive.verify.integrity import verify
from odf_engine.derive.verify.replay import Replay
from odf_engine.errors import AlreadyExists, BadData, Conflict, NotFound, NotSynced, OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import DatasetAlias
from odf_engine.ingest.fetch.model import file_stamp, hash_file
from odf_engine.jobs.ingest import Ingest
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.push import Push
from odf_engine.metadata.model import (
    AddData,
    AddPushSource,
    ExecuteTransform,
    Seed,
    SetDataSchema,
    SetInfo,
    SetTransform,
    kind_of,
)
from odf_engine.metadata.yaml import read_manifests
from odf_engine.net.credentials import Credentials, Login
from odf_engine.workspace.fsck import check_workspace
from odf_engine.workspace.remotes import Remotes
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace
from tests.faults import workspace_model as model
from tests.faults.arrow_jobs import (
    ArrowEngine,
    Jobs,
    day_of,
    parse_query,
    payload_rows,
    payload_text,
    query_sql,
    read_rows,
)
from tests.faults.io_errors import KILLED, Faults
from tests.faults.workspace_model import Block, Chain, Copy, Query, Row, Site
from tests.sync.in_process_server import Running, served
from tests.waiting import wait_until

NAMES: Final = "abcdef"
COLUMNS: Final = ("event_time", "city", "people")
WIDE: Final = (*COLUMNS, "note")
_TYPES: Final = {"event_time": "TIMESTAMP", "city": "STRING", "people": "BIGINT", "note": "STRING"}
_SYSTEM: Final = ("offset", "op", "system_time")
_NEW: Final = "new "  # before the name of a dataset whose id is unknown yet
_ORPHANS: Final = frozenset(
    {
        "arriving",
        "half-written",
        "left-over",
        "orphan-block",
        "orphan-checkpoint",
        "orphan-proof",
        "orphan-slice",
        "remotes-alone",
        "trust-alone",
        "unfinished-dataset",
    }
)
"""What a crash may leave: files that nothing refers to."""
_ATOMIC: Final = frozenset({"add", "update", "rename", "delete", "ingest", "reset"})
"""Operations that leave everything unchanged when they fail."""
_CHILD_SECONDS: Final = 300.0
COUNTS: Counter[str] = Counter()
"""Rules by their names, and their outcomes."""


class Fault(NamedTuple):
    """What happens at a call to the file system: the process is killed (0), or the call fails."""

    call: int
    error: int


class Report(NamedTuple):
    """The end of an operation: ``ok``, ``killed``, or the names of the classes of its error."""

    classes: tuple[str, ...]
    text: str = ""

    @property
    def ok(self) -> bool:
        """Whether the operation succeeded."""
        return self.classes == ("ok",)


def _report(work: Callable[[], object]) -> Report:
    try:
        work()
    except Exception as error:
        names = tuple(each.__name__ for each in type(error).__mro__)
        hint = getattr(error, "hint", None) or ""
        untyped = "" if isinstance(error, OdfError) else "".join(traceback.format_exception(error))
        return Report(names, f"{error} [{hint}] {untyped}")
    return Report(("ok",))


class Child:
    """A process that runs an operation, which a fault may end."""

    def __init__(self, folder: Path, work: Callable[[], object], fault: Fault | None = None) -> None:
        reading, writing = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(writing)
            self._reading = reading
            return
        try:
            if fault is not None:
                Faults(folder, fault.call, fault.error).inject()
            report = _report(work)
            os.write(writing, json.dumps([report.classes, report.text[:50_000]]).encode())
        finally:
            os._exit(0)

    def wait(self) -> Report:
        """Return the end of the operation."""
        with os.fdopen(self._reading, "rb") as file:
            _, status = wait_until(
                lambda: (ended := os.waitpid(self._pid, os.WNOHANG))[0] and ended, _CHILD_SECONDS, 0.001
            )
            if os.waitstatus_to_exitcode(status) == KILLED:
                return Report(("killed",))
            classes, text = json.loads(file.read())
            return Report(tuple(classes), text)


class Chains:
    """Reads chains from disk, as blocks of the model."""

    def __init__(self) -> None:
        self._known: dict[str, Chain] = {}

    def read(self, dataset: Dataset) -> Chain:
        """Return the chain of a dataset."""
        head = dataset.head()
        assert head is not None
        new: list[Any] = []
        at: Any = head
        while at is not None and str(at) not in self._known:
            stored = dataset.block(at)
            new.append(stored)
            at = stored.block.prev_block_hash
        chain = () if at is None else self._known[str(at)]
        for stored in reversed(new):
            block = _block(dataset, stored, len(model.rows_of(chain)))
            marks = [each for each in (model.watermark_of(chain), block.watermark) if each is not None]
            assert marks == sorted(marks), f"the watermark decreases at block {stored.hash}"
            chain = (*chain, block)
            self._known[block.hash] = chain
        return chain


def _block(dataset: Dataset, stored: Any, rows_before: int) -> Block:
    event, at = stored.block.event, str(stored.hash)
    detail: Any = None
    match event:
        case Seed():
            detail = str(event.dataset_id)
        case AddPushSource():
            detail = (type(event.merge).__name__, tuple(each.split()[0] for each in event.read.schema or ()))
        case SetDataSchema():
            names = decode_schema(event.schema or b"").names
            detail = tuple(name for name in names if name not in _SYSTEM)
        case SetInfo():
            detail = event.description
        case SetTransform():
            step = (event.transform.queries or [])[0]
            detail = parse_query([each.dataset_ref for each in event.inputs], step.query)
        case AddData():
            detail = None if event.new_source_state is None else event.new_source_state.value
        case ExecuteTransform():
            detail = tuple(
                model.Interval(
                    str(each.dataset_id),
                    each.prev_block_hash and str(each.prev_block_hash),
                    each.new_block_hash and str(each.new_block_hash),
                    each.prev_offset,
                    each.new_offset,
                )
                for each in event.query_inputs
            )
    data = getattr(event, "new_data", None)
    rows = () if data is None else read_rows(dataset.slice_path(data.physical_hash), rows_before)
    return Block(kind_of(event), detail, rows, day_of(getattr(event, "new_watermark", None)), at)


def _matches(expected: Copy | None, actual: Copy, *, exact: bool, growing: bool) -> bool:
    """Return whether a dataset is as predicted; hashes of new blocks are unknown.

    Args:
        expected: the prediction; None: no dataset.
        actual: the dataset.
        exact: compare remotes and references too.
        growing: the dataset may have further transactions.
    """
    if expected is None or expected.alias != actual.alias:
        return False
    chain = actual.chain
    if growing:
        chain = chain[: len(expected.chain)]
        kinds = {block.kind for block in actual.chain[len(expected.chain) :]}
        if not kinds <= {"SetDataSchema", "ExecuteTransform"}:
            return False
    if not _same_chain(expected.chain, chain):
        return False
    remotes = (expected.pulled, expected.pushed, expected.stored)
    return not exact or remotes == (actual.pulled, actual.pushed, actual.stored)


def _same_chain(expected: Chain, actual: Chain) -> bool:
    return len(expected) == len(actual) and all(map(_same_block, expected, actual))


def _same_block(expected: Block, actual: Block) -> bool:
    if expected.hash:
        return expected == actual
    if expected.kind == "Seed":
        return actual.kind == "Seed"
    rows = sorted(expected.rows, key=repr) == sorted(actual.rows, key=repr)
    return rows and expected._replace(rows=(), hash="") == actual._replace(rows=(), hash="")


def _describe(copy: Copy | None) -> str:
    if copy is None:
        return "no dataset"
    blocks = "".join(
        f"\n    {each.hash[-8:] or 'new'} {each.kind} {each.detail} {[tuple(row) for row in each.rows]} "
        f"{each.watermark}"
        for each in copy.chain
    )
    return f"{copy.alias} {set(copy.pulled)} {set(copy.pushed)} {set(copy.stored)}{blocks}"


_MANIFEST: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: {kind}
  metadata:
    - {event}
    - {{kind: SetInfo, description: {text}}}
"""


def _manifest(name: str, chain: Chain, names: Mapping[str, str]) -> str:
    """Return the definition of a dataset with the newest settings of a chain."""
    query: Query | None = model.newest(chain, "SetTransform")
    if query is None:
        strategy, columns = model.newest(chain, "AddPushSource")
        keys = ["event_time" if key == "day" else key for key in model.KEYS[strategy]]
        merge = {"kind": strategy, **({"primaryKey": keys} if keys else {})}
        read = {"kind": "NdJson", "schema": [f"{column} {_TYPES[column]}" for column in columns]}
        event: dict[str, Any] = {
            "kind": "AddPushSource",
            "sourceName": "default",
            "read": read,
            "merge": merge,
        }
    else:
        inputs = [{"datasetRef": names[each], "alias": f"i{at}"} for at, each in enumerate(query.inputs)]
        transform = {"kind": "Sql", "engine": "spark", "query": query_sql(query)}
        event = {"kind": "SetTransform", "inputs": inputs, "transform": transform}
    text = model.newest(chain, "SetInfo")
    kind = "Root" if query is None else "Derivative"
    return _MANIFEST.format(name=name, kind=kind, event=json.dumps(event), text=text)


def _pick(items: Sequence[Any], number: int) -> Any:
    return items[number % len(items)]


NUMBERS: Final = st.integers(0, 5)
FAULTS: Final = st.one_of(
    st.none(),
    st.none(),
    st.builds(Fault, st.integers(0, 60), st.sampled_from([0, errno.EIO, errno.ENOSPC])),
)
ROWS: Final = st.lists(
    st.builds(
        Row, st.just(0), NUMBERS, st.sampled_from("abcd"), st.integers(0, 3), st.sampled_from([None, "x"])
    ),
    max_size=4,
)
STRATEGIES: Final = st.sampled_from(["Append", "Ledger", "Snapshot"])
SITES: Final = st.sampled_from(["here", "here", "here", "peer"])
PLACES: Final = st.sampled_from(["repo", "odf+http", "http"])


def push_state(path: Path) -> str:
    """Return what a block stores about the push of a file: its hash, no event time, and its version."""
    modified, size = file_stamp(path)
    version = Multihash.sha3_256(os.fsencode(f"{path.resolve()}\n{size}\n{modified}"))
    return f"{hash_file(path, Reporter())}\t\t{version}"


class WorkspaceMachine(RuleBasedStateMachine):
    """Operations on the workspace ``here``, the served workspace ``peer`` and the folder ``repo``."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        # Processes die here, the machine does not: nothing has to reach the disk.
        self._stack.enter_context(mock.patch("os.fsync", lambda _: None))
        self.folder = Path(tempfile.mkdtemp(prefix="machine-", dir=_scratch_folder()))
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.jobs = {name: Jobs(self.folder / name) for name in ("here", "peer")}
        for jobs in self.jobs.values():
            workspace = Workspace.init(jobs.folder)
            conflicts = json.dumps(model.ON_CONFLICT)
            (workspace.odf / "config.yaml").write_text(f"onConflict: {conflicts}\n")
            workspace.index.close()
        (self.folder / "repo").mkdir()
        served_workspace = self.open("peer")
        self.server: Running = self._stack.enter_context(served(served_workspace, allow_push=True))
        token = self.server.serving.tokens.create("machine")[1]
        credentials = Credentials(self.folder / "here" / ".odf")
        credentials.set(self.server.url, Login(token=token))
        self.sites = {"here": Site(), "peer": Site(), "repo": Site()}
        self.dirty = {"here": False, "peer": False}
        self.chains = Chains()
        self.payloads = 0
        COUNTS["examples"] += 1

    @initialize(
        strategies=st.lists(STRATEGIES, min_size=2, max_size=2),
        rows=st.lists(ROWS, min_size=2, max_size=2),
        plus=NUMBERS,
        places=st.sampled_from(["repo", "odf+http"]),
    )
    def fill(self, strategies: list[str], rows: list[list[Row]], plus: int, places: str) -> None:
        """Two roots with rows, and a derivative of both; each of them is on a peer."""
        for name, strategy in zip("ac", strategies, strict=True):
            self.add_roots("here", [name], strategy, None)
        for number, each in enumerate(rows):
            self.ingest("here", number, each, 9, False, None)
        self.add_derivative("here", "b", [0, 1], plus, "a", None)
        self.transform("here", 0, False, None)
        for number, place in ((0, "repo"), (1, "odf+http"), (2, places)):
            self.push(number, place, False, None)

    def teardown(self) -> None:
        """Repair and check everything at the end."""
        try:
            if sys.exc_info()[0] is None:
                for site in self.dirty:
                    self._repair(site)
        finally:
            self._stack.close()

    def open(self, site: str) -> Workspace:
        """Open a workspace as a new process does."""
        return Workspace.find(explicit=self.jobs[site].folder)

    @rule(
        site=SITES,
        names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True),
        strategy=STRATEGIES,
        fault=FAULTS,
    )
    def add_roots(self, site: str, names: list[str], strategy: str, fault: Fault | None) -> None:
        """``odf add``: all of several roots, or none."""
        chain = (Block("Seed"), Block("AddPushSource", (strategy, COLUMNS)), Block("SetInfo", "made"))
        self._add(site, dict.fromkeys(names, chain), fault)

    @rule(
        site=SITES,
        name=st.sampled_from(NAMES),
        inputs=st.lists(NUMBERS, min_size=1, max_size=2),
        plus=NUMBERS,
        city=st.sampled_from("aabc"),
        fault=FAULTS,
    )
    def add_derivative(
        self, site: str, name: str, inputs: list[int], plus: int, city: str, fault: Fault | None
    ) -> None:
        """``odf add``: a derivative of one or two datasets."""
        copies = self.sites[site].copies
        if not copies:
            return
        found = dict.fromkeys(_pick(list(copies), each) for each in inputs)
        query = Query(tuple(found), plus, city)
        self._add(
            site, {name: (Block("Seed"), Block("SetTransform", query), Block("SetInfo", "made"))}, fault
        )

    def _add(self, site: str, chains: Mapping[str, Chain], fault: Fault | None) -> None:
        before = self.sites[site]
        names = {dataset: copy.alias for dataset, copy in before.copies.items()}
        snapshots = [
            manifest
            for name, chain in chains.items()
            for manifest in read_manifests(_manifest(name, chain, names), "test")
        ]
        after = before
        for name, chain in chains.items():
            after = after.with_copy(_NEW + name, Copy(name, chain))
        taken = any(before.named(name) for name in chains)
        self._run(
            "add",
            lambda: self.open(site).add(snapshots),
            {site: before if taken else after},
            error=AlreadyExists if taken else None,
            fault=fault,
        )
        added = [self.sites[site].named(name) is not None for name in chains]
        assert taken or len(set(added)) == 1, "an interrupted command has added some of its datasets"

    @rule(
        site=SITES,
        dataset=NUMBERS,
        text=st.sampled_from(["made", "changed"]),
        wide=st.booleans(),
        plus=NUMBERS,
        fault=FAULTS,
    )
    def update(self, site: str, dataset: int, text: str, wide: bool, plus: int, fault: Fault | None) -> None:
        """``odf add --update``: another description, source, schema or query."""
        copies = self.sites[site].copies
        if not copies:
            return
        chosen = _pick(list(copies), dataset)
        copy = copies[chosen]
        columns, query = (WIDE if wide else None), copy.query
        query = None if query is None else query._replace(plus=plus)
        if query is not None and not set(query.inputs) <= set(copies):
            return  # the inputs have no names here
        after = model.update(copy, text, columns, query)
        names = {each: other.alias for each, other in copies.items()}
        snapshots = read_manifests(_manifest(copy.alias, after.chain, names), "test")
        self._run(
            "update",
            lambda: self.open(site).update(snapshots),
            {site: self.sites[site].with_copy(chosen, after)},
            fault=fault,
        )

    @rule(site=SITES, dataset=NUMBERS, name=st.sampled_from(NAMES), fault=FAULTS)
    def rename(self, site: str, dataset: int, name: str, fault: Fault | None) -> None:
        """``odf rename``."""
        before = self.sites[site]
        if not before.copies:
            return
        chosen = _pick(list(before.copies), dataset)
        taken = before.named(name) not in (None, chosen)
        after = before if taken else before.with_copy(chosen, replace(before.copies[chosen], alias=name))
        self._run(
            "rename",
            lambda: self._with_entry(
                site, chosen, lambda ws, each: ws.rename(each, DatasetAlias.parse(name))
            ),
            {site: after},
            error=AlreadyExists if taken else None,
            fault=fault,
        )

    @rule(site=SITES, dataset=NUMBERS, fault=FAULTS)
    def delete(self, site: str, dataset: int, fault: Fault | None) -> None:
        """``odf delete``; refused while derivatives read the dataset."""
        before = self.sites[site]
        if not before.copies:
            return
        chosen = _pick(list(before.copies), dataset)
        readers = before.readers(chosen)
        self._run(
            "delete",
            lambda: self._with_entry(site, chosen, lambda ws, each: ws.delete(each)),
            {site: before if readers else before.without(chosen)},
            error=OdfError if readers else None,
            fault=fault,
        )

    @rule(site=SITES, dataset=NUMBERS, rows=ROWS, old=NUMBERS, force=st.booleans(), fault=FAULTS)
    def ingest(
        self, site: str, dataset: int, rows: list[Row], old: int, force: bool, fault: Fault | None
    ) -> None:
        """``odf ingest``; sometimes of an earlier file."""
        chosen = self._root(site, dataset)
        if chosen is None:
            return
        copy = self.sites[site].copies[chosen]
        path, rows = self._payload(copy, rows, old if old < min(self.payloads, 2) else None)
        after = model.ingest(copy, push_state(path), rows, force=force)
        self._run(
            "ingest",
            lambda: self._ingest(site, chosen, path, force),
            {site: self.sites[site] if after is None else self.sites[site].with_copy(chosen, after)},
            error=BadData if after is None else None,
            fault=fault,
        )

    @rule(
        site=SITES,
        dataset=NUMBERS,
        rows=ROWS,
        other=ROWS,
        second=st.sampled_from(["ingest", "update", "rename", "delete"]),
        name=st.sampled_from(NAMES),
    )
    def ingest_during(
        self, site: str, dataset: int, rows: list[Row], other: list[Row], second: str, name: str
    ) -> None:
        """Another writer changes the dataset between the read and the commit of an ingest."""
        chosen = self._root(site, dataset)
        if chosen is None:
            return
        before = self.sites[site]
        copy = before.copies[chosen]
        path, rows = self._payload(copy, rows, None, fresh=True)
        found = self._second(site, chosen, second, other, name)
        if found is None:
            return
        after, work = found
        changed = after.copies.get(chosen)
        error: type[OdfError] | None = Conflict
        if changed is None:
            error = OdfError
        elif changed.chain == copy.chain:
            done = model.ingest(copy, push_state(path), rows, force=True)
            error = BadData if done is None else None
            if done is not None:
                after = after.with_copy(chosen, replace(done, alias=changed.alias))
        elif model.ingest(copy, "", rows, force=True) in (copy, None):
            error = OdfError  # no change, or a changed row: both are found before the commit
        jobs = self.jobs[site]

        def during() -> None:
            COUNTS["second writers"] += 1
            work()

        jobs.during = during
        self._run(
            f"ingest during {second}",
            lambda: self._ingest(site, chosen, path, False),
            {site: after},
            error=error,
        )
        assert jobs.during is None, "the payload was not read"

    @rule(site=SITES, dataset=NUMBERS, payloads=st.lists(ROWS, min_size=2, max_size=3))
    def race(self, site: str, dataset: int, payloads: list[list[Row]]) -> None:
        """Several processes ingest at the same time: each commits completely, or is refused."""
        chosen = self._root(site, dataset)
        if chosen is None:
            return
        before = self.sites[site]
        copy = before.copies[chosen]
        files = [self._payload(copy, rows, None, fresh=True) for rows in payloads]
        workers = [Child(self.folder, partial(self._ingest, site, chosen, path, False)) for path, _ in files]
        reports = [worker.wait() for worker in workers]
        committed = []
        for report, (path, rows) in zip(reports, files, strict=True):
            assert report.ok or {"Conflict", "BadData"} & set(report.classes), report
            COUNTS["race: committed" if report.ok else "race: refused"] += 1
            if report.ok:
                committed.append((push_state(path), rows))
        assert committed or all("BadData" in each.classes for each in reports), "no process has committed"
        outcomes: list[Copy | None] = []
        for order in permutations(committed):
            now = copy
            for payload, rows in order:
                done = model.ingest(now, payload, rows, force=False)
                now = now if done is None else done
            outcomes.append(now)
        self._settle({site: {**{each: [old] for each, old in before.copies.items()}, chosen: outcomes}})
        self._check(site, [chosen])

    def _root(self, site: str, number: int) -> str | None:
        roots = [each for each, copy in self.sites[site].copies.items() if copy.query is None]
        return _pick(roots, number) if roots else None

    def _payload(
        self, copy: Copy, rows: Sequence[Row], old: int | None, *, fresh: bool = False
    ) -> tuple[Path, list[Row]]:
        """Write a new payload, or return an earlier one; with the rows that are read from it."""
        strategy, columns = model.newest(copy.chain, "AddPushSource")
        if old is not None:
            path = self.folder / f"{old}.ndjson"
        else:
            keys = model.KEYS[strategy]
            unique = {
                tuple(getattr(row, key) for key in keys) if keys else at: row for at, row in enumerate(rows)
            }
            chosen = list(unique.values())
            if fresh:
                row = Row(0, 100 + self.payloads, "f", self.payloads)
                chosen = [each for each in chosen if each.city != "f"] + [row]
            path = self.folder / f"{self.payloads}.ndjson"
            path.write_text(payload_text(chosen, columns))
            self.payloads += 1
        return path, payload_rows(path)

    def _ingest(self, site: str, dataset: str, path: Path, force: bool) -> None:
        workspace = self.open(site)
        entry = workspace.resolve(dataset)
        if not Trust(workspace).is_trusted(entry):
            Trust(workspace).grant(entry)
        workspace.index.close()
        self.jobs[site].run(Ingest(dataset, [str(path)], force=force))

    def _second(
        self, site: str, dataset: str, second: str, rows: list[Row], name: str
    ) -> tuple[Site, Callable[[], object]] | None:
        """Return the site after the work of another writer, and this work, or None if it would be refused."""
        before = self.sites[site]
        copy = before.copies[dataset]
        if second == "ingest":
            path, rows = self._payload(copy, rows, None, fresh=True)
            after = model.ingest(copy, push_state(path), rows, force=False)
            if after is None:
                return None
            other = Jobs(self.folder / site)
            return before.with_copy(dataset, after), lambda: other.run(Ingest(dataset, [str(path)]))
        if second == "update":
            after = model.update(copy, f"text {self.payloads}", None, None)
            snapshots = read_manifests(_manifest(copy.alias, after.chain, {}), "test")
            return before.with_copy(dataset, after), lambda: self.open(site).update(snapshots)
        if second == "rename":
            if before.named(name) is not None:
                return None
            alias = DatasetAlias.parse(name)
            after = before.with_copy(dataset, replace(copy, alias=name))
            return after, lambda: self._with_entry(site, dataset, lambda ws, each: ws.rename(each, alias))
        if before.readers(dataset):
            return None
        return before.without(dataset), lambda: self._with_entry(
            site, dataset, lambda ws, each: ws.delete(each)
        )

    def _with_entry(self, site: str, dataset: str, work: Callable[[Workspace, Any], object]) -> None:
        workspace = self.open(site)
        work(workspace, workspace.resolve(dataset))
        workspace.index.close()

    @rule(site=SITES, dataset=NUMBERS, reset=st.booleans(), fault=FAULTS)
    def transform(self, site: str, dataset: int, reset: bool, fault: Fault | None) -> None:
        """``odf pull`` of a derivative; with ``--reset-on-divergence`` it is rebuilt."""
        before = self.sites[site]
        found = [each for each, copy in before.copies.items() if copy.query and not copy.pulled]
        if not found:
            return
        chosen = _pick(found, dataset)
        copy = before.copies[chosen]
        error = {"absent": NotFound, "diverged": Diverged}.get(model.first_obstacle(before, copy))
        after = copy
        if error is Diverged and reset:
            is_absent = copy.query and not set(copy.query.inputs) <= set(before.copies)
            error, after = (NotFound, copy) if is_absent else (None, model.rebuilt(copy))
        request = Pull(chosen, reset_on_divergence=reset)
        self._run(
            "transform",
            lambda: self.jobs[site].run(request),
            {site: before.with_copy(chosen, after)},
            error=error,
            fault=fault,
            growing=chosen,
        )
        if error is None and fault is None:
            done = self.sites[site].copies[chosen]
            assert not model.pending(self.sites[site], done), "the derivative is not up to date"

    @rule(site=SITES, dataset=NUMBERS, fault=FAULTS)
    def reset(self, site: str, dataset: int, fault: Fault | None) -> None:
        """A derivative starts again, with its settings and without rows."""
        before = self.sites[site]
        found = [each for each, copy in before.copies.items() if copy.query]
        if not found:
            return
        chosen = _pick(found, dataset)
        copy = before.copies[chosen]
        missing = not set(copy.query.inputs if copy.query else ()) <= set(before.copies)
        self._run(
            "reset",
            lambda: self._with_entry(site, chosen, reset_dataset),
            {site: before if missing else before.with_copy(chosen, model.rebuilt(copy))},
            error=NotFound if missing else None,
            fault=fault,
        )

    @rule(site=SITES, dataset=NUMBERS)
    def replay(self, site: str, dataset: int) -> None:
        """``odf verify``: the transactions of a derivative have the same rows again."""
        before = self.sites[site]
        found = [
            each
            for each, copy in before.copies.items()
            if copy.query
            and set(copy.query.inputs) <= set(before.copies)
            and not model.diverged_inputs(before, copy)
        ]
        if not found:
            return
        workspace = self.open(site)
        entry = workspace.resolve(_pick(found, dataset))
        replay = Replay(workspace, entry, ArrowEngine(self.jobs[site]), Reporter())  # type: ignore[arg-type]
        report = verify(entry.dataset, Reporter(), replay=replay)
        COUNTS["replay"] += 1
        assert report.valid, report.findings
        workspace.index.close()

    @rule(dataset=NUMBERS, place=st.sampled_from(["repo", "odf+http"]), force=st.booleans(), fault=FAULTS)
    def push(self, dataset: int, place: str, force: bool, fault: Fault | None) -> None:
        """``odf push`` to the folder, or to the server."""
        here = self.sites["here"]
        if not here.copies:
            return
        chosen = _pick(list(here.copies), dataset)
        copy = here.copies[chosen]
        site = "repo" if place == "repo" else "peer"
        there = self.sites[site]
        theirs = there.copies.get(chosen)
        url = self._url(place, chosen, copy.alias)
        error: type[OdfError] | None = None
        after = theirs
        if theirs is None and site == "peer" and there.named(copy.alias) is not None:
            error = Conflict
        elif theirs is None:
            after = Copy(copy.alias if site == "peer" else "", copy.chain)
        elif not force and model.relation(copy.chain, theirs.chain) in ("behind", "diverged"):
            error = Conflict
        else:
            after = theirs.moved_to(copy.chain, force=force)
        known = replace(copy, pushed=copy.pushed | {url})
        self._run(
            f"push to {place}",
            lambda: self.jobs["here"].run(Push(chosen, url, force=force)),
            {
                "here": here if error else here.with_copy(chosen, known),
                site: there if error or after is None else there.with_copy(chosen, after),
            },
            error=error,
            fault=fault,
        )

    @rule(dataset=NUMBERS, place=PLACES, force=st.booleans(), name=st.sampled_from(NAMES), fault=FAULTS)
    def pull(self, dataset: int, place: str, force: bool, name: str, fault: Fault | None) -> None:
        """``odf pull`` from the folder, or from the server by one of its protocols."""
        there = self.sites["repo" if place == "repo" else "peer"]
        here = self.sites["here"]
        if not there.copies:
            return
        chosen = _pick(list(there.copies), dataset)
        theirs, ours = there.copies[chosen].chain, here.copies.get(chosen)
        url = self._url(place, chosen, "")
        error: type[OdfError] | None = None
        after = ours
        if ours is None:
            request = Pull(url, url=url, alias=name, force=force)
            if here.named(name) is not None:
                error = AlreadyExists
            after = Copy(name, theirs, pulled=frozenset({url}))
            if any(url in copy.pulled | copy.pushed for copy in here.copies.values()):
                error = Conflict  # the URL is that of another dataset
        else:
            request = Pull(chosen, url=url, force=force)
            kind = model.relation(ours.chain, theirs)
            if kind == "diverged" and not force:
                error = Conflict
            elif kind != "ahead" or force:
                after = ours.moved_to(theirs, force=force)
            if after is not None and chosen not in here.keys and not ours.pulled:
                after = replace(after, pulled=frozenset({url}))
        self._run(
            f"pull from {place}",
            lambda: self.jobs["here"].run(request),
            {"here": here if error or after is None else here.with_copy(chosen, after)},
            error=error,
            fault=fault,
        )

    def _url(self, place: str, dataset: str, alias: str) -> str:
        if place == "repo":
            return f"file://{self.folder}/repo/{dataset[-16:]}/"
        known = self.sites["peer"].copies.get(dataset)
        scheme = "odf+http" if place == "odf+http" else "http"
        return f"{scheme}://127.0.0.1:{self.server.address[1]}/{alias if known is None else known.alias}/"

    @rule(site=SITES)
    def fsck(self, site: str) -> None:
        """``odf fsck --repair --now``."""
        self._repair(site)

    def _repair(self, site: str) -> None:
        workspace = self.open(site)
        report = check_workspace(workspace, Reporter(), repair=True, now=True)
        assert not report.left, report.left
        again = check_workspace(workspace, Reporter())
        assert not again.findings, again.findings
        self.dirty[site] = False
        # Its keys are those of its datasets, also of deleted ones; that of an interrupted `add` is gone.
        assert {str(each) for each in workspace.keys.ids()} == self.sites[site].keys
        workspace.index.close()
        self._check(site, list(self.sites[site].copies))

    def _run(
        self,
        name: str,
        work: Callable[[], object],
        after: Mapping[str, Site],
        *,
        error: type[OdfError] | None = None,
        fault: Fault | None = None,
        growing: str | None = None,
    ) -> None:
        """Run an operation and compare the sites with the model.

        Args:
            name: of the operation, for counts.
            work: the operation.
            after: the sites after its success, or after its failure if ``error`` is expected.
            error: the expected error.
            fault: what happens during the operation.
            growing: a derivative, which may get further transactions.
        """
        before = {site: self.sites[site] for site in after}
        report = _report(work) if fault is None else Child(self.folder, work, fault).wait()
        outcome = "ok" if report.ok else "killed" if report.classes == ("killed",) else "error"
        COUNTS[f"{name}: {outcome if fault is None or outcome != 'error' else 'fault'}"] += 1
        if fault is None and error is None:
            assert report.ok, f"{name}: {report.text}"
        elif error is not None and outcome != "killed" and fault is None:
            assert error.__name__ in report.classes, f"{name}: expected {error.__name__}: {report}"
        else:
            assert outcome != "error" or "OdfError" in report.classes, f"{name}: {report.text}"
        if fault is not None:
            for site in self.dirty:
                # A command may succeed although an error of the disk left a file that nothing needs.
                self.dirty[site] |= outcome != "ok" or fault.error != 0
            self._wait_for_server()
        may_be_old = fault is not None and not report.ok
        choices: dict[str, dict[str, list[Copy | None]]] = {}
        touched: dict[str, list[str]] = {}
        for site, expected in after.items():
            ids = {*before[site].copies, *expected.copies}
            choices[site] = {each: [expected.copies.get(each)] for each in ids}
            touched[site] = [
                each for each in ids if expected.copies.get(each) is not before[site].copies.get(each)
            ]
            if may_be_old:
                for each in ids:
                    choices[site][each].append(before[site].copies.get(each))
        failed = outcome == "error" and NotSynced.__name__ not in report.classes
        if failed and fault is not None and name in _ATOMIC:
            # Nothing was committed.
            choices = {
                each: {dataset: [copy] for dataset, copy in before[each].copies.items()} for each in after
            }
        self._settle(choices, growing=growing, exact=not may_be_old)
        for site, ids in touched.items():
            if site != "repo":
                self._check(site, [*ids, *([growing] if growing else [])])
            else:
                self._check_folders(ids)

    def _wait_for_server(self) -> None:
        what = "the pushes of clients that have ended are closed"
        wait_until(lambda: not self.server.serving._pushes, _CHILD_SECONDS, 0.001, what)

    def _settle(
        self,
        choices: Mapping[str, Mapping[str, list[Copy | None]]],
        *,
        growing: str | None = None,
        exact: bool = True,
    ) -> None:
        """Compare all sites with what the model allows, and adopt the hashes of new blocks.

        Args:
            choices: for each dataset of a site the allowed outcomes; other sites are unchanged.
            growing: a derivative, which may have further transactions.
            exact: compare remotes and references too.
        """
        for site, known in self.sites.items():
            allowed: dict[str, list[Copy | None]] = {each: [copy] for each, copy in known.copies.items()}
            allowed = dict(choices.get(site, allowed))
            actual = self._read(site)
            copies: dict[str, Copy] = {}
            keys = set(known.keys)
            for dataset, found in actual.items():
                name = dataset if dataset in allowed else _NEW + found.alias
                outcomes = allowed.pop(name, [None])
                if not any(
                    _matches(outcome, found, exact=exact, growing=dataset == growing) for outcome in outcomes
                ):
                    expected = "\nor ".join(map(_describe, outcomes))
                    raise AssertionError(f"{site}: {_describe(found)}\nexpected {expected}")
                copies[dataset] = found
                if name != dataset:
                    keys.add(dataset)
            absent = {each: outcomes for each, outcomes in allowed.items() if None not in outcomes}
            absent = {
                each: outcomes for each, outcomes in absent.items() if not each.startswith(_NEW) or exact
            }
            assert not absent, f"{site}: not found: {absent}"
            self.sites[site] = Site(copies, frozenset(keys))

    def _read(self, site: str) -> dict[str, Copy]:
        """Return the datasets of a site as they are on disk."""
        if site == "repo":
            found = {}
            for folder in (self.folder / "repo").iterdir():
                dataset = Dataset(folder, BlockIndex(":memory:"))
                if dataset.head() is not None:
                    chain = self.chains.read(dataset)
                    found[chain[0].detail] = Copy("", chain, stored=_references(dataset))
            return found
        workspace = self.open(site)
        remotes = Remotes(workspace.odf)
        copies = {}
        for entry in workspace.datasets():
            known = remotes.get(entry.id)
            copies[str(entry.id)] = Copy(
                str(entry.alias),
                self.chains.read(entry.dataset),
                frozenset(known.pull),
                frozenset(known.push),
                _references(entry.dataset),
            )
        workspace.index.close()
        return copies

    def _check(self, site: str, datasets: Sequence[str]) -> None:
        """Verify datasets of a workspace, compare derivatives with their inputs, and check the workspace."""
        workspace = self.open(site)
        for entry in workspace.datasets():
            copy = self.sites[site].copies[str(entry.id)]
            # A changed input is compared with its derivatives too.
            for problem in model.check_transactions(self.sites[site], copy.chain):
                raise AssertionError(f"{site}: {entry.alias}: {problem}")
            if str(entry.id) in datasets:
                report = verify(entry.dataset, Reporter(), known=workspace.index)
                assert report.valid, f"{site}: {entry.alias}: {report.findings}"
                assert entry.dataset.state().watermark is None or copy.chain
        findings = check_workspace(workspace, Reporter()).findings
        found = {finding.kind for finding in findings}
        assert found <= (_ORPHANS if self.dirty[site] else set()), f"{site}: {findings}"
        workspace.index.close()

    def _check_folders(self, datasets: Sequence[str]) -> None:
        """Verify datasets of the repository."""
        for folder in (self.folder / "repo").iterdir():
            dataset = Dataset(folder, BlockIndex(":memory:"))
            if dataset.head() is not None and self.chains.read(dataset)[0].detail in datasets:
                report = verify(dataset, Reporter())
                assert report.valid, report.findings


def _references(dataset: Dataset) -> frozenset[str]:
    return frozenset(map(str, dataset.references().values()))


def _scratch_folder() -> str | None:
    """Return a folder in memory, if there is one: nothing here has to outlive the process."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def run(examples: int, steps: int, number: int | None) -> None:
    """Run the machine.

    Args:
        examples: number of examples.
        steps: number of operations in each.
        number: seed; None: always the same examples.
    """
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=number is None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        print_blob=False,
        phases=[Phase.generate],
    )
    machine = WorkspaceMachine if number is None else seed(number)(WorkspaceMachine)
    run_state_machine_as_test(machine, settings=chosen)


def main() -> None:
    """Run the long form, and print counts."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    started = time.monotonic()
    try:
        run(options.examples, options.steps, options.seed)
    finally:
        examples = COUNTS.pop("examples")
        print(f"{examples} examples, {sum(COUNTS.values())} operations")
        for name, count in sorted(COUNTS.items()):
            print(f"{count:7} {name}")
        print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
