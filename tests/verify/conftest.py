"""A dataset with a few slices and a checkpoint, made without ingestion."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.parquet.slice_rows import SliceProperties
from odf_engine.data.parquet.slices import slice_schema, write_slice
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import SHA3_256, Multihash
from odf_engine.metadata.flatbuffers import encode_block
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    AddData,
    Checkpoint,
    DatasetKind,
    DataSlice,
    MetadataBlock,
    MetadataEvent,
    OffsetInterval,
    Seed,
    SetDataSchema,
    SetInfo,
)
from odf_engine.metadata.timestamp import Timestamp

START = Timestamp.parse("2024-05-01T00:00:00Z")
SCHEMA = slice_schema(pa.schema([("city", pa.string()), ("people", pa.int64())]), DEFAULT_VOCABULARY)
CHECKPOINT = b"what the engine remembers"


def moment(step: int) -> Timestamp:
    return Timestamp(START.ns + step * 60_000_000_000)


class Builder:
    """Puts blocks and slices into a dataset, also such as no rule would let in."""

    def __init__(self, folder: Path) -> None:
        self.dataset = Dataset(folder, BlockIndex(":memory:"))
        self.blocks: list[Multihash] = []
        self.slices: list[Path] = []
        self.head: Multihash | None = None
        self.offset: int | None = None

    def block(self, event: MetadataEvent, **changes: Any) -> Multihash:
        """Stores a block as it is and moves the head to it; no rule is asked."""
        plain = {
            "system_time": moment(len(self.blocks)),
            "prev_block_hash": self.head,
            "sequence_number": len(self.blocks),
            "event": event,
        }
        data = encode_block(MetadataBlock(**{**plain, **changes}))
        self.head = Multihash.sha3_256(data)
        self.put("blocks", self.head, data)
        refs = self.dataset.folder / "refs"
        refs.mkdir(exist_ok=True)
        (refs / "head").write_text(str(self.head))
        self.blocks.append(self.head)
        return self.head

    def put(self, kind: str, name: Multihash, data: bytes) -> Path:
        path = self.dataset.folder / kind / str(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def data(
        self, cities: Sequence[str | None], ops: Sequence[int] | None = None, **changes: Any
    ) -> Multihash:
        """Commits rows; ``changes`` to the event, or to the finished table by ``edit``."""
        edit = changes.pop("edit", None)
        first = 0 if self.offset is None else self.offset + 1
        table = pa.table({"city": pa.array(cities, pa.string()), "people": range(len(cities))})
        staging = self.dataset.staging_path("data")
        written = write_slice(
            table.to_batches(),
            SliceProperties(
                schema=SCHEMA,
                vocab=DEFAULT_VOCABULARY,
                first_offset=first,
                system_time=moment(len(self.blocks)),
                fallback_event_time=moment(len(self.blocks)),
            ),
            path=staging,
            reporter=Reporter(),
        )
        assert written is not None
        data = DataSlice(written.logical_hash, written.physical_hash, written.offset_interval, written.size)
        if edit is not None:
            data = self._edited(staging, data, edit)
        self.slices.append(staging.rename(staging.with_name(str(data.physical_hash))))
        plain = {"prev_offset": self.offset, "new_data": data, "new_watermark": moment(len(self.blocks))}
        self.offset = data.offset_interval.end
        return self.block(AddData(**{**plain, **changes}))

    @staticmethod
    def _edited(path: Path, data: DataSlice, edit: Callable[[pa.Table], pa.Table]) -> DataSlice:
        """The file with other rows, its hashes and size right, its offsets as they were."""
        import pyarrow.parquet as pq

        from odf_engine.data.digest import digest_file

        table = edit(pq.read_table(path))
        pq.write_table(table, path)
        found = digest_file(path)
        return DataSlice(found.logical_hash, found.physical_hash, data.offset_interval, found.size)

    def checkpoint(self) -> Checkpoint:
        name = Multihash(SHA3_256, hashlib.sha3_256(CHECKPOINT).digest())
        self.put("checkpoints", name, CHECKPOINT)
        return Checkpoint(name, len(CHECKPOINT))


@pytest.fixture
def empty(tmp_path: Path) -> Builder:
    """A dataset with its Seed and its schema: blocks 0 and 1."""
    builder = Builder(tmp_path / "dataset")
    builder.block(Seed(DatasetId(bytes(range(32))), DatasetKind.Root))
    builder.block(SetDataSchema(encode_schema(SCHEMA)))
    return builder


@pytest.fixture
def builder(empty: Builder) -> Builder:
    """Three slices (blocks 2, 4, 5), a SetInfo (block 3), a checkpoint in block 5."""
    empty.data(["A", "B", "C"])
    empty.block(SetInfo("cities", None))
    empty.data(["D"])
    empty.data(["E", "F"], new_checkpoint=empty.checkpoint())
    return empty


__all__ = ["CHECKPOINT", "SCHEMA", "START", "Builder", "OffsetInterval", "moment"]
