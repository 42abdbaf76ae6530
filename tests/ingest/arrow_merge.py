"""Merges into a real dataset without Spark: new rows and hashes are made by Python."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from odf_engine.base.config import OnConflict
from odf_engine.base.files import remove_temporary
from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.block_summary import SliceSummary
from odf_engine.chain.dataset import Dataset
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.changelog import Op
from odf_engine.data.parquet.row_groups import SliceLimits
from odf_engine.data.parquet.slice_rows import SliceProperties
from odf_engine.data.parquet.slices import WrittenSlice, read_batches, slice_schema, write_slices
from odf_engine.errors import BadData
from odf_engine.identity.did import DatasetId
from odf_engine.ingest.merge import merge_changelog, merge_upsert
from odf_engine.ingest.merge.base import POSITION, KeyedMerge, MergeInputs
from odf_engine.ingest.merge.changelog_check import CODE
from odf_engine.ingest.merge.key_file import KEY, OFFSET, SECOND, TIME, VALUES
from odf_engine.ingest.merge.merge_changelog import OP_TEXT, Changelog, UnkeyedChangelog
from odf_engine.ingest.merge.merge_plan import run_merge
from odf_engine.ingest.merge.merge_strategy import merge
from odf_engine.ingest.merge.merge_upsert import Upsert
from odf_engine.ingest.payload import data_events
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    DatasetKind,
    MergeStrategy,
    Seed,
    SetDataSchema,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark import row_order
from tests.ingest.recorder import Recorder

SCHEMA = slice_schema(pa.schema([("id", pa.int64()), ("n", pa.int64())]), DEFAULT_VOCABULARY)
NOW = Timestamp.parse("2024-06-01T00:00:00Z")


class Row(NamedTuple):
    """A new row; the time is a day of 2024, the operation is that of a pushed changelog."""

    id: int | None
    n: int | None
    day: int | None = None
    op: str | None = None


class Frame(NamedTuple):
    """Stands for a DataFrame."""

    batches: list[pa.RecordBatch]
    sparkSession: None = None


def digest(*values: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(values).encode()).digest()[:8], "big", signed=True)


def key_hashes(key: int | None) -> tuple[int | None, int | None]:
    """Two keys share each first hash."""
    return (None, None) if key is None else (digest(key // 2), digest(key))


def millis(day: int | None) -> int | None:
    return None if day is None else (19723 + day) * 86_400_000


class ArrowMerge:
    """A dataset with the columns ``id`` and ``n``, and merges of lists of rows."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, dataset: Dataset | None = None) -> None:
        """``folder`` is for temporary files, and for a new dataset unless there is one."""
        self.dataset = dataset or Dataset(folder / "dataset", BlockIndex(":memory:"))
        if dataset is None:
            seed = Seed(DatasetId(bytes(range(32))), DatasetKind.Root)
            schema = SetDataSchema(encode_schema(SCHEMA))
            self.dataset.commit([seed, schema], system_time=NOW, expected_head=None)
        self.reporter = Recorder()
        self.index_rebuilds = 0
        self._folder = folder
        self._new: list[Row] = []
        patch.setattr(KeyedMerge, "frame", lambda keyed, **options: self._keyed_frame(**options))
        patch.setattr(KeyedMerge, "_history", lambda keyed, slices: self._history(slices))
        patch.setattr(Changelog, "_frame", lambda changelog: self._changelog_frame(changelog))
        patch.setattr(Upsert, "_frame", lambda upsert: self._upsert_frame(upsert))
        patch.setattr(UnkeyedChangelog, "_history", lambda changelog, rows: self._matching_rows(rows))
        for module in (row_order, merge_changelog, merge_upsert):
            patch.setattr(
                module, "arrow_batches", lambda frame, reporter: (None, (batch for batch in frame.batches))
            )
        patch.setattr(row_order, "sort_partitions", lambda session, partitions: nullcontext())

    @property
    def keys(self) -> list[Path]:
        """The files of the key index."""
        return sorted((self.dataset.folder / "info").glob("keys/*/*.keys"))

    def merge(
        self,
        strategy: MergeStrategy,
        rows: Sequence[Row],
        *,
        on_conflict: OnConflict = "warn",
        changelog: bool = False,
        index: bool = True,
        slice_rows: int = 1 << 20,
    ) -> int:
        """Merge and commit rows; return the number of new rows. ``index``: the keys are committed too."""
        self._new = list(rows)
        self.reporter = Recorder()
        last = self.dataset.state().last_offset
        first = 0 if last is None else last + 1
        scratch = self._folder / f"scratch-{first}-{digest(rows)}"
        scratch.mkdir(exist_ok=True)
        inputs = MergeInputs(
            session=SimpleNamespace(version="4"),  # type: ignore[arg-type]
            new=SimpleNamespace(columns=[]),  # type: ignore[arg-type]
            schema=SCHEMA,
            vocab=DEFAULT_VOCABULARY,
            dataset=self.dataset,
            first_offset=first,
            event_time=NOW,
            scratch=scratch,
            reporter=self.reporter,
            changelog="op" if changelog else None,
            on_conflict=on_conflict,
        )

        def write(batches: Iterator[pa.RecordBatch]) -> list[WrittenSlice]:
            return write_slices(
                batches,
                SliceProperties(
                    schema=SCHEMA,
                    vocab=DEFAULT_VOCABULARY,
                    first_offset=first,
                    system_time=NOW,
                    fallback_event_time=NOW,
                ),
                new_path=lambda: self.dataset.staging_path("data"),
                reporter=self.reporter,
                limits=SliceLimits(slice_rows, 1 << 30),
            )

        merged = run_merge(merge(strategy, inputs), write, self.reporter)
        if not merged.written:
            return 0
        try:
            self._commit(merged.written)
        finally:
            for each in merged.written:
                remove_temporary(each.path)
        if index and merged.keys is not None:
            last = merged.written[-1]
            merged.keys.commit(last.offset_interval.end, str(last.physical_hash), self.reporter)
        return sum(each.rows for each in merged.written)

    def _commit(self, written: list[WrittenSlice]) -> None:
        state = self.dataset.state()
        times = [state.watermark, *(each.max_event_time for each in written)]
        events = data_events(
            state, written, [None] * len(written), watermark=max(filter(None, times)), source_state=None
        )
        data = [each.path for each in written]
        self.dataset.commit(events, system_time=NOW, expected_head=state.head, data=data)

    def rows(self) -> list[dict[str, Any]]:
        """All rows of the dataset, with the day of their event time."""
        paths = [self.dataset.slice_path(row) for row in self.dataset.slices()]
        rows = [row for path in paths for batch in read_batches(path) for row in batch.to_pylist()]
        return [{**row, "day": (row["event_time"] - datetime(2024, 1, 1, tzinfo=UTC)).days} for row in rows]

    def state(self) -> dict[int, tuple[int, int]]:
        """Value and day of the live rows; no row may contradict those before it."""
        live: dict[int, tuple[int, int]] = {}
        for row in self.rows():
            values = row["n"], row["day"]
            if row["op"] in (Op.APPEND, Op.CORRECT_TO):
                assert live.setdefault(row["id"], values) == values
            else:
                assert live.pop(row["id"]) == values
        return live

    def _keyed_frame(self, *, check_keys: bool, order: str | None = None) -> Frame:
        rows = self._new
        if check_keys:
            rows = list(dict.fromkeys(rows))
            if any(row.id is None for row in rows) or len({row.id for row in rows}) < len(rows):
                raise BadData("invalid keys")
        if order is not None:
            by_time = POSITION in order
            rows = sorted(rows, key=lambda row: row.day or 200 if by_time else row.id)  # type: ignore
        columns = {POSITION: list(range(len(rows)))} if check_keys else {}
        return self._frame(rows, columns, lambda row: (*key_hashes(row.id), digest(row.n)))

    def _upsert_frame(self, upsert: Upsert) -> Frame:
        if upsert._inputs.changelog is None:
            return self._keyed_frame(check_keys=False)
        return self._changelog_frame(upsert)

    def _changelog_frame(self, changelog: Changelog | Upsert) -> Frame:
        codes = {op.code: int(op) for op in Op}
        columns = {
            CODE: pa.array([codes.get(row.op or "") for row in self._new], pa.int32()),
            OP_TEXT: [row.op for row in self._new],
        }
        by_key = not isinstance(changelog, UnkeyedChangelog)

        def hashes(row: Row) -> tuple[int | None, ...]:
            return (*(key_hashes(row.id) if by_key else (digest(row[:2]), 0)), digest(row.n) if by_key else 0)

        return self._frame(self._new, columns, hashes)

    def _frame(self, rows: list[Row], columns: dict[str, Any], hashes: Any) -> Frame:
        table = pa.table(
            {
                "event_time": pa.array([millis(row.day) for row in rows], pa.timestamp("ms", "UTC")),
                "id": pa.array([row.id for row in rows], pa.int64()),
                "n": pa.array([row.n for row in rows], pa.int64()),
                **columns,
                **{
                    name: pa.array([hashes(row)[at] for row in rows], pa.int64())
                    for at, name in enumerate((KEY, SECOND, VALUES))
                },
            }
        )
        return Frame(table.to_batches(max_chunksize=max(1, len(rows) // 2)))

    def _history(self, slices: Sequence[SliceSummary]) -> Iterator[pa.RecordBatch]:
        self.index_rebuilds += slices[0].start == 0
        for part in slices:
            for batch in read_batches(self.dataset.slice_path(part)):
                yield self._key_columns(batch.to_pylist(), lambda row: key_hashes(row["id"]))

    def _matching_rows(self, retractions: pa.Table) -> list[dict[str, int]]:
        wanted = set(retractions.column(KEY).to_pylist())
        rows = self._key_columns(self.rows(), lambda row: (digest((row["id"], row["n"])), 0)).to_pylist()
        return [row for row in rows if row[KEY] in wanted]

    @staticmethod
    def _key_columns(rows: list[dict[str, Any]], hashes: Any) -> pa.RecordBatch:
        columns = {
            KEY: [hashes(row)[0] for row in rows],
            SECOND: [hashes(row)[1] for row in rows],
            OFFSET: [row["offset"] if row["op"] in (0, 3) else ~row["offset"] for row in rows],
            TIME: [int(row["event_time"].timestamp() * 1000) for row in rows],
            VALUES: [digest(row["n"]) for row in rows],
        }
        return pa.RecordBatch.from_pydict(
            columns, schema=pa.schema([pa.field(name, pa.int64()) for name in columns])
        )
