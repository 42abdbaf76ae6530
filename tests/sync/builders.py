"""Datasets to exchange, made in milliseconds: without ingestion, and without waiting for the disk."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from odf_engine.chain.dataset import Dataset
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.identity.multiformats import ARROW0_SHA3_256, Multihash, multibase_encode
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.flatbuffers import encode_block
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    AddData,
    Checkpoint,
    DatasetKind,
    DataSlice,
    ExecuteTransform,
    ExecuteTransformInput,
    MetadataBlock,
    MetadataEvent,
    OffsetInterval,
    SetDataSchema,
    SetInfo,
    SetTransform,
    Sql,
    SqlQueryStep,
    TransformInput,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.slices import stage_slice

START = Timestamp.parse("2024-05-01T00:00:00Z")
SCHEMA = slice_schema(pa.schema([("city", pa.string()), ("people", pa.int64())]), DEFAULT_VOCABULARY)
SECOND = 1_000_000_000
DAY = 86_400 * SECOND


def make_root(
    workspace: Workspace, name: str = "numbers", *, slices: int = 0, rows: int = 3, blocks: int = 0
) -> DatasetEntry:
    """A root dataset: Seed, schema, then so many slices of real rows, then so many blocks without any."""
    events = [SetDataSchema(encode_schema(SCHEMA))]
    with _no_waiting():
        entry = workspace.create_dataset(DatasetAlias.parse(name), DatasetKind.Root, events, START)
    add_slices(entry, slices, rows)
    add_blocks(entry, blocks)
    return entry


def add_slices(entry: DatasetEntry, count: int = 1, rows: int = 3, city: str = "Bern") -> list[Multihash]:
    """Commits slices of real rows, one block each; the hashes of their files."""
    made: list[Multihash] = []
    for _ in range(count):
        state = entry.dataset.state()
        first = 0 if state.last_offset is None else state.last_offset + 1
        table = pa.table({"city": [city] * rows, "people": range(first, first + rows)})
        time = Timestamp(state.system_time.ns + SECOND)
        watermark = max(time, state.watermark or time)
        event, path = stage_slice(entry.dataset, table, SCHEMA, time, new_watermark=watermark)
        commit(entry, [event], data=path)
        assert event.new_data is not None
        made.append(event.new_data.physical_hash)
    return made


def add_files(entry: DatasetEntry, count: int, size: int, seed: int = 0) -> list[Multihash]:
    """Commits slices of exactly ``size`` random bytes, which are no rows; the hashes of their files."""
    state, events, made = entry.dataset.state(), [], []
    chance, last = random.Random(f"{seed} {state.head}"), state.last_offset
    watermark = state.watermark or START
    for _ in range(count):
        content = chance.randbytes(size)
        physical = put(entry.dataset, "data", content)
        first = 0 if last is None else last + 1
        logical = Multihash(ARROW0_SHA3_256, physical.digest)
        data = DataSlice(logical, physical, OffsetInterval(first, first), size)
        events.append(AddData(prev_offset=last, new_data=data, new_watermark=watermark))
        made.append(physical)
        last = first
    if events:
        commit(entry, events)
    return made


def add_blocks(entry: DatasetEntry, count: int = 1) -> None:
    """Commits blocks without data: each moves the watermark of a root dataset by a day."""
    for done in range(0, count, 1000):
        state = entry.dataset.state()
        before = (state.watermark or START).ns
        numbers = range(1, min(count - done, 1000) + 1)
        events = [
            AddData(prev_offset=state.last_offset, new_watermark=Timestamp(before + number * DAY))
            for number in numbers
        ]
        commit(entry, events)


def describe(entry: DatasetEntry, text: str) -> Multihash:
    """Commits one small block: two datasets that are described otherwise have diverged."""
    return commit(entry, [SetInfo(text)])


def commit(entry: DatasetEntry, events: Sequence[MetadataEvent], data: Path | None = None) -> Multihash:
    """Appends events a second after what was there; returns the new head."""
    state = entry.dataset.state()
    with _no_waiting():
        return entry.dataset.commit(
            events,
            system_time=Timestamp(state.system_time.ns + SECOND),
            expected_head=state.head,
            data=data,
        )


def make_derivative(workspace: Workspace, source: DatasetEntry, name: str = "derived") -> DatasetEntry:
    """A derivative dataset of one input, with one slice and one checkpoint, which no engine has made."""
    transform = SetTransform(
        [TransformInput(str(source.id), "source")],
        Sql("spark", queries=[SqlQueryStep(query="SELECT * FROM source")]),
    )
    events = [transform, SetDataSchema(encode_schema(SCHEMA))]
    with _no_waiting():
        entry = workspace.create_dataset(DatasetAlias.parse(name), DatasetKind.Derivative, events, START)
    content, remembered = f"rows of {name}".encode(), f"state of {name}".encode()
    physical = put(entry.dataset, "data", content)
    data = DataSlice(
        Multihash(ARROW0_SHA3_256, physical.digest), physical, OffsetInterval(0, 0), len(content)
    )
    checkpoint = Checkpoint(put(entry.dataset, "checkpoints", remembered), len(remembered))
    read = source.dataset.state()
    item = ExecuteTransformInput(source.id, new_block_hash=read.head, new_offset=read.last_offset)
    commit(entry, [ExecuteTransform([item], new_data=data, new_checkpoint=checkpoint, new_watermark=START)])
    return entry


def read_input(entry: DatasetEntry, source: DatasetEntry) -> None:
    """Commit a transaction without rows that reads an input up to its newest block."""
    state, read = entry.dataset.state(), source.dataset.state()
    (last,), checkpoint = state.last_inputs or (), state.last_checkpoint
    assert checkpoint is not None
    event = ExecuteTransform(
        [ExecuteTransformInput(source.id, last.last_block, read.head, last.last_offset, read.last_offset)],
        prev_checkpoint=checkpoint.physical_hash,
        prev_offset=state.last_offset,
        new_checkpoint=checkpoint,
        new_watermark=read.watermark,
    )
    entry.dataset.commit([event], system_time=read.system_time, expected_head=state.head)


def put(dataset: Dataset, kind: str, content: bytes) -> Multihash:
    """Puts an object into a dataset's folder."""
    name = Multihash.sha3_256(content)
    folder = dataset.folder / kind
    folder.mkdir(exist_ok=True)
    (folder / str(name)).write_bytes(content)
    return name


def forge(dataset: Dataset, event: MetadataEvent, version: int = 3, **changes: Any) -> Multihash:
    """Appends a block as it is and moves the head to it: no rule is asked."""
    head = dataset.head()
    before = None if head is None else dataset.block(head).block
    plain = {
        "system_time": START if before is None else before.system_time,
        "prev_block_hash": head,
        "sequence_number": 0 if before is None else before.sequence_number + 1,
        "event": event,
    }
    made = put(dataset, "blocks", encode_block(MetadataBlock(**{**plain, **changes}), version))
    set_head(dataset.folder, str(made))
    return made


def set_head(folder: Path, text: str) -> None:
    """Writes ``refs/head`` as it is, whatever it says."""
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "head").write_text(text)


def copy_into(workspace: Workspace, entry: DatasetEntry, name: str | None = None) -> DatasetEntry:
    """The same dataset in another workspace, as it is now; it has no key there, as if it had been pulled."""
    folder = workspace.odf / "datasets" / entry.id.multibase
    as_repository(entry.dataset.folder, folder)
    (folder / "info").mkdir()
    (folder / "info" / "alias").write_text(name or str(entry.alias))
    return workspace.resolve(str(entry.id))


def as_repository(dataset: Path, folder: Path) -> str:
    """A dataset's folder in repository layout, without ``info/``; its ``file:`` URL."""
    shutil.copytree(dataset, folder, ignore=shutil.ignore_patterns("info"))
    return f"file://{folder}/"


def as_old_repository(dataset: Path, folder: Path, prefix: str = "z", *, head: bool = True) -> str:
    """The same with names in base58, as before RFC-012, or in another multibase encoding; its ``file:`` URL.

    ``head``: also the hash in ``refs/head``.
    """
    url = as_repository(dataset, folder)
    for kind in ("blocks", "data", "checkpoints"):
        for path in list((folder / kind).glob("f*")):
            path.rename(path.with_name(encode_name(path.name, prefix)))
    if head:
        set_head(folder, encode_name((folder / "refs" / "head").read_text(), prefix))
    return url


def encode_name(name: str, prefix: str = "z") -> str:
    """The name of an object in another multibase encoding."""
    return multibase_encode(bytes(Multihash.parse(name)), prefix)


def objects(folder: Path) -> dict[str, int]:
    """What a dataset's folder holds beside ``info/``, with sizes: whole objects and everything else."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] != "info"
    }


def _no_waiting() -> Any:
    return mock.patch("os.fsync", lambda descriptor: None)
