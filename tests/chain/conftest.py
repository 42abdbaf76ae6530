"""Chains that tests are made of."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from odf_engine.chain.append_rules import check_append
from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.state import ChainState, apply_block
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import ARROW0_SHA3_256, Multihash
from odf_engine.metadata.model import (
    AddData,
    Append,
    Checkpoint,
    Csv,
    DatasetKind,
    DataSlice,
    ExecuteTransform,
    ExecuteTransformInput,
    MetadataBlock,
    OffsetInterval,
    Seed,
    SetDataSchema,
    SetPollingSource,
    SetTransform,
    SourceState,
    Sql,
    SqlQueryStep,
    TransformInput,
    Url,
)
from odf_engine.metadata.timestamp import Timestamp

DAY = 86_400_000_000_000


class Chains:
    """Makes events, blocks and states."""

    ids = tuple(DatasetId(bytes([number]) * 32) for number in range(1, 5))
    root = Seed(ids[0], DatasetKind.Root)
    derivative = Seed(ids[0], DatasetKind.Derivative)
    system_columns = (
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("op", pa.uint8(), nullable=False),
        pa.field("system_time", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("event_time", pa.timestamp("ms", "UTC")),
    )

    def hash(self, text: str) -> Multihash:
        return Multihash.sha3_256(text.encode())

    def day(self, number: int) -> Timestamp:
        return Timestamp(number * DAY)

    def schema(self, *columns: pa.Field) -> SetDataSchema:
        return SetDataSchema(encode_schema(pa.schema([*self.system_columns, *columns])))

    def slice(self, start: int, end: int, content: bytes = b"rows") -> DataSlice:
        return DataSlice(
            logical_hash=Multihash(ARROW0_SHA3_256, hashlib.sha3_256(content).digest()),
            physical_hash=Multihash.sha3_256(content),
            offset_interval=OffsetInterval(start, end),
            size=len(content),
        )

    def checkpoint(self, content: bytes) -> Checkpoint:
        return Checkpoint(Multihash.sha3_256(content), len(content))

    def source_state(self, value: str) -> SourceState:
        return SourceState("default", "odf/etag", value)

    def add_data(self, state: ChainState, rows: int = 0, **changes: Any) -> AddData:
        """The AddData that carries everything on, with ``rows`` new records."""
        carried: dict[str, Any] = {
            "prev_checkpoint": state.last_checkpoint and state.last_checkpoint.physical_hash,
            "prev_offset": state.last_offset,
            "new_checkpoint": state.last_checkpoint,
            "new_watermark": state.watermark,
            "new_source_state": state.source_state,
        }
        if rows:
            start = 0 if state.last_offset is None else state.last_offset + 1
            carried["new_data"] = self.slice(start, start + rows - 1)
        return AddData(**(carried | changes))

    def polling(self, url: str = "https://example.com/a.csv", **changes: Any) -> SetPollingSource:
        parts: dict[str, Any] = {"fetch": Url(url), "read": Csv(schema=["a INT"]), "merge": Append()}
        return SetPollingSource(**(parts | changes))

    def transform(self, *inputs: DatasetId) -> SetTransform:
        named = [TransformInput(str(each), f"in{at}") for at, each in enumerate(inputs)]
        return SetTransform(named, Sql("spark", queries=[SqlQueryStep(query="SELECT 1")]))

    def execute(
        self, state: ChainState, inputs: Sequence[ExecuteTransformInput], **changes: Any
    ) -> ExecuteTransform:
        parts: dict[str, Any] = {
            "query_inputs": list(inputs),
            "prev_offset": state.last_offset,
            "prev_checkpoint": state.last_checkpoint and state.last_checkpoint.physical_hash,
            "new_checkpoint": state.last_checkpoint,
            "new_watermark": state.watermark,
        }
        return ExecuteTransform(**(parts | changes))

    def block(self, state: ChainState | None, event: Any, **changes: Any) -> MetadataBlock:
        """The block that may follow ``state``."""
        parts: dict[str, Any] = {
            "system_time": self.day(0) if state is None else state.system_time,
            "prev_block_hash": None if state is None else state.head,
            "sequence_number": 0 if state is None else state.sequence_number + 1,
            "event": event,
        }
        return MetadataBlock(**(parts | changes))

    def follow(self, state: ChainState | None, block: MetadataBlock) -> ChainState:
        """Checks the block and folds it."""
        check_append(state, block)
        return apply_block(state, block, self.hash(repr(block)))

    def state(self, *events: Any) -> ChainState:
        """The state after these events, all allowed."""
        state: ChainState | None = None
        for event in events:
            state = self.follow(state, self.block(state, event))
        assert state is not None
        return state

    def dataset(self, folder: Path, index: BlockIndex | None = None) -> Dataset:
        return Dataset(folder, index or BlockIndex(":memory:"))

    def grow(self, dataset: Dataset, days: int) -> None:
        """Commits one record a day, with a slice of its own each."""
        for _ in range(days):
            state = dataset.state()
            start = 0 if state.last_offset is None else state.last_offset + 1
            content = f"rows of {start}".encode()
            staged = dataset.staging_path("data")
            staged.write_bytes(content)
            event = self.add_data(
                state, new_data=self.slice(start, start, content), new_watermark=self.day(start)
            )
            dataset.commit([event], system_time=state.system_time, expected_head=state.head, data=staged)

    def made(self, folder: Path, days: int = 0, index: BlockIndex | None = None) -> Dataset:
        """A root dataset with a schema and some days of data."""
        dataset = self.dataset(folder, index)
        events = [self.root, self.schema(pa.field("a", pa.int64()))]
        dataset.commit(events, system_time=self.day(0), expected_head=None)
        self.grow(dataset, days)
        return dataset


@pytest.fixture(scope="session")
def chains() -> Chains:
    return Chains()
