"""From one payload to one commit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.slices import WrittenSlice, write_slice
from odf_engine.errors import BadData, Cancelled, Conflict, InvalidSchema, NotSynced, OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.ingest.fetch import Payload
from odf_engine.ingest.merge import merge
from odf_engine.ingest.merge_base import Inputs, Merged, TryAgain
from odf_engine.ingest.prepare import Limits, Prepared, prepare
from odf_engine.ingest.preprocess import preprocess
from odf_engine.ingest.read import Reading, read
from odf_engine.ingest.shape import as_declared, declared_schema, find_operations, schema_for, without
from odf_engine.metadata.model import (
    AddData,
    AddPushSource,
    Csv,
    DataSlice,
    EsriShapefile,
    MetadataEvent,
    Parquet,
    SetDataSchema,
    SetPollingSource,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.spark.encodings import encoding_of
from odf_engine.spark.plans import loses_order
from odf_engine.spark.types import arrow_schema
from odf_engine.workspace.config import Config
from odf_engine.workspace.workspace import DatasetEntry

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame
    from odf_engine.spark.session import SparkSession

_LINE: Final = re.compile(r": line ([0-9]+)")
_WIDEST: Final = 160
_PART: Final = 1 << 16

Reader = Callable[["SparkSession", Prepared, Path, Reporter], Reading | None]
"""Begins to read a prepared file; the folder is for temporary files."""


class PayloadJob:
    """Reads, merges and commits one payload of a source that is polled or pushed to.

    ``run`` leaves the dataset either as it was, or with the payload's rows and source state in it.
    Rows that are pushed may have a column with operations; those of a polled source may not.
    """

    def __init__(
        self,
        entry: DatasetEntry,
        source: SetPollingSource | AddPushSource,
        payload: Payload,
        session: SparkSession,
        folder: Path,
        config: Config,
        reporter: Reporter,
        *,
        after: Multihash | None = None,
        reader: Reader | None = None,
        strict: bool = False,
    ) -> None:
        """``after`` is the head of which source and payload were taken, where others may have moved it
        since; ``reader`` reads in another way than the source says; ``strict`` makes errors of rows that
        a ledger has with other values.

        Raises:
            Conflict: the head is another one than ``after``.
        """
        self._entry = entry
        self._dataset = entry.dataset
        self._source = source
        self._payload = payload
        self._session = session
        self._folder = folder
        self._config = config
        self._reporter = reporter
        self._reader = reader
        self._strict = strict
        self._state = entry.dataset.state()
        if after is not None and self._state.head != after:
            raise Conflict(
                "somebody else changed the dataset while its source was read",
                hint="try again: the work starts from the new head",
                where=f"head {self._state.head}, expected {after}",
            )
        self._system_time = max(Timestamp.now(), self._state.system_time)
        self._event_time = payload.event_time or self._system_time
        self._declared = declared_schema(self._state)
        self._begun = monotonic()
        self._size = 0
        self._merged: Merged | None = None

    def run(self) -> Multihash:
        """Does it; returns the head that the dataset has then.

        Raises:
            NotSynced: the head has moved; a power failure may undo it.
            OdfError: nothing was committed.
        """
        staged = self._dataset.staging_path("data")
        try:
            prepared = self._prepare()
            with _excerpts(prepared, getattr(self._source.read, "encoding", None)):
                reading = self._read(prepared)
                written, schema = (None, None) if reading is None else self._write(reading, staged)
            self._payload.check_unchanged()
            head = self._commit(written, schema, staged)
        except (Cancelled, NotSynced):
            raise
        except OdfError:
            self._payload.check_unchanged()  # then whatever looked wrong is no wonder
            raise
        finally:
            staged.unlink(missing_ok=True)
        return head

    def _prepare(self) -> Prepared:
        payload = self._payload
        steps = self._source.prepare if isinstance(self._source, SetPollingSource) else None
        if steps:
            self._reporter.phase("prepare")
        limits = Limits.of(self._config.prepare)
        return prepare(steps, payload.path, payload.name, self._folder, self._reporter, limits)

    def _read(self, prepared: Prepared) -> Reading | None:
        reporter = self._reporter
        self._size = prepared.path.stat().st_size
        reporter.phase("read")
        step, session, folder = self._source.read, self._session, self._folder
        if self._reader is not None:
            return self._reader(session, prepared, folder, reporter)
        limits = Limits.of(self._config.prepare)
        reading = read(session, step, prepared, folder, reporter, limits=limits)
        if reading is None or reading.columns is not None or self._source.preprocess is not None:
            return reading
        # What types were guessed depends on the rows of the day; the dataset's types count.
        guessed = arrow_schema(reading.frame.schema)
        subset = not isinstance(step, Csv | Parquet | EsriShapefile)
        columns = as_declared(guessed, self._declared, self._state.vocabulary, subset=subset)
        if columns is None:
            return reading
        return read(session, step, prepared, folder, reporter, columns, limits=limits)

    def _write(self, reading: Reading, staged: Path) -> tuple[WrittenSlice | None, pa.Schema]:
        """Everything that runs in Spark; errors get the place in the file that they are about."""
        try:
            vocab = self._state.vocabulary
            result = preprocess(self._session, reading.frame, self._source.preprocess)
            pushed = isinstance(self._source, AddPushSource)
            operations = find_operations(result.columns, vocab) if pushed else None
            columns = reading.columns if self._source.preprocess is None else None
            schema = schema_for(
                without(arrow_schema(result.schema), operations),
                columns and without(columns, operations),
                self._declared,
                vocab,
            )
            self._reporter.phase("merge")
            self._merged = merge(self._source.merge, self._inputs(result, schema, operations))
            self._reporter.phase("write")
            return self._write_slice(self._merged, schema, staged), schema
        except BadData as error:
            raise reading.explain(error) from error
        except InvalidSchema as error:
            error.where = error.where or self._payload.name
            raise

    def _inputs(self, new: DataFrame, schema: pa.Schema, operations: str | None) -> Inputs:
        return Inputs(
            session=self._session,
            new=new,
            schema=schema,
            vocab=self._state.vocabulary,
            dataset=self._dataset,
            first_offset=self._first_offset,
            event_time=self._event_time,
            scratch=self._folder,
            reporter=_Part(self._reporter, bytes=self._bytes_read),
            changelog=operations,
            strict=self._strict,
            unordered=self._source.preprocess is not None and loses_order(new),
        )

    def _write_slice(self, merged: Merged, schema: pa.Schema, staged: Path) -> WrittenSlice | None:
        while True:
            with suppress(TryAgain):
                return self._write_once(merged, schema, staged)

    def _write_once(self, merged: Merged, schema: pa.Schema, staged: Path) -> WrittenSlice | None:
        begun = monotonic()
        written = write_slice(
            merged.batches(),
            schema=schema,
            vocab=self._state.vocabulary,
            path=staged,
            first_offset=self._first_offset,
            system_time=self._system_time,
            fallback_event_time=self._event_time,
            reporter=_Part(self._reporter, rows=lambda rows: {"rows": rows}),
        )
        if written is None:
            self._reporter.line(f"{self._payload.name}: no new rows")
        else:
            self._reporter.line(
                f"{self._payload.name}: read, merged and written, {written.rows:,} rows,"
                f" {written.size:,} bytes in {monotonic() - begun:.1f} s"
            )
        return written

    @property
    def _first_offset(self) -> int:
        last = self._state.last_offset
        return 0 if last is None else last + 1

    def _bytes_read(self, read: int) -> dict[str, int]:
        # Spark counts what it reads of earlier slices too.
        return {"bytes": min(read, self._size), "total_bytes": self._size}

    def _commit(self, written: WrittenSlice | None, schema: pa.Schema | None, staged: Path) -> Multihash:
        reporter, state = self._reporter, self._state
        source_state = self._payload.state or state.source_state
        if written is None and source_state == state.source_state:
            reporter.line(f"{self._payload.name}: nothing changed")
            return state.head
        reporter.phase("commit")
        reporter.check()
        events: list[MetadataEvent] = []
        if written is not None and self._declared is None and schema is not None:
            events.append(SetDataSchema(schema=encode_schema(schema)))
        checkpoint = state.last_checkpoint
        watermark = [time for time in (state.watermark, written and written.max_event_time) if time]
        events.append(
            AddData(
                prev_checkpoint=checkpoint.physical_hash if checkpoint else None,
                prev_offset=state.last_offset,
                new_data=_data_slice(written),
                new_checkpoint=checkpoint,
                new_watermark=max(watermark, default=None),
                new_source_state=source_state,
            )
        )
        head = self._dataset.commit(
            events,
            system_time=self._system_time,
            expected_head=state.head,
            data=staged if written is not None else None,
            block_version=self._config.block_version,
        )
        rows = written.rows if written is not None else 0
        took = monotonic() - self._begun
        reporter.line(f"{self._payload.name}: block {head}, {rows:,} rows, in {took:.1f} s all in all")
        reporter.committed(str(self._entry.id), str(head), "AddData", rows)
        if written is not None and self._merged is not None:
            self._merged.committed(written.offset_interval.end, str(written.physical_hash))
        return head


@contextmanager
def _excerpts(prepared: Prepared, encoding: str | None) -> Iterator[None]:
    """Gives errors about a line of the file that line."""
    try:
        yield
    except OdfError as error:
        found = _LINE.match((error.where or "").removeprefix(prepared.name))
        if found is not None and (error.where or "").startswith(prepared.name):
            codec = encoding_of(prepared.path, encoding) or "utf-8"
            error.excerpt = _excerpt(prepared.path, int(found[1]), codec)
        raise


def _excerpt(path: Path, number: int, encoding: str) -> tuple[str, ...]:
    """One line, cut to what can be shown, with its number before it."""
    here = 1
    try:
        with path.open(encoding=encoding, errors="replace") as lines:
            while here < number and (part := lines.readline(_PART)):
                here += part.endswith("\n")  # a line may be larger than memory
            line = lines.readline(_PART).rstrip()
    except (OSError, LookupError, UnicodeError):
        return ()
    # A terminal must not obey what stands in a file.
    text = "".join(char if char.isprintable() or char == "\t" else "\ufffd" for char in line)
    return (f"{number} | {text if len(text) <= _WIDEST else text[:_WIDEST] + '…'}",) if text else ()


def _data_slice(written: WrittenSlice | None) -> DataSlice | None:
    if written is None:
        return None
    return DataSlice(
        logical_hash=written.logical_hash,
        physical_hash=written.physical_hash,
        offset_interval=written.offset_interval,
        size=written.size,
    )


class _Part(Reporter):
    """Passes on one kind of amount only: Spark knows the bytes that were read, the slice its rows."""

    def __init__(self, whole: Reporter, **amounts: Callable[[int], dict[str, int]]) -> None:
        super().__init__()
        self._whole = whole
        self._amounts = amounts

    def amount(self, **amounts: Any) -> None:
        for name, said in self._amounts.items():
            if amounts.get(name) is not None:
                self._whole.amount(**said(amounts[name]))

    def line(self, text: str, level: str = "info") -> None:
        self._whole.line(text, level)

    @property
    def cancelled(self) -> bool:
        return self._whole.cancelled

    def check(self) -> None:
        self._whole.check()

    @contextmanager
    def on_cancel(self, hook: Callable[[], None]) -> Iterator[None]:
        with self._whole.on_cancel(hook):
            yield
