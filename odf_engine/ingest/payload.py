"""From one payload to one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.slices import WrittenSlice, write_slice
from odf_engine.errors import BadData, InvalidSchema
from odf_engine.ingest.fetch import Payload
from odf_engine.ingest.history import History
from odf_engine.ingest.merge import merge
from odf_engine.ingest.merge_base import DoubtfulKeys, Inputs, Merged
from odf_engine.ingest.ordering import OutOfOrder
from odf_engine.ingest.prepare import prepare
from odf_engine.ingest.preprocess import preprocess
from odf_engine.ingest.read import Reading, read
from odf_engine.ingest.shape import as_declared, declared_schema, schema_for
from odf_engine.metadata.model import (
    AddData,
    Csv,
    DataSlice,
    MetadataEvent,
    Parquet,
    SetDataSchema,
    SetPollingSource,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.spark.types import arrow_schema
from odf_engine.workspace.config import Config
from odf_engine.workspace.workspace import DatasetEntry

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame
    from odf_engine.spark.session import SparkSession

_SMALL: Final = 64 << 20
"""The rows of a text file of so many bytes at most may be sent to every executor."""
_SMALL_PACKED: Final = 8 << 20
"""The same for a format that packs values."""


class PayloadJob:
    """Reads, merges and commits one payload.

    ``run`` leaves the dataset either as it was, or with the payload's rows and source state in it.
    """

    def __init__(
        self,
        entry: DatasetEntry,
        source: SetPollingSource,
        payload: Payload,
        session: SparkSession,
        folder: Path,
        config: Config,
        reporter: Reporter,
    ) -> None:
        self._entry = entry
        self._dataset = entry.dataset
        self._source = source
        self._payload = payload
        self._session = session
        self._folder = folder
        self._config = config
        self._reporter = reporter
        self._state = entry.dataset.state()
        self._system_time = max(Timestamp.now(), self._state.system_time)
        self._event_time = payload.event_time or self._system_time
        self._declared = declared_schema(self._state)
        self._size = 0

    def run(self) -> None:
        """Does it.

        Raises:
            OdfError: nothing was committed.
        """
        begun = monotonic()
        staged = self._dataset.staging_path("data")
        try:
            reading = self._read()
            written, schema = (None, None) if reading is None else self._write(reading, staged)
            self._payload.check_unchanged()
            self._commit(written, schema, staged)
        finally:
            staged.unlink(missing_ok=True)
        self._reporter.line(f"{self._payload.name}: done in {monotonic() - begun:.1f} s", "debug")

    def _read(self) -> Reading | None:
        payload, reporter = self._payload, self._reporter
        if self._source.prepare:
            reporter.phase("prepare")
        prepared = prepare(self._source.prepare, payload.path, payload.name, self._folder, reporter)
        self._size = prepared.path.stat().st_size
        reporter.phase("read")
        step, session, folder = self._source.read, self._session, self._folder
        reading = read(session, step, prepared, folder, reporter)
        if reading is None or reading.columns is not None or self._source.preprocess is not None:
            return reading
        # What types were guessed depends on the rows of the day; the dataset's types count.
        guessed = arrow_schema(reading.frame.schema)
        subset = not isinstance(step, Csv | Parquet)
        columns = as_declared(guessed, self._declared, self._state.vocabulary, subset=subset)
        return reading if columns is None else read(session, step, prepared, folder, reporter, columns)

    def _write(self, reading: Reading, staged: Path) -> tuple[WrittenSlice | None, pa.Schema]:
        """Everything that runs in Spark; errors get the place in the file that they are about."""
        try:
            result = preprocess(self._session, reading.frame, self._source.preprocess)
            columns = reading.columns if self._source.preprocess is None else None
            schema = schema_for(arrow_schema(result.schema), columns, self._declared, self._state.vocabulary)
            self._reporter.phase("merge")
            merged = merge(self._source.merge, self._inputs(result, schema))
            self._reporter.phase("write")
            return self._write_slice(merged, schema, staged), schema
        except BadData as error:
            raise reading.explain(error) from error
        except InvalidSchema as error:
            error.where = error.where or self._payload.name
            raise

    def _inputs(self, new: DataFrame, schema: pa.Schema) -> Inputs:
        return Inputs(
            session=self._session,
            new=new,
            schema=schema,
            vocab=self._state.vocabulary,
            history=History(
                session=self._session,
                dataset=self._dataset,
                schema=schema,
                vocab=self._state.vocabulary,
                scratch=self._folder,
                reporter=self._reporter,
            ).frame,
            event_time=self._event_time,
            small=self._size <= (_SMALL_PACKED if isinstance(self._source.read, Parquet) else _SMALL),
            reporter=self._reporter,
        )

    def _write_slice(self, merged: Merged, schema: pa.Schema, staged: Path) -> WrittenSlice | None:
        sort = check = False
        while True:
            try:
                return self._write_once(merged, schema, staged, sort=sort, check=check)
            except OutOfOrder:
                self._reporter.line("the rows are not in the order of their event time: they are sorted")
                sort = True
            except DoubtfulKeys:
                if check:
                    raise BadData(
                        "the rows are other ones each time they are computed",
                        hint="take what is random out of the preprocess query",
                    ) from None
                check = True

    def _write_once(
        self, merged: Merged, schema: pa.Schema, staged: Path, *, sort: bool, check: bool
    ) -> WrittenSlice | None:
        begun = monotonic()
        state = self._state
        # Spark counts what it reads of earlier slices too.
        total = self._size
        reading = _Part(self._reporter, bytes=lambda read: {"bytes": min(read, total), "total_bytes": total})
        written = write_slice(
            merged.batches(reading, sort=sort, check=check),
            schema=schema,
            vocab=state.vocabulary,
            path=staged,
            first_offset=0 if state.last_offset is None else state.last_offset + 1,
            system_time=self._system_time,
            fallback_event_time=self._event_time,
            reporter=_Part(self._reporter, rows=lambda rows: {"rows": rows}),
        )
        if written is None:
            self._reporter.line(f"{self._payload.name}: no new rows")
        else:
            self._reporter.line(
                f"{self._payload.name}: {written.rows:,} rows, {written.size:,} bytes"
                f" in {monotonic() - begun:.1f} s"
            )
        return written

    def _commit(self, written: WrittenSlice | None, schema: pa.Schema | None, staged: Path) -> None:
        reporter, state = self._reporter, self._state
        source_state = self._payload.state or state.source_state
        if written is None and source_state == state.source_state:
            reporter.line(f"{self._payload.name}: nothing changed")
            return
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
        reporter.line(f"{self._payload.name}: block {head}, {rows:,} rows")
        reporter.committed(str(self._entry.id), str(head), "AddData", rows)


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
