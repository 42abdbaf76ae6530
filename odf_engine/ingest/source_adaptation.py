"""Adaptation of a polling source to the file that it gives now: address, format and new columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
from msgspec.structs import replace

from odf_engine.base.progress import Reporter, count_of
from odf_engine.data.ddl import parse_ddl, type_ddl
from odf_engine.data.odf_schema import columns_of_step
from odf_engine.errors import InvalidSchema, OdfError, SourceUnavailable, Unsupported
from odf_engine.ingest.fetch.model import Payload
from odf_engine.ingest.inference.file_inference import (
    FileChoices,
    InferredColumn,
    InferredFile,
    time_parser,
)
from odf_engine.ingest.inference.file_sample import FileSample, infer_file, read_sample
from odf_engine.ingest.new_columns import column_ddl, insert_columns
from odf_engine.ingest.polling_source import fetched_file
from odf_engine.ingest.prep_step import PreparedFile, PrepareLimits, is_filter, prepare
from odf_engine.ingest.read.known_header import KnownHeader
from odf_engine.ingest.read.text_file import shorten
from odf_engine.metadata.model import Csv, DatasetSnapshot, Pipe, PrepStep, SetPollingSource, Url
from odf_engine.spark.text_files import detect_encoding
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.definition_update import definition_to_edit
from odf_engine.workspace.documents.private_source import local_state
from odf_engine.workspace.workspace import Workspace

_NAME: Final = "file.csv"
_EDIT: Final = "edit the manifest, and run odf add --update"
_INFERRED_OPTIONS: Final = {
    "--separator": 1, "--quote": 1, "--escape": 1, "--encoding": 1, "--skip": 1, "--header-rows": 1,
    "--names": 1, "--drop-last": 1, "--until": 1, "--comment": 1, "--stop-at-blank": 0, "--ragged": 1,
    "--drop-empty": 0,
}  # fmt: skip
"""Options of ``odf filter csv`` that follow from the file, with their numbers of values."""


class SourceAdaptation(NamedTuple):
    """A definition that is adapted to the file of its source.

    Attributes:
        definition: the definition as a user writes it.
        differences: what changed since the last pull, a sentence each.
        new: names of the columns that read.schema gets.
    """

    definition: DatasetSnapshot
    differences: list[str]
    new: list[str]


def adapt_source(
    workspace: Workspace, entry: DatasetEntry, reporter: Reporter, environment: Mapping[str, str]
) -> SourceAdaptation:
    """Return the definition of a dataset for the file that its source gives now. Nothing is committed.

    Columns keep their names and types, and the query, key and merge strategy do not change.

    Args:
        workspace: the workspace.
        entry: the dataset.
        reporter: receives phases and amounts, and cancels the fetch.
        environment: values for ``${{ env.NAME }}`` in the request.

    Raises:
        InvalidSchema: a column disappeared, moved, or has another type.
        InvalidManifest: the manifest file differs from the dataset.
        NotTrusted: the dataset is by a third party, and is not trusted.
        Unsupported: the dataset has no polling source, or it has to be changed by hand.
        OdfError: the source cannot be fetched, or its file cannot be read.
    """
    source = local_state(entry.dataset).polling_source
    if source is None:
        raise Unsupported(f"{entry.alias} has no polling source", hint="use --infer for polled datasets")
    definition = definition_to_edit(workspace.folder, entry, workspace.datasets())
    with fetched_file(workspace, entry, reporter, environment) as fetched:
        if fetched is None:
            raise SourceUnavailable("the source has no file", where=str(entry.alias), hint="add a file")
        payload, folder = fetched
        differences: list[str] = []
        new: list[str] = []
        adapted = _with_new_address(source, payload, differences)
        if isinstance(source.read, Csv):
            header = KnownHeader(workspace.odf / "cache" / "headers" / entry.id.multibase)
            limits = PrepareLimits.of(workspace.config)
            files = _Files(payload, workspace.folder, folder, reporter, limits)
            adapted = _CsvAdaptation(files, header, differences, new).adapt(adapted)
    events = [
        replace(event, fetch=adapted.fetch, prepare=adapted.prepare, read=adapted.read)
        if isinstance(event, SetPollingSource)
        else event
        for event in definition.metadata
    ]
    return SourceAdaptation(replace(definition, metadata=events), differences, new)


def _with_new_address(source: SetPollingSource, payload: Payload, differences: list[str]) -> SetPollingSource:
    """Return the source with the URL that the server permanently redirects to.

    A URL with a variable or login is not replaced, since both are not in the URL of the server. A URL of
    another host does not get the headers of the source.
    """
    fetch = source.fetch
    if not payload.moved_to or not isinstance(fetch, Url):
        return source
    old, new = urlsplit(fetch.url), urlsplit(payload.moved_to)
    moved = f"the file moved permanently to {payload.moved_to}"
    if "${{" in fetch.url or old.username is not None:
        differences.append(f"{moved}: change fetch.url, which has a variable or a login, in the manifest")
    elif fetch.headers and old.hostname != new.hostname:
        differences.append(f"{moved}: change fetch.url in the manifest if this host may get fetch.headers")
    else:
        differences.append(moved)
        return replace(source, fetch=replace(fetch, url=payload.moved_to))
    return source


@dataclass
class _Files:
    """The fetched file after prepare steps."""

    payload: Payload
    root: Path
    folder: Path
    reporter: Reporter
    limits: PrepareLimits
    _count: int = field(default=0)

    def prepare(self, steps: Sequence[PrepStep]) -> Path:
        """Return the file after prepare steps."""
        self._count += 1
        folder = self.folder / f"adapted-{self._count}"
        folder.mkdir()
        file = PreparedFile(self.payload.path, self.payload.name)
        return prepare(steps or None, file, self.root, folder, self.reporter, self.limits).path

    def infer(self, path: Path, choices: FileChoices) -> InferredFile:
        """Infer a prepared file."""
        sample = read_sample(path, _NAME, self.reporter)
        return infer_file(sample, choices, self.reporter)

    def sample(self, path: Path) -> FileSample:
        """Return the beginning of a prepared file."""
        return read_sample(path, _NAME, self.reporter)


class _Layout(NamedTuple):
    """How a file is read, and what is read."""

    prepare: list[PrepStep]
    read: Csv
    file: InferredFile
    places: list[int] | None


@dataclass(frozen=True)
class _CsvAdaptation:
    """Adapts the format and columns of CSV.

    Attributes:
        files: the file of the source.
        header: the header at the last pull.
        differences: receives what changed.
        new: receives the names of new columns.
    """

    files: _Files
    header: KnownHeader
    differences: list[str]
    new: list[str]

    def adapt(self, source: SetPollingSource) -> SetPollingSource:
        """Return the adapted source."""
        step = source.read
        assert isinstance(step, Csv)
        columns = columns_of_step(step)
        layout = self._current_layout(source, step, columns)
        if layout is None:
            layout = self._new_layout(source, step, columns)
            steps = layout.prepare or None
            if (source.prepare or None) != steps:
                source = replace(source, prepare=steps)
        source = replace(source, read=layout.read)
        if columns is None or layout.places is None:
            return source
        file, places = layout.file, layout.places
        self._check_types(layout.read, columns, file, places)
        self._report_renamed(columns, file, places)
        fields = {
            at: parse_ddl([column_ddl(column.name, "STRING" if column.form else column.type)]).field(0)
            for at, column in enumerate(file.columns)
            if at not in places
        }
        if not fields:
            return source
        self.new.extend(column.name for column in fields.values())
        self.differences.append(f"new columns: {shorten(', '.join(self.new))}")
        return replace(source, read=insert_columns(layout.read, columns, fields))

    def _current_layout(
        self, source: SetPollingSource, step: Csv, columns: pa.Schema | None
    ) -> _Layout | None:
        """Return the layout of the definition, or None if it does not fit the file."""
        steps = list(source.prepare or [])
        try:
            path = self.files.prepare(steps)
            file = self.files.infer(path, _choices_of(step))
            codec = detect_encoding(path, step.encoding) or "utf-8-sig"
            if file.filters or 2 * len(file.bad_rows) > len(file.rows):
                return None
            if not _decodes_equally(self.files.sample(path).data, codec, file.encoding or "utf-8-sig"):
                return None
            places = None if columns is None else self._match(columns, file)
        except OdfError:
            return None
        return _Layout(steps, step, file, places)

    def _new_layout(self, source: SetPollingSource, step: Csv, columns: pa.Schema | None) -> _Layout:
        """Return the layout of the file, and report its differences.

        Raises:
            InvalidSchema: a column disappeared or moved.
            Unsupported: a prepare step follows the filter.
        """
        steps = list(source.prepare or [])
        filters = [at for at, old in enumerate(steps) if isinstance(old, Pipe) and _is_csv_filter(old)]
        place = filters[-1] if filters else len(steps)
        if place + 1 < len(steps):
            raise Unsupported("a prepare step follows the filter of the file", where="prepare", hint=_EDIT)
        old_filter = steps[place] if filters else None
        path = self.files.prepare(steps[:place])
        raw = self.files.infer(path, FileChoices(unpivot=False))
        kept = _kept_options(old_filter.command) if isinstance(old_filter, Pipe) else []
        conversions = [arguments for arguments in raw.filters if arguments[0] != "csv"]
        csv_filter = raw.filters[-1] if raw.is_normalized else _dialect_filter(raw) if kept else ()
        words = [*csv_filter, *kept]
        codec = detect_encoding(path, step.encoding) or "utf-8-sig"
        if _decodes_equally(self.files.sample(path).data, codec, raw.encoding or "utf-8-sig"):
            raw = replace(raw, encoding=step.encoding or "")
        read = _filtered_read(step) if words else _read_of(step, raw)
        new_steps: list[PrepStep] = [*steps[:place]]
        new_steps += [Pipe(command=["odf", "filter", *arguments]) for arguments in conversions]
        file = raw
        if words:
            new_steps.append(Pipe(command=["odf", "filter", *words]))
            file = self.files.infer(self.files.prepare(new_steps), _choices_of(read))
        places = None if columns is None else self._match(columns, file)
        self.differences.extend(_format_differences(step, read, steps, new_steps, raw))
        return _Layout(new_steps, read, file, places)

    def _match(self, columns: pa.Schema, file: InferredFile) -> list[int]:
        """Return the position in the file of each declared column.

        Raises:
            InvalidSchema: a column disappeared or moved.
        """
        where, count = f"{self.files.payload.name}: header", len(columns)
        known = self.header.names(columns.names)
        names = [column.source.strip().casefold() for column in file.columns]
        if not any(names):  # a file without a header
            if len(names) != count:
                raise InvalidSchema(
                    f"the file has {count_of(len(names), 'column')} without names,"
                    f" read.schema declares {count}",
                    where=self.files.payload.name,
                    hint=_EDIT,
                )
            return list(range(count))
        old = [{name.casefold()} for name in columns.names]
        for texts, name in zip(old, known, strict=False):
            texts.add(name.strip().casefold())
        places = [next((at for at, name in enumerate(names) if name in texts), None) for texts in old]
        missing = [at for at, place in enumerate(places) if place is None]
        if missing and (len(names) != count or (known and len(missing) == count)):
            listed = shorten(", ".join((known or columns.names)[at] for at in missing))
            raise InvalidSchema(f"columns that disappeared from the file: {listed}", where=where, hint=_EDIT)
        matched = [at if place is None else place for at, place in enumerate(places)]
        for at, (place, after) in enumerate(pairwise(matched)):
            if place >= after:
                raise InvalidSchema(
                    f"column '{columns.names[at + 1]}' moved: it is column {after + 1} of the file",
                    where=where,
                    hint="change the order of read.schema in the manifest, and run odf add --update",
                )
        return matched

    def _check_types(self, step: Csv, columns: pa.Schema, file: InferredFile, places: Sequence[int]) -> None:
        """Check that the values of the file fit the declared types.

        Raises:
            InvalidSchema: a column has another type.
        """
        changed: list[str] = []
        for declared, place in zip(columns, places, strict=True):
            fits = _type_test(step, declared.type, file.columns[place])
            values = ((line, row[place]) for line, row in file.rows)
            wrong = next(
                ((line, value) for line, value in values if value is not None and not fits(value)), None
            )
            if wrong is not None:
                changed.append(
                    f"{declared.name} is {type_ddl(declared.type)}, line {wrong[0]} has '{wrong[1]}'"
                )
        if changed:
            raise InvalidSchema(
                f"columns with another type: {shorten('; '.join(changed))}",
                where=self.files.payload.name,
                hint="declare the column as STRING in a new dataset, or convert it in a prepare step",
            )

    def _report_renamed(self, columns: pa.Schema, file: InferredFile, places: Sequence[int]) -> None:
        names = [file.columns[place].source.strip() for place in places]
        known = self.header.names(columns.names)
        renamed = [
            f"{old} is now {new} (column {column})"
            for old, new, column in zip(known, names, columns.names, strict=False)
            if new and old.strip().casefold() != new.casefold()
        ]
        if renamed:
            text = shorten(", ".join(renamed))
            self.differences.append(f"renamed in the file: {text}; read by position as before")


def _choices_of(step: Csv) -> FileChoices:
    separator = "," if step.separator is None else step.separator.replace("\\t", "\t")
    quote = '"' if step.quote is None else step.quote
    return FileChoices(separator, quote, header=bool(step.header), unpivot=False)


def _is_csv_filter(step: Pipe) -> bool:
    return is_filter(step) and step.command[2:3] == ["csv"]


def _kept_options(command: Sequence[str]) -> list[str]:
    """Return the options of a filter that do not follow from the file, such as ``--decimal``."""
    kept: list[str] = []
    words = iter(command[3:])
    for word in words:
        name, has_value, _ = word.partition("=")
        if name not in _INFERRED_OPTIONS:
            kept.append(word)
        elif not has_value:
            for _ in range(_INFERRED_OPTIONS[name]):
                next(words, None)
    return kept


def _dialect_filter(file: InferredFile) -> list[str]:
    """Return the filter for a file that the reader could read, which has further options."""
    words = ["csv"]
    for name, value, default in (
        ("--separator", file.separator, ","),
        ("--quote", file.quote, '"'),
        ("--encoding", file.encoding, ""),
    ):
        words += [] if value == default else [name, value]
    return words if file.header else [*words, "--header-rows", "0"]


def _filtered_read(step: Csv) -> Csv:
    """Return the read step for the output of the filter."""
    return replace(step, separator=None, quote=None, escape=None, encoding=None, header=True)


def _read_of(step: Csv, file: InferredFile) -> Csv:
    """Return the read step for a file. What reads the same is not changed."""
    choices = _choices_of(step)
    return replace(
        step,
        separator=step.separator if choices.separator == file.separator else file.separator,
        quote=step.quote if choices.quote == file.quote else file.quote,
        encoding=file.encoding or None,
        header=step.header if bool(step.header) == file.header else file.header,
    )


def _decodes_equally(data: bytes, old: str, new: str) -> bool:
    try:
        return data.decode(old, "replace").lstrip("\ufeff") == data.decode(new, "replace").lstrip("\ufeff")
    except LookupError:
        return False


def _format_differences(
    step: Csv, read: Csv, old: Sequence[PrepStep], new: Sequence[PrepStep], file: InferredFile
) -> list[str]:
    """Return the changes of the format as sentences."""
    differences: list[str] = []
    if list(old) != list(new):
        reasons = "; ".join(file.evidence)
        differences.append(f"the file needs a filter: {reasons}" if reasons else "the filter is not needed")
        if any(isinstance(before, Pipe) and _is_csv_filter(before) for before in old):
            return differences  # The reader had the output of the filter.
        read = _read_of(step, file)
    for name, before, after, default in (
        ("separator", step.separator, read.separator, ","),
        ("quote", step.quote, read.quote, '"'),
        ("encoding", step.encoding, read.encoding, "UTF-8"),
        ("header", step.header, read.header, False),
    ):
        if before != after:
            old_value, new_value = (default if value is None else value for value in (before, after))
            differences.append(f"{name}: {old_value!r} is now {new_value!r}")
    return differences


def _type_test(step: Csv, declared: pa.DataType, column: InferredColumn) -> Callable[[str], bool]:
    """Return whether the reader accepts a value, or a function that accepts all if a few are invalid.

    A few invalid values in a column of the declared type are no change of its type: a pull lists them.
    """
    if pa.types.is_integer(declared):
        return _any if column.type == "BIGINT" and not column.form else _is_integer
    if pa.types.is_floating(declared) or pa.types.is_decimal(declared):
        return _any if column.type in ("BIGINT", "DOUBLE") and not column.form else _is_number
    if pa.types.is_date(declared):
        return _time_test(step.date_format, column, "DATE")
    if pa.types.is_timestamp(declared):
        return _time_test(step.timestamp_format, column, "DATE", "TIMESTAMP")
    return _any


def _time_test(form: str | None, column: InferredColumn, *kinds: str) -> Callable[[str], bool]:
    if form is not None:
        parse = time_parser(form)
        return lambda text: parse(text) is not None
    is_read = column.type.partition("(")[0] in kinds and not column.form
    return _any if is_read else lambda text: False


def _any(text: str) -> bool:
    return True


def _is_integer(text: str) -> bool:
    return text.strip().lstrip("+-").isdigit()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
