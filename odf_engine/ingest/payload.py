"""Ingestion of one payload as one commit of one or more blocks: read, preprocess, schema, merge, write."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from odf_engine.base.config import OnConflict, parse_size
from odf_engine.base.files import remove_temporary
from odf_engine.base.progress import Reporter, count_of
from odf_engine.chain.linked_objects import check_links
from odf_engine.chain.normal_form import BUILT_IN_ENGINES, query_of, with_version
from odf_engine.chain.schema_evolution import declare_schema, declared_schema
from odf_engine.chain.state import ChainState, is_push_state
from odf_engine.checks.gate import DatasetChecks
from odf_engine.data.ddl import type_ddl
from odf_engine.data.parquet.parquet_reader import read_parquet_schema
from odf_engine.data.parquet.row_groups import SliceLimits
from odf_engine.data.parquet.slice_rows import SliceProperties
from odf_engine.data.parquet.slice_tasks import SliceTask, SourceRows
from odf_engine.data.parquet.slices import WrittenSlice
from odf_engine.data.schema_enforcement import finest_timestamp_unit
from odf_engine.errors import (
    BadData,
    Cancelled,
    Conflict,
    InvalidQuery,
    InvalidSchema,
    NewColumns,
    NotSynced,
    OdfError,
)
from odf_engine.identity.multiformats import Multihash
from odf_engine.ingest.fetch.model import Payload, infer_command
from odf_engine.ingest.merge.base import MergeInputs
from odf_engine.ingest.merge.merge_plan import MergedSlices, PreparedMerge, run_merge
from odf_engine.ingest.merge.merge_strategy import merge, repeats_stored_rows
from odf_engine.ingest.prep_step import PreparedFile, PrepareLimits, prepare
from odf_engine.ingest.preprocess import PreprocessContext, PreprocessedRows, preprocess, runs_in_session
from odf_engine.ingest.raw_query import FindEngine, find_built_in_engine
from odf_engine.ingest.read.bad_rows import BadRowSearch, Rejection, list_bad_rows, reject_bad_rows
from odf_engine.ingest.read.error_location import excerpts
from odf_engine.ingest.read.known_header import KnownHeader
from odf_engine.ingest.read.read_step import ReadOptions, ReadPlan, read
from odf_engine.ingest.read.text_file import shorten
from odf_engine.ingest.result_schema import (
    adopt_declared_types,
    column_attributes,
    drop_column,
    operation_column,
    result_schema,
)
from odf_engine.ingest.source_lines import SourceLines
from odf_engine.ingest.write_progress import WriteProgress
from odf_engine.metadata.model import (
    AddData,
    AddPushSource,
    Append,
    Csv,
    DataSlice,
    EsriShapefile,
    ExtraAttributes,
    MetadataEvent,
    Parquet,
    SetPollingSource,
    SourceState,
)
from odf_engine.metadata.object_links import (
    LinkedTotals,
    check_link_columns,
    find_link_columns,
    totals_attribute,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark.errors import RejectedRow
from odf_engine.spark.executors.slice_writer import ExecutorWriter
from odf_engine.spark.sql_types import arrow_schema, replace_values
from odf_engine.spark.text_files import RecordLines
from odf_engine.workspace.dataset_folders import Rejects, store_rejects
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.definition import accepts_operations, has_read_schema
from odf_engine.workspace.definitions.definition_update import find_manifest
from odf_engine.workspace.trust import Trust

if TYPE_CHECKING:
    from odf_engine.spark import SparkSession
    from odf_engine.workspace.workspace import Workspace


_LINE_NUMBER: Final = re.compile(r"\bline ([0-9]{1,9})\b")
Reader = Callable[["SparkSession", PreparedFile, Path, Reporter], ReadPlan | None]
"""Plans to read a prepared file; the folder is for temporary files. Returns None for an empty file."""


class StagedSlices(NamedTuple):
    """Slices that are not yet committed, and their complete schema."""

    schema: pa.Schema
    merged: MergedSlices


class OpenedRows(NamedTuple):
    """The rows of a file after the preprocess query, and the columns as declared for the file, if any."""

    rows: PreprocessedRows
    columns: pa.Schema | None


class IngestContext(NamedTuple):
    """What all payloads of a pull or push share.

    Attributes:
        entry: the dataset.
        session: Spark session.
        workspace: the workspace of the dataset.
        reporter: receives phases, amounts and commits, and cancels the job.
        checks: checks of the dataset, which the new rows must pass.
        strict: rows of a ledger with a known key and other values are an error; overrides the setting
            ``onConflict``.
        attached: stored objects by their names, which link columns may have instead of their hashes.
        find_engine: returns the external engines of preprocess queries.
    """

    entry: DatasetEntry
    session: SparkSession
    workspace: Workspace
    reporter: Reporter
    checks: DatasetChecks | None
    strict: bool = False
    attached: Mapping[str, Multihash] = MappingProxyType({})
    find_engine: FindEngine = find_built_in_engine


class PayloadJob:
    """Reads, merges and commits one payload of a polling or push source.

    ``run`` commits the rows and the source state of the payload, or nothing.

    Attributes:
        payload: the payload.
        repeated: number of rows that were appended although all of them repeat earlier rows.
    """

    def __init__(
        self,
        context: IngestContext,
        source: SetPollingSource | AddPushSource,
        payload: Payload,
        folder: Path,
        *,
        after: Multihash | None,
        reader: Reader | None = None,
    ) -> None:
        """Prepare the ingestion into the current head.

        Args:
            context: the dataset, and what its payloads share.
            source: the source event.
            payload: the fetched or pushed file.
            folder: for temporary files; the caller removes it.
            after: the expected head, or None for a dataset without blocks.
            reader: replaces the read step of the source.

        Raises:
            Conflict: the head is not ``after``.
        """
        entry, config = context.entry, context.workspace.config
        self._entry = entry
        self._dataset = entry.dataset
        self._source = source
        self.payload = payload
        self._session = context.session
        self._folder = folder
        self._config = config
        self._root = context.workspace.folder
        self._reporter = context.reporter
        self._reader = reader
        self._strict = context.strict
        self._attached = context.attached
        self._checks = context.checks
        self._state = entry.dataset.state()
        if self._state.head != after:
            raise Conflict(
                "the dataset was changed while its source was read",
                hint="try again from the new head",
                where=f"head {self._state.head}, expected {after}",
            )
        self._system_time = max(Timestamp.now(), self._state.system_time)
        self._event_time = payload.event_time or self._system_time
        names = (str(entry.alias), str(entry.id))
        self._max_ahead = config.watermark.max_ahead_of(*names)
        self._delay = config.watermark.delay_of(*names)
        self._declared = declared_schema(self._state)
        self._described = column_attributes(self._state, source, config)
        is_stored = self._state.odf_schema is not None
        check_link_columns(self._described, "SetDataSchema" if is_stored else "read.schema")
        self._link_columns = find_link_columns(self._described)
        self._preprocess_context = PreprocessContext(
            context.session,
            folder,
            parse_size(config.datafusion.memory),
            context.reporter,
            context.find_engine,
            self._no_rows_schema(),
        )
        self._trust = Trust(context.workspace)
        self._known_header = KnownHeader(context.workspace.odf / "cache" / "headers" / entry.id.multibase)
        self.engine_version: str | None = None
        self._started = monotonic()
        self.repeated = 0
        self._rejection: Rejection | None = None
        self._digits_reported = False
        self._progress = WriteProgress(context.reporter, 0, total_known=False)

    def run(self) -> Multihash:
        """Ingest the payload; return the new head, or the old one if nothing has changed.

        Raises:
            NotSynced: the head was moved, and a power failure can revert it.
            OdfError: nothing was committed.
        """
        with self.staged() as staged:
            return self._commit(staged)

    @contextmanager
    def staged(self) -> Iterator[StagedSlices | None]:
        """Yield the slices that :meth:`run` would commit, or None for an empty file; remove them afterwards.

        Raises:
            OdfError: as in :meth:`run`. Errors of the ``with`` body are located in the same way.
        """
        staged: StagedSlices | None = None
        try:
            with self._infer_hint():
                prepared = self.prepare_file()
            with (
                self._source_lines().in_errors(prepared),
                excerpts(prepared.path, prepared.name, getattr(self._source.read, "encoding", None)),
            ):
                staged = self._stage_valid_rows(prepared)
            self.payload.check_unchanged()
            yield staged
        except (Cancelled, NotSynced):
            raise
        except OdfError as error:
            self.payload.check_unchanged()  # A change of the file explains the error.
            if isinstance(error, NewColumns) and error.hint is None:
                error.hint = self._accept_hint()
            error.message = self._name_origins(error.message)
            error.where = error.where and self._name_origins(error.where)
            error.excerpt = tuple(map(self._name_origins, error.excerpt))
            raise
        finally:
            for part in () if staged is None else staged.merged.written:
                remove_temporary(part.path)

    @contextmanager
    def _infer_hint(self) -> Iterator[None]:
        """Add the command that adapts the source to errors of its format."""
        try:
            yield
        except (BadData, InvalidSchema) as error:
            is_adaptable = isinstance(self._source, SetPollingSource) and isinstance(self._source.read, Csv)
            if is_adaptable and not isinstance(error, NewColumns):
                hint = f"if the format of the file changed, run {infer_command(str(self._entry.alias))}"
                error.hint = f"{error.hint}; {hint}" if error.hint else hint
            raise

    def _accept_hint(self) -> str:
        """Return how to add the new columns of the source to the dataset."""
        has_columns = has_read_schema(self._source.read)
        if isinstance(self._source, SetPollingSource) and has_columns:
            return f"to add them to the dataset, run {infer_command(str(self._entry.alias))}"
        if isinstance(self._source, AddPushSource) and not has_columns:
            return (
                "to add them, list all columns under SetDataSchema in the manifest and run odf add --update"
            )
        manifest = find_manifest(self._root, self._entry)
        command = "odf add --update --accept-columns"
        if manifest is None:
            return f"to add them, run odf show --manifest {self._entry.alias} | {command} -"
        path = manifest.relative_to(self._root) if manifest.is_relative_to(self._root) else manifest
        return f"to add them to the dataset, run {command} {shlex.quote(str(path))}"

    def _stage_valid_rows(self, prepared: PreparedFile) -> StagedSlices | None:
        """Write the rows of a file; without its invalid rows if the dataset rejects them.

        Only after an error the file is searched for all invalid rows.
        """
        try:
            return self._stage(prepared)
        except BadData as error:
            if isinstance(error.__cause__, BadData) and not isinstance(error.__cause__, RejectedRow):
                raise  # Not an error of a row as read, but of the merge.
            rejects = self._config.bad_rows_action(str(self._entry.alias), str(self._entry.id)) == "reject"
            selected = self._reject_rows(prepared, error, rejects=rejects)
        return self._stage(selected)

    def _stage(self, prepared: PreparedFile) -> StagedSlices | None:
        reading = self._open(prepared)
        return None if reading is None else self._write(reading)

    def _open(self, prepared: PreparedFile) -> ReadPlan | None:
        with self._infer_hint():
            reading = self._read(prepared)
            if reading is not None and prepared.selected is None:
                self._compare_header(reading, prepared.name)
        if reading is not None:
            if reading.columns is None:
                self._report_truncation(prepared)
            self._report_lost_digits(reading)
        return reading

    def open_rows(self) -> OpenedRows | None:
        """Prepare the file, and return its rows after the preprocess query, or None if it has none.

        Raises:
            OdfError: the file cannot be read. Invalid rows are an error only when the rows are read.
        """
        reading = self._open(self.prepare_file())
        return None if reading is None else self._preprocess(reading)

    def _reject_rows(self, prepared: PreparedFile, error: BadData, *, rejects: bool) -> PreparedFile:
        """Return the file without its invalid rows.

        Args:
            prepared: the file.
            error: the error of reading it.
            rejects: whether invalid rows are left out.

        Raises:
            BadData: the first invalid rows, if they are not left out; or ``error`` if the file has none.
        """
        name, reporter = self.payload.name, self._reporter
        search = self._search_bad_rows(prepared)
        if search is not None and not rejects:
            hint = f"to ingest the other rows, run odf config set onBadRows.{self._entry.alias} reject"
            if (listed := list_bad_rows(search, reporter, error, hint)) is not None:
                raise listed from error.__cause__
        rejection = None if search is None else reject_bad_rows(search, self._folder, reporter)
        if rejection is None:
            raise error
        self._rejection = rejection
        rows = count_of(rejection.rows, "invalid row")
        first = self._name_origins(str(rejection.first))
        reporter.warn(f"{name}: {rows} rejected, the first in {first}", "rejected-rows", rejection.rows)
        return replace(prepared, selected=rejection.selected)

    def _name_origins(self, text: str) -> str:
        """Return a message with the origin of each line that it names, such as its topic."""
        origins = self.payload.line_origins
        # The lines of a prepared file are others.
        if not origins or getattr(self._source, "prepare", None):
            return text
        return _LINE_NUMBER.sub(
            lambda match: (
                f"{match[0]} ({origins[int(match[1]) - 1]})"
                if 0 < int(match[1]) <= len(origins)
                else match[0]
            ),
            text,
        )

    def _search_bad_rows(self, prepared: PreparedFile) -> BadRowSearch | None:
        """Return the search for invalid rows of a file, or None if not single rows are invalid."""
        lines = RecordLines()
        self._reporter.phase("read")
        try:
            reading = self._read(replace(prepared, lines=lines))
            if reading is None or lines.text is None:
                return None
            # The rows of other engines have no numbers: only rows that cannot be read are found.
            query, context = self._source.preprocess, self._preprocess_context
            step = query if runs_in_session(context, query) else None
            result = preprocess(context, reading.frame, step)
            assert result is not None
        except (BadData, InvalidQuery, InvalidSchema):
            return None  # The file cannot be read at all.
        return BadRowSearch(self._session, prepared.name, lines, reading, result.frame)

    def prepare_file(self) -> PreparedFile:
        """Return the file after the prepare steps; it exists as long as the folder of the job.

        Raises:
            OdfError: a step failed.
        """
        lines = self._source_lines()
        if lines.steps:
            self._reporter.phase("prepare")
        return prepare(lines.steps, lines.fetched, lines.root, lines.folder, lines.reporter, lines.limits)

    def _source_lines(self) -> SourceLines:
        steps = self._source.prepare if isinstance(self._source, SetPollingSource) else None
        file = PreparedFile(self.payload.path, self.payload.name)
        limits = PrepareLimits.of(self._config)
        return SourceLines(steps or (), file, self._root, self._folder, self._reporter, limits)

    def _read(self, prepared: PreparedFile) -> ReadPlan | None:
        reporter = self._reporter
        # Only the first rows of a dataset, and appended ones, are merged without reading its slices.
        only_file = self._state.last_offset is None or isinstance(self._source.merge, Append)
        size = prepared.path.stat().st_size
        self._progress = WriteProgress(reporter, size, total_known=only_file)
        reporter.phase("read")
        step, session, folder = self._source.read, self._session, self._folder
        limits = PrepareLimits.of(self._config)
        if self._reader is not None:
            reading = self._reader(session, prepared, folder, reporter)
        else:
            # A dataset from before this column, or the result of a query, gets it only if declared.
            feature_ids = self._source.preprocess is None and (
                self._declared is None or "id" in map(str.casefold, self._declared.names)
            )
            reading = read(
                session, step, prepared, folder, reporter, ReadOptions(limits, feature_ids=feature_ids)
            )
        if reading is None or reading.columns is not None or self._source.preprocess is not None:
            return reading
        # Inferred types depend on the rows of the file. Those of the dataset take precedence.
        guessed = arrow_schema(reading.frame.schema)
        subset = not isinstance(step, Csv | Parquet | EsriShapefile)
        operations = self._operations_in(guessed.names)
        columns = adopt_declared_types(
            drop_column(guessed, operations), self._declared, self._state.vocabulary, subset=subset
        )
        if columns is None:
            return reading
        if operations is not None:
            at = guessed.get_field_index(operations)
            columns = columns.insert(min(at, len(columns)), guessed.field(at))
        return read(session, step, prepared, folder, reporter, ReadOptions(limits, columns))

    def _compare_header(self, reading: ReadPlan, name: str) -> None:
        """Compare the header with the header at the last pull, and warn of renamed columns."""
        if not isinstance(self._source, SetPollingSource) or not reading.header or reading.columns is None:
            return
        renamed = self._known_header.compare(reading.header, reading.columns.names, f"{name}: line 1")
        if renamed:
            pairs = shorten(", ".join(f"{old} is now {new}" for old, new in renamed))
            text = f"{name}: columns renamed since the last pull: {pairs}; their values are read as before"
            if len(renamed) == len(reading.header):
                text += f"; if the format of the file changed, run {infer_command(str(self._entry.alias))}"
            self._reporter.warn(text, "renamed-columns", len(renamed))

    def _operations_in(self, names: list[str]) -> str | None:
        """Return the name of the column with operations, or None if absent, or none is accepted."""
        return operation_column(names, self._state.vocabulary) if accepts_operations(self._source) else None

    def _report_truncation(self, prepared: PreparedFile) -> None:
        """Log which timestamps of a Parquet file lose digits because no schema declares their precision."""
        if self._declared is not None or not isinstance(self._source.read, Parquet):
            return
        time = self._state.vocabulary.event_time_column.casefold()  # always in milliseconds
        names = [
            field.name
            for field in read_parquet_schema(prepared.path)
            if field.name.casefold() != time and finest_timestamp_unit([field.type]) != "ms"
        ]
        if names:
            self._reporter.warn(
                f"{prepared.name}: timestamps truncated to milliseconds: {', '.join(names)}; to keep"
                " microseconds, list the columns in read.schema with the type TIMESTAMP(6)",
                "truncated-values",
            )

    def _report_lost_digits(self, reading: ReadPlan) -> None:
        """Log which columns lose digits of times, once for a file."""
        if self._digits_reported:
            return
        try:
            counts = reading.digits.count(self._reporter)
        except BadData:
            return  # Writing the rows reports the error.
        self._digits_reported = True
        if not counts:
            return
        dropped = (f"{field.name} {type_ddl(field.type)} ({count_of(rows, 'row')})" for field, rows in counts)
        self._reporter.log(
            f"{self.payload.name}: times truncated to the precision of their columns: {', '.join(dropped)};"
            " to keep all digits, declare a higher precision in read.schema, such as TIMESTAMP(6) or TIME(9)",
            "warning",
        )

    def _write(self, reading: ReadPlan) -> StagedSlices | None:
        """Run preprocess, merge and write; return None for a query without rows and known columns.

        The location of an error in the file is added to it.
        """
        try:
            opened = self._preprocess(reading)
            return None if opened is None else self._merge_rows(opened)
        except BadData as error:
            raise reading.explain(error) from error
        except InvalidSchema as error:
            error.where = error.where or self.payload.name
            raise

    def _merge_rows(self, opened: OpenedRows) -> StagedSlices:
        inputs = self.merge_inputs(opened)
        self._reporter.phase("merge")
        return self._run_merge(merge(self._source.merge, inputs), inputs.schema)

    def _no_rows_schema(self) -> pa.Schema | None:
        """Return the columns of a result without rows, or None before the first rows of the dataset."""
        if self._declared is None:
            return None
        vocab = self._state.vocabulary
        system = {vocab.offset_column, vocab.system_time_column}
        if not accepts_operations(self._source):
            system.add(vocab.operation_type_column)
        return pa.schema([field for field in self._declared if field.name not in system])

    def _run_merge(self, prepared: PreparedMerge, schema: pa.Schema) -> StagedSlices:
        task = SliceTask(self._slice_properties(schema), self._slice_limits(), self._folder, pa.__version__)
        new_path = partial(self._dataset.staging_path, "data")
        writer = ExecutorWriter(self._session, task, new_path, self._progress.writes)
        if prepared.frame is not None:
            started = monotonic()
            written = writer.write_frame(prepared.frame, SourceRows(task.properties), self._progress.reads)
            if written is not None:
                self._report_written(written, started)
                return StagedSlices(schema, MergedSlices(written, None))
        merged = run_merge(prepared, lambda rows: self._write_slices(rows, writer), self._reporter)
        return StagedSlices(schema, merged)

    def merge_inputs(self, opened: OpenedRows) -> MergeInputs:
        """Return the inputs of the merge, which have the complete schema of the slices.

        Raises:
            InvalidSchema: the columns differ from the dataset columns.
        """
        result, read_columns = opened
        hashes = {name: str(link) for name, link in self._attached.items()}
        result = replace(result, frame=replace_values(result.frame, self._link_columns, hashes))
        operations = self._operations_in(result.schema.names)
        columns = read_columns if self._source.preprocess is None else None
        # A query returns timestamps as precise as those that it reads.
        unit = "ms" if read_columns is None else finest_timestamp_unit(read_columns.types)
        schema = result_schema(
            drop_column(result.schema, operations),
            columns and drop_column(columns, operations),
            self._declared,
            self._state.vocabulary,
            unit,
            self._config.metadata.system_columns,
        )
        return MergeInputs(
            session=self._session,
            new=result.frame,
            schema=schema,
            vocab=self._state.vocabulary,
            dataset=self._dataset,
            first_offset=self._first_offset,
            event_time=self._event_time,
            scratch=self._folder,
            reporter=self._progress.reads,
            changelog=operations,
            on_conflict=self._conflict_action(),
            unordered=result.unordered,
        )

    def _preprocess(self, reading: ReadPlan) -> OpenedRows | None:
        """Run the preprocess query; return None for a query without rows and known columns."""
        rows = preprocess(self._preprocess_context, reading.frame, self._source.preprocess)
        if rows is None:
            self._reporter.log(f"{self.payload.name}: the preprocess query returned no rows")
            return None
        self.engine_version = rows.version
        return OpenedRows(rows, reading.columns)

    def _conflict_action(self) -> OnConflict:
        """Return what a ledger does with a changed row of a known key."""
        if self._strict:
            return "fail"
        return self._config.conflict_action(str(self._entry.alias), str(self._entry.id))

    def _write_slices(self, rows: Iterator[pa.RecordBatch], writer: ExecutorWriter) -> list[WrittenSlice]:
        started = monotonic()
        self._progress.start()
        written = writer.write_batches(rows)
        self._report_written(written, started)
        return written

    def _slice_properties(self, schema: pa.Schema) -> SliceProperties:
        return SliceProperties(
            schema=schema,
            vocab=self._state.vocabulary,
            first_offset=self._first_offset,
            system_time=self._system_time,
            fallback_event_time=self._event_time,
            counted_until=None if self._max_ahead is None else self._system_time.shifted(self._max_ahead),
        )

    def _report_written(self, written: Sequence[WrittenSlice], started: float) -> None:
        if not written:
            self._reporter.log(f"{self.payload.name}: no new rows")
        else:
            size = sum(part.size for part in written)
            files = f" in {count_of(len(written), 'slice')}" if len(written) > 1 else ""
            self._reporter.log(
                f"{self.payload.name}: {count_of(_count_rows(written), 'row')}, {size:,} bytes{files}"
                f" written in {monotonic() - started:.1f} s"
            )
            if isinstance(self._source.merge, Append):
                self._report_repetition(written)

    def _slice_limits(self) -> SliceLimits | None:
        if isinstance(self._source, AddPushSource) and self._state.polling_source is not None:
            # A block without a state counts as a poll, and the intermediate blocks of a first push have none.
            return None
        slices = self._config.slices
        return SliceLimits(slices.target_records, parse_size(slices.target_bytes))

    def _report_repetition(self, written: Sequence[WrittenSlice]) -> None:
        """Report that all rows of an append repeat earlier ones: the source may be a complete list."""
        vocab = self._state.vocabulary
        system = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
        new = [part.path for part in written]
        times = (vocab.event_time_column, self._event_time)
        if repeats_stored_rows(new, self._dataset, system, times, self._reporter):
            self.repeated = rows = _count_rows(written)
            self._reporter.warn(
                f"{self.payload.name}: all {count_of(rows, 'row')} repeat earlier rows, and Append adds"
                " them again; if the file has all rows each time, use Ledger or Snapshot with a primary key",
                "repeated-rows",
                rows,
            )

    @property
    def _first_offset(self) -> int:
        last = self._state.last_offset
        return 0 if last is None else last + 1

    def _commit(self, staged: StagedSlices | None) -> Multihash:
        """Commit the rows, if any, and the source state; return the new head."""
        reporter, state = self._reporter, self._state
        written = [] if staged is None else staged.merged.written
        source_state = self.payload.state or state.source_state
        is_push = isinstance(self._source, AddPushSource)
        if not written and (is_push or source_state == state.source_state):
            reporter.log(f"{self.payload.name}: no changes")
            return state.head
        watermark = self._next_watermark(written)
        if self._checks is not None and staged is not None:
            self._checks.check_slices(
                written,
                staged.schema,
                system_time=self._system_time,
                watermark=watermark,
                reporter=reporter,
            )
        reporter.phase("commit")
        reporter.raise_if_cancelled()
        reporter.raise_if_warned()
        events: list[MetadataEvent] = []
        if written and (versioned := self._source_with_version()) is not None:
            events.append(versioned)
        if staged is not None and written and self._declared is None:
            is_odf = self._config.metadata.data_schema == "odf"
            events.append(declare_schema(staged.schema, None, odf=is_odf, described=self._described))
        added = data_events(
            state,
            written,
            [self._check_links(part) for part in written or [None]],
            watermark=watermark,
            source_state=source_state,
        )
        head = self._dataset.commit(
            [*events, *added],
            system_time=self._system_time,
            expected_head=state.head,
            data=[part.path for part in written],
            block_version=self._config.block_version,
        )
        self._known_header.save()
        rows = _count_rows(written)
        took = monotonic() - self._started
        rejected = self._store_rejects(head)
        blocks = f"block {head}" if len(added) == 1 else f"{len(added)} blocks up to {head}"
        reporter.log(
            f"{self.payload.name}: committed {blocks}, {count_of(rows, 'row')}{rejected}, in {took:.1f} s"
        )
        reporter.committed(str(self._entry.id), str(head), "AddData", rows)
        keys = None if staged is None else staged.merged.keys
        if written and keys is not None:
            last = written[-1]
            keys.commit(last.offset_interval.end, str(last.physical_hash), reporter)
        return head

    def _source_with_version(self) -> SetPollingSource | AddPushSource | None:
        """Return the source with the version of the engine that ran its query, or None if the chain has it.

        The rows are not replayed, so a pull continues with any version. The version that ran is recorded.
        """
        source, state, version = self._source, self._state, self.engine_version
        if source.preprocess is None:
            return None
        engine = source.preprocess.engine
        if isinstance(source, AddPushSource):
            recorded = state.push_sources.get(source.source_name)
        else:
            recorded = state.polling_source
        known = None if recorded is None else query_of(recorded)
        if recorded is None or known is None or version in (None, known.version):
            return None
        if known.version is None and engine.lower() in BUILT_IN_ENGINES:
            return None
        self._reporter.log(f"version of the engine {engine}: {version}")
        # A changed source would have to be trusted again.
        return with_version(recorded, version) if self._trust.is_own(self._entry) else None

    def _check_links(self, written: WrittenSlice | None) -> ExtraAttributes | None:
        """Check the links of a slice; return the summary for its block."""
        if not self._link_columns:
            return None
        if written is None:
            return totals_attribute(LinkedTotals())
        objects = self._attached.values()
        return totals_attribute(
            check_links(self._dataset, written.path, self._link_columns, objects, self._reporter)
        )

    def _store_rejects(self, block: Multihash) -> str:
        """Store the rejected rows of a committed block; return their number for the log."""
        if self._rejection is None:
            return ""
        name, rows = self.payload.name, self._rejection.rows
        try:
            rejects = Rejects(rows, self._rejection.file)
            path = store_rejects(self._dataset.folder, block, rejects)
            self._reporter.log(f"{name}: rejected rows: {path}", "warning")
        except OdfError as error:  # The block is committed.
            self._reporter.log(f"{name}: rejected rows are not listed: {error}", "warning")
        return f", {count_of(rows, 'row')} rejected"

    def _next_watermark(self, written: Sequence[WrittenSlice]) -> Timestamp | None:
        """Return the watermark after the rows, which never decreases; report rows that do not count."""
        ahead = sum(part.rows_ahead for part in written)
        if ahead and self._max_ahead is not None:
            latest = max(part.max_event_time for part in written if part.max_event_time is not None)
            self._report_rows_ahead(ahead, sum(part.rows for part in written), latest)
        counted = (part.max_counted_event_time for part in written)
        reached = [time.shifted(-self._delay) for time in counted if time is not None]
        before = self._state.watermark
        return max([*reached, *(() if before is None else (before,))], default=None)

    def _report_rows_ahead(self, ahead: int, total: int, latest: Timestamp) -> None:
        limit = "watermark.maxAhead after the system time" if self._max_ahead else "the system time"
        # A few rows in the future are usually errors.
        reason = "if the rows are forecasts" if 2 * ahead > total else "if these times are right"
        self._reporter.warn(
            f"{self.payload.name}: {ahead:,} of {count_of(total, 'row')} with an event time later than"
            f" {limit} (latest: {latest}): ignored for the watermark; {reason}, run"
            f" odf config set watermark.maxAhead.{self._entry.alias} none",
            "future-event-times",
            ahead,
        )


def data_events(
    state: ChainState,
    written: Sequence[WrittenSlice],
    linked: Sequence[ExtraAttributes | None],
    *,
    watermark: Timestamp | None,
    source_state: SourceState | None,
) -> list[AddData]:
    """Return the events that add slices in one commit, one for each slice; one event without slices.

    Only the last event has the new watermark and source state. The others repeat those before the commit:
    the rows of later slices are not late, and a chain that is reset to one of these blocks ingests the
    payload again.

    Args:
        state: the state of the chain before the commit.
        written: the slices.
        linked: the summary of linked objects of each event.
        watermark: the new watermark.
        source_state: the new state of the source.
    """
    before = state.source_state
    if source_state is not None and is_push_state(source_state):
        last = state.data_source_state
        is_same = last is not None and is_push_state(last) and last.source_name == source_state.source_name
        before = last if is_same else None
    checkpoint, offset = state.last_checkpoint, state.last_offset
    events: list[AddData] = []
    for index, attributes in enumerate(linked):
        is_last = index == len(linked) - 1
        data = written[index] if written else None
        events.append(
            AddData(
                prev_checkpoint=checkpoint.physical_hash if checkpoint else None,
                prev_offset=offset,
                new_data=_data_slice(data),
                new_checkpoint=checkpoint,
                new_watermark=watermark if is_last else state.watermark,
                new_source_state=source_state if is_last else before,
                extra=attributes,
            )
        )
        offset = data.offset_interval.end if data is not None else offset
    return events


def _count_rows(written: Sequence[WrittenSlice]) -> int:
    return sum(part.rows for part in written)


def _data_slice(written: WrittenSlice | None) -> DataSlice | None:
    if written is None:
        return None
    return DataSlice(
        logical_hash=written.logical_hash,
        physical_hash=written.physical_hash,
        offset_interval=written.offset_interval,
        size=written.size,
    )
