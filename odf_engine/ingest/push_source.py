"""Pushes of files into a root dataset through a push source."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from odf_engine.base.config import Config
from odf_engine.base.files import translate_os_errors
from odf_engine.base.progress import Reporter
from odf_engine.chain.compacted_history import find_archived_push
from odf_engine.chain.linked_objects import list_attachments, store_objects
from odf_engine.chain.schema_evolution import declared_schema
from odf_engine.chain.state import IDEMPOTENCY_KEY, PAYLOAD_HASH, ChainState, ChainUpdate
from odf_engine.checks.gate import load_checks
from odf_engine.data.column_names import LOOKALIKE_HINT, find_lookalike, lookalike_problem
from odf_engine.data.odf_schema import columns_of_step
from odf_engine.data.parquet.parquet_reader import parquet_errors, read_parquet_schema
from odf_engine.data.schema_enforcement import match_columns
from odf_engine.errors import BadData, Conflict, InvalidSchema, NotSynced, OdfError, UsageError
from odf_engine.identity.multiformats import Multihash
from odf_engine.ingest.explicit_watermark import complete_static_dataset
from odf_engine.ingest.fetch.model import Payload, file_stamp, hash_file, require_readable
from odf_engine.ingest.payload import IngestContext, PayloadJob
from odf_engine.ingest.prep_step import PreparedFile, PrepareLimits
from odf_engine.ingest.raw_query import FindEngine, find_built_in_engine
from odf_engine.ingest.read.read_step import ReadOptions, ReadPlan, read
from odf_engine.ingest.read.text_file import TextFile, csv_file, first_row, shorten
from odf_engine.ingest.result_schema import column_attributes, data_columns
from odf_engine.metadata.model import (
    AddPushSource,
    Csv,
    EsriShapefile,
    GeoJson,
    Json,
    NdGeoJson,
    NdJson,
    Parquet,
    ReadStep,
    Snapshot,
    SourceState,
    UpsertStream,
    kind_of,
)
from odf_engine.metadata.object_links import find_link_columns
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark import sql_types
from odf_engine.spark.sql_types import arrow_schema
from odf_engine.storage.scratch import job_scratch_folder, payload_scratch_folder
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.definition import select_push_source
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from odf_engine.chain.dataset import Dataset
    from odf_engine.spark import SparkSession
    from odf_engine.spark.runtime.session import SparkRuntime


_MAX_NAMES: Final = 50
"""Number of names that a message lists."""
_WITH_GEOMETRY: Final = (GeoJson, NdGeoJson, EsriShapefile)
_GEOMETRY: Final = "geometry"


@dataclass(frozen=True)
class PushedFileReader:
    """Reads files with the columns that a push source accepts.

    Attributes:
        step: how to read the file.
        plain: the source has another step: CSV has a header if its first line has a column name, or
            if the columns are not known yet.
        columns: accepted columns, or None for any.
        declared: the source declares the columns. Otherwise they are the dataset's columns, and only names
            match them.
        optional: columns that may be missing.
        operations: name of the column with operations.
        ignore_unknown: drop unknown columns, and fill missing ones with null.
        limits: for unpacking a format that is an archive.
    """

    step: ReadStep
    plain: bool
    columns: pa.Schema | None
    declared: bool
    optional: tuple[str, ...]
    operations: str
    ignore_unknown: bool
    limits: PrepareLimits

    def read(
        self, session: SparkSession, prepared: PreparedFile, folder: Path, reporter: Reporter
    ) -> ReadPlan | None:
        """Plan to read a file; return None if it is empty.

        Raises:
            InvalidSchema: columns are unknown or missing; the message lists them.
            BadData: the file is not of its format.
        """
        columns, step = self.columns, self.step
        if columns is None and isinstance(step, Csv) and self.plain:
            step = replace(step, header=True)  # only a header can name the columns
        if columns is None or prepared.path.stat().st_size == 0:
            return read(session, step, prepared, folder, reporter, ReadOptions(self.limits))
        header: list[str] | None = None
        if isinstance(step, Csv):
            header = self._header(step, prepared)
            step = step if header is None else replace(step, header=True)
        elif isinstance(step, Parquet):
            header = _parquet_names(prepared.path)
        if header is None:
            return self._read_keys(session, step, columns, prepared, folder, reporter)
        places = match_columns(columns.names, header)
        self._check(columns, header, prepared.name, reporter)
        fields = [
            pa.field(name, pa.string()) if place is None else columns.field(place)
            for name, place in zip(header, places, strict=True)
        ]
        if isinstance(step, Parquet):
            fields = [columns.field(place) for place in dict.fromkeys(places) if place is not None]
        step = replace(step, schema=None, odf_schema=None)
        options = ReadOptions(self.limits, pa.schema(fields))
        reading = read(session, step, prepared, folder, reporter, options)
        return reading and self._select_columns(reading, columns)

    def _header(self, step: Csv, prepared: PreparedFile) -> list[str] | None:
        """Return the names in the first line, or None if the file has no header.

        Raises:
            InvalidSchema: a name is empty or repeated.
        """
        if not step.header and not self.plain:
            return None
        names = [name.strip() for name in first_row(csv_file(step, prepared))]
        folded = [name.casefold() for name in names]
        if not step.header:
            assert self.columns is not None
            if not {name.casefold() for name in self.columns.names} & set(folded):
                if self.declared:
                    return None
                raise InvalidSchema(
                    "the first line has no column of the dataset",
                    where=f"{prepared.name}: line 1",
                    hint=f"add a header line; columns of the dataset: {_listed(self.columns.names)}",
                )
        duplicate = next((name for at, name in enumerate(names) if folded[at] in folded[:at]), None)
        if duplicate is not None or "" in names:
            raise InvalidSchema(
                f"column {names.index('') + 1} of {len(names)} in the header has no name"
                if duplicate is None
                else f"duplicate column '{duplicate}' in the header",
                where=f"{prepared.name}: line 1",
                hint="name it in the file; a separator at the end of the header is one column too many"
                if duplicate is None
                else "rename one of the columns in the file",
            )
        return names or None

    def _read_keys(
        self,
        session: SparkSession,
        step: ReadStep,
        columns: pa.Schema,
        prepared: PreparedFile,
        folder: Path,
        reporter: Reporter,
    ) -> ReadPlan | None:
        """Read a file whose rows all name their columns, or none does."""
        absent: list[str] = []

        def compare(file: TextFile, reporter: Reporter, keys: Mapping[str, int]) -> None:
            if keys:
                absent.extend(self._check(columns, keys, file.name, reporter))

        options = ReadOptions(self.limits, columns, compare)
        reading = read(session, step, prepared, folder, reporter, options)
        omitted = [name for name in absent if name in self.optional]
        if reading is None or not omitted:
            return reading
        return self._select_columns(
            reading, pa.schema([field for field in columns if field.name not in omitted])
        )

    def _check(self, columns: pa.Schema, header: Collection[str], file: str, reporter: Reporter) -> list[str]:
        """Compare names, ignoring case; return the missing columns.

        Raises:
            InvalidSchema: columns are unknown or missing, and may not be.
        """
        present, known = {name.casefold() for name in header}, {name.casefold() for name in columns.names}
        # These formats always have a geometry, which the source may omit.
        implicit = [_GEOMETRY] if isinstance(self.step, _WITH_GEOMETRY) else []
        unknown = [name for name in header if name.casefold() not in known and name not in implicit]
        missing = [name for name in columns.names if name.casefold() not in present]
        not_optional = [name for name in missing if name not in self.optional]
        required = [name for name in not_optional if not columns.field(name).nullable]
        if any(name.casefold() == self.operations.casefold() for name in unknown):
            # Without the column, retractions would be appended as rows.
            raise InvalidSchema(
                f"the rows have operations in column '{self.operations}', which the source does not declare",
                where=file,
                hint=f"add {self.operations} STRING to read.schema of the source and run odf add --update",
            )
        if required or ((unknown or not_optional) and not self.ignore_unknown):
            if unknown and isinstance(header, Mapping) and isinstance(self.step, NdJson):
                file = f"{file}: line {header[unknown[0]]}"
            raise self._mismatch(columns, unknown, not_optional, required, file)
        if unknown:
            reporter.log(f"{file}: unknown columns are dropped: {_listed(unknown)}", "warning")
        if not_optional:
            reporter.log(f"{file}: missing columns are null: {_listed(not_optional)}", "warning")
        return missing

    def _mismatch(
        self, columns: pa.Schema, unknown: list[str], missing: list[str], required: list[str], where: str
    ) -> InvalidSchema:
        for name in unknown:
            if (column := find_lookalike(name, missing)) is not None:
                return InvalidSchema(lookalike_problem(name, column), where=where, hint=LOOKALIKE_HINT)
        problems = [f"unknown columns: {_listed(unknown)}"] if unknown else []
        problems += [f"missing columns: {_listed(missing)}"] if missing else []
        hint = f"columns of the source: {_listed(columns.names)}"
        folded = {name.casefold(): name for name in missing}
        pairs = {
            name: folded[close[0]]
            for name in unknown
            if (close := get_close_matches(name.casefold(), folded, n=1))
        }
        if pairs:
            hint += (
                "; did you mean "
                + ", ".join(f"'{close}' instead of '{name}'" for name, close in pairs.items())
                + "?"
            )
        elif self.declared and not missing:
            hint += (
                "; to add new columns, add them to read.schema and run odf add --update --accept-columns"
                " MANIFEST; to drop them, use --ignore-unknown"
            )
        elif self.ignore_unknown:
            hint += f"; not nullable: {_listed(required)}"
        elif not required:
            hint += "; use --ignore-unknown to drop unknown columns and fill missing ones with null"
        return InvalidSchema(
            "the columns differ from those of the source: " + "; ".join(problems), where=where, hint=hint
        )

    def _select_columns(self, reading: ReadPlan, columns: pa.Schema) -> ReadPlan:
        """Select the columns of the source; missing ones are null, or omitted if they are optional."""
        present = arrow_schema(reading.frame.schema)
        parts: list[str] = []
        fields: list[pa.Field] = []
        for field, place in zip(columns, match_columns(present.names, columns.names), strict=True):
            if place is None and field.name in self.optional:
                continue
            value = (
                sql_types.typed_null(field.type, field.name)
                if place is None
                else sql_types.column(present.names[place])
            )
            parts.append(f"{value} AS {sql_types.column(field.name)}")
            fields.append(field)
        frame = reading.frame.selectExpr(*parts)
        return dataclasses.replace(reading, frame=frame, columns=pa.schema(fields))


def _parquet_names(path: Path) -> list[str] | None:
    try:
        return list(read_parquet_schema(path).names)
    except (*parquet_errors(), InvalidSchema):
        return None  # The reader reports the error.


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(map(shorten, names[:_MAX_NAMES])) + more


FORMATS: Final[dict[str, type[ReadStep]]] = {
    "csv": Csv,
    "json": Json,
    "ndjson": NdJson,
    "geojson": GeoJson,
    "ndgeojson": NdGeoJson,
    "parquet": Parquet,
    "esrishapefile": EsriShapefile,
}
"""Formats by their names on the command line."""
_SUFFIXES: Final[dict[str, type[ReadStep]]] = {
    ".csv": Csv,
    ".ndjson": NdJson,
    ".jsonl": NdJson,
    ".json": Json,
    ".geojson": GeoJson,
    ".parquet": Parquet,
}
_JSON: Final = (Json, NdJson, GeoJson, NdGeoJson)
_HEAD: Final = 4096


def format_named(name: str) -> type[ReadStep]:
    """Return the format with a name, ignoring case.

    Raises:
        UsageError: no format has this name.
    """
    try:
        return FORMATS[name.lower()]
    except KeyError:
        raise UsageError(f"unknown format '{name}'", hint="formats: " + ", ".join(FORMATS)) from None


def read_step_for(source: ReadStep, requested: str | None, path: Path, reporter: Reporter) -> ReadStep:
    """Return the read step for a file: the source's, or the default one of another format.

    The default step has the columns of the source, but no options such as separators. A CSV file that is
    read in this way has a header if its first line has the name of a column.

    Args:
        source: read step of the source.
        requested: name of the format; None to use the suffix of the file name.
        path: the file.
        reporter: receives a message if the suffix selects another format than the source's.

    Raises:
        UsageError: no format has the requested name.
    """
    selected = format_named(requested) if requested is not None else _format_of_suffix(type(source), path)
    if selected is type(source):
        return source
    if requested is None:
        own, other = kind_of(source), selected.__name__  # type: ignore[arg-type]
        reporter.log(f"{path.name} is read as {other}, according to its file name, instead of {own}")
    return replace(selected(), schema=source.schema, odf_schema=source.odf_schema)


def _format_of_suffix(own: type[ReadStep], path: Path) -> type[ReadStep]:
    """Return the format of the file name's suffix, unless the format of the source has this suffix too.

    All JSON formats use the suffix ``.json``: the first character of the file selects one.
    """
    selected = _SUFFIXES.get(path.suffix.lower(), own)
    if selected is not Json or own in (Json, GeoJson, NdGeoJson):
        return own if own is NdGeoJson and selected in (NdJson, GeoJson) else selected
    with path.open("rb") as file:
        head = file.read(_HEAD).removeprefix(b"\xef\xbb\xbf").lstrip()
    return Json if head.startswith(b"[") else NdJson


_MAX_KEY: Final = 200


class PushUpdate(NamedTuple):
    """The result of a push: the change of the chain, and the number of files that were already ingested."""

    update: ChainUpdate
    already_ingested: int


_COMPRESSED: Final = {b"\x1f\x8b": "gzip -dc", b"PK\x03\x04": "unzip -p"}


@dataclass(frozen=True)
class PushOptions:
    """Options of a push.

    Attributes:
        source: name of the push source, or None if there is only one.
        format: the format of the files, or None for the format of the file name or source.
        event_time: of rows that have none, or None for the time of ingestion.
        ignore_unknown: drop unknown columns, and fill missing nullable ones with null.
        strict: rows of a ledger with a known key and other values are an error.
        force: ingest files that the source has already ingested.
        idempotency_key: identifies the push. Otherwise only the same unchanged file is the same push.
        attach: files, or folders of files, to store as linked objects. Link columns may have their names
            instead of their hashes. Before the commit they are not part of the dataset.
        find_engine: returns the external engines of preprocess queries.
    """

    source: str | None = None
    format: str | None = None
    event_time: Timestamp | None = None
    ignore_unknown: bool = False
    strict: bool = False
    force: bool = False
    idempotency_key: str | None = None
    attach: Sequence[Path] = ()
    find_engine: FindEngine = find_built_in_engine


def push(
    workspace: Workspace,
    entry: DatasetEntry,
    runtime: SparkRuntime,
    reporter: Reporter,
    files: Sequence[Path],
    options: PushOptions = PushOptions(),
) -> PushUpdate:
    """Ingest files into a root dataset through one of its push sources.

    Args:
        workspace: the workspace of the dataset.
        entry: the dataset.
        runtime: a started Spark.
        reporter: receives phases, amounts and commits, and cancels the push.
        files: the files; each becomes at most one commit.
        options: the source, and how the files are read.

    Raises:
        UsageError: an idempotency key for several files, or one that is not short, printable text; or two
            attached files with the same name, or attached files for a dataset without link columns.
        Cancelled: the push was cancelled; earlier commits remain.
        NotTrusted: the dataset is by a third party, and is not trusted.
        OdfError: the push failed. Files before the failed one are committed, and the hint names them;
            nothing of the failed one is.
    """
    before = entry.dataset.state()
    event = select_push_source(entry, options.source)
    Trust(workspace).require_trust(entry)
    if options.format is not None:
        format_named(options.format)
    if options.idempotency_key is not None:
        _check_idempotency_key(options.idempotency_key, files)
    for path in files:
        require_readable(path)
    attachments = list_attachments(options.attach)
    if attachments and not find_link_columns(column_attributes(before, event, workspace.config)):
        raise UsageError(
            "the dataset has no column with links to objects",
            where=str(entry.alias),
            hint="odf help linked-objects describes how to declare one",
        )
    reporter.log(f"push source '{event.source_name}'")
    done: list[str] = []
    refused = 0
    with (
        translate_os_errors(workspace.odf, "the current file was not committed"),
        job_scratch_folder(workspace.odf / "cache") as job,
    ):
        session, checks = runtime.session(), load_checks(workspace, entry, runtime.session)
        attached = store_objects(entry.dataset, attachments, reporter)
        context = IngestContext(
            entry, session, workspace, reporter, checks, options.strict, attached, options.find_engine
        )
        for path in files:
            try:
                if not _push_file(context, event, path, options, job):
                    refused += 1
                    continue
            except OdfError as error:
                if isinstance(error, NotSynced):
                    done.append(path.name)
                _add_committed_files(error, done)
                raise
            done.append(path.name)
            reporter.raise_if_cancelled()
        complete_static_dataset(workspace, entry, runtime, reporter)
    return PushUpdate(ChainUpdate.from_states(before, entry.dataset.state()), refused)


def _push_file(
    context: IngestContext, event: AddPushSource, path: Path, options: PushOptions, job: Path
) -> bool:
    """Ingest a file; return whether the source has not ingested it before."""
    entry, reporter = context.entry, context.reporter
    payload = Payload(path, path.name, None, options.event_time, file_stamp(path))
    recorded = _push_state(event, payload, options.idempotency_key, context.attached, reporter)
    payload = dataclasses.replace(payload, state=recorded)
    state = _state_before(entry, event, path)
    if not options.force and _is_ingested(entry, event, state, payload, recorded, reporter):
        return False
    step = read_step_for(event.read, options.format, path, reporter)
    _reject_compressed(path, step, entry)
    file_reader = _file_reader(context.workspace.config, state, event, step, options.ignore_unknown)
    effective = replace(event, read=step)
    with payload_scratch_folder(job) as folder:
        PayloadJob(context, effective, payload, folder, after=state.head, reader=file_reader.read).run()
    return True


def _check_idempotency_key(key: str, files: Sequence[Path]) -> None:
    """Raise a UsageError if the key cannot be recorded for the push of these files."""
    if len(files) != 1:
        raise UsageError(
            f"an idempotency key identifies one file, not {len(files)}", hint="push the files separately"
        )
    if not key.strip() or not key.isprintable() or len(key) > _MAX_KEY:
        raise UsageError(f"an idempotency key is printable text of at most {_MAX_KEY} characters")


def _push_state(
    source: AddPushSource,
    payload: Payload,
    key: str | None,
    attached: Mapping[str, Multihash],
    reporter: Reporter,
) -> SourceState:
    """Return the state that identifies a push.

    Equal contents are not enough: two equal readings of a sensor are two rows. The same file with another
    event time, or with other attached files, has other rows.
    """
    if key is not None:
        return SourceState(source.source_name, IDEMPOTENCY_KEY, key)
    assert payload.stamp is not None
    modified, size = payload.stamp
    value = str(hash_file(payload.path, reporter))
    if attached:
        parts = [value, *(f"{name}\n{attached[name]}" for name in sorted(attached))]
        value = str(Multihash.sha3_256("\n".join(parts).encode()))
    # A digest, since chains are public and paths are not.
    version = Multihash.sha3_256(os.fsencode(f"{payload.path.resolve()}\n{size}\n{modified}"))
    return SourceState(source.source_name, PAYLOAD_HASH, f"{value}\t{payload.event_time or ''}\t{version}")


def _is_ingested(
    entry: DatasetEntry,
    source: AddPushSource,
    state: ChainState,
    payload: Payload,
    recorded: SourceState,
    reporter: Reporter,
) -> bool:
    """Return whether the source has already ingested the payload; log it."""
    dataset = entry.dataset
    replaces = isinstance(source.merge, Snapshot | UpsertStream) and recorded.kind == PAYLOAD_HASH
    number = _find_push(dataset, recorded, is_archive_searched=not replaces)
    if number is None and recorded.kind == PAYLOAD_HASH:
        number = _find_earlier_push(dataset, payload, recorded, is_archive_searched=not replaces)
    if number is None:
        return False
    if replaces:
        # Earlier states, pushed again after others, are a change.
        slices = dataset.slices(state.last_offset)
        if not slices or slices[-1].sequence_number != number:
            return False
    what = "has the same idempotency key" if recorded.kind == IDEMPOTENCY_KEY else "has this unchanged file"
    reporter.log(
        f"{payload.name}: already ingested: block {number} {what}; use --force to ingest it again",
        "warning",
    )
    return True


def _find_push(dataset: Dataset, recorded: SourceState, *, is_archive_searched: bool) -> int | None:
    number = dataset.find_push(recorded)
    return find_archived_push(dataset, recorded) if number is None and is_archive_searched else number


def _find_earlier_push(
    dataset: Dataset, payload: Payload, recorded: SourceState, *, is_archive_searched: bool
) -> int | None:
    """Return the block of a push by an earlier version, which recorded only the contents and event time.

    A file that was modified after the block is another one.
    """
    assert payload.stamp is not None
    contents = recorded.value.rpartition("\t")[0].rstrip("\t")
    number = _find_push(dataset, replace(recorded, value=contents), is_archive_searched=is_archive_searched)
    if number is None:
        return None
    block = dataset.list_blocks(1, before=number + 1)[0]
    return number if payload.stamp[0] <= block.system_time.ns else None


def _state_before(entry: DatasetEntry, source: AddPushSource, path: Path) -> ChainState:
    """Return the state of the dataset before a file.

    Raises:
        Conflict: the definition of the source has changed.
    """
    state = entry.dataset.state()
    if state.push_sources.get(source.source_name) != source:
        raise Conflict(
            f"push source '{source.source_name}' changed while files were pushed",
            where=path.name,
            hint="push the remaining files again",
        )
    return state


def _file_reader(
    config: Config, state: ChainState, source: AddPushSource, step: ReadStep, ignore_unknown: bool
) -> PushedFileReader:
    """Return the reader for the columns that the source, else the dataset, declares."""
    vocab = state.vocabulary
    operations = vocab.operation_type_column
    columns = columns_of_step(step)
    optional: list[str] = []
    is_declared, is_plain = columns is not None, step is not source.read
    has_names = not isinstance(step, Csv) or step.header or is_plain
    declared = None if is_declared or source.preprocess is not None else declared_schema(state)
    if declared is not None and has_names:
        # Text formats have operations as codes such as +A or as numbers.
        kind = pa.int32() if isinstance(step, Parquet) else pa.string()
        columns = data_columns(declared, vocab).append(pa.field(operations, kind))
        optional.append(vocab.event_time_column)
    if source.preprocess is None:  # A query may require the column.
        optional.append(operations)
    names = [] if columns is None else columns.names
    return PushedFileReader(
        step=step,
        plain=is_plain,
        columns=columns,
        declared=is_declared,
        optional=tuple(name for name in names if name.casefold() in {item.casefold() for item in optional}),
        operations=operations,
        ignore_unknown=ignore_unknown,
        limits=PrepareLimits.of(config),
    )


def _reject_compressed(path: Path, step: ReadStep, entry: DatasetEntry) -> None:
    """Check that a file is not compressed, since a push source has no prepare steps.

    Raises:
        BadData: the file is compressed.
    """
    with path.open("rb") as file:
        head = file.read(4)
    for magic, command in _COMPRESSED.items():
        if head.startswith(magic) and not (isinstance(step, EsriShapefile) and magic.startswith(b"PK")):
            raise BadData(
                "the file is compressed, and push sources have no prepare steps",
                where=path.name,
                hint=f"decompress it first: {command} {path.name} | odf ingest {entry.alias} -",
            )


def _add_committed_files(error: OdfError, done: Sequence[str]) -> None:
    """Add the names of the committed files to the hint, which must not be pushed again."""
    if done:
        committed = f"already committed: {', '.join(done)}; push the remaining files only"
        error.hint = f"{error.hint}; {committed}" if error.hint else committed
