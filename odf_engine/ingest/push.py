"""Pushing rows into a root dataset: read, preprocess, merge, write, commit.

Every file becomes at most one commit, in the order in which they are given. There is no state of a
source to remember, so what keeps rows from being taken twice is the merge strategy alone; the state
that polling left, the watermark and the checkpoint are carried on as in every block.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from msgspec.structs import replace

from odf_engine.chain.state import ChainState
from odf_engine.errors import BadData, Conflict, NotSynced, OdfError
from odf_engine.ingest.columns import PushedColumns
from odf_engine.ingest.fetch import Payload, check_readable, stamp_of
from odf_engine.ingest.folders import errors_of_the_disk, inner_folder, job_folder
from odf_engine.ingest.formats import format_named, step_for
from odf_engine.ingest.payload import PayloadJob
from odf_engine.ingest.poll import PullResult
from odf_engine.ingest.prepare import Limits
from odf_engine.ingest.push_source import push_source
from odf_engine.ingest.read import declared_columns
from odf_engine.ingest.shape import data_columns, declared_schema
from odf_engine.metadata.model import AddPushSource, EsriShapefile, ReadStep
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import DatasetEntry, Workspace

if TYPE_CHECKING:
    from odf_engine.spark.session import SparkRuntime

_PACKED: Final = {b"\x1f\x8b": "gzip -dc", b"PK\x03\x04": "unzip -p"}


def push(
    workspace: Workspace,
    entry: DatasetEntry,
    runtime: SparkRuntime,
    reporter: Reporter,
    *,
    files: Sequence[Path],
    source: str | None = None,
    format: str | None = None,
    event_time: Timestamp | None = None,
    ignore_unknown: bool = False,
    strict: bool = False,
) -> PullResult:
    """Adds the rows of files to a root dataset, as one of its push sources says.

    Args:
        workspace: whose dataset it is.
        entry: the dataset.
        runtime: a started Spark.
        reporter: hears of phases, amounts and commits, and is asked whether to stop.
        files: what to read; each becomes at most one commit.
        source: the push source's name; it may be left out when there is only one.
        format: of the files, when it is not what the source or the file's name says.
        event_time: of rows without one; by default the time of ingestion.
        ignore_unknown: leave out columns that the source does not know, and make those that are missing
            null, if they may be.
        strict: a known key of a ledger with other values is an error.

    Raises:
        Cancelled: what was committed until then stays.
        NotTrusted: somebody else's dataset, and what it runs was not allowed.
        OdfError: the push failed. The files before the one that failed are in the dataset, and the hint
            names them; of that one nothing is.
    """
    before = entry.dataset.state()
    event = push_source(entry, source)
    Trust(workspace).check(entry)
    if format is not None:
        format_named(format)
    for path in files:
        check_readable(path)
    reporter.line(f"push source '{event.source_name}'")
    done: list[str] = []
    with errors_of_the_disk(workspace.odf), job_folder(workspace.odf / "cache") as job:
        session = runtime.session()
        for path in files:
            payload = Payload(path, path.name, None, event_time, stamp_of(path))
            try:
                state = _unchanged(entry, event, path)
                step = step_for(event.read, format, path, reporter)
                _check_unpacked(path, step, entry)
                columns = _columns(workspace, state, event, step, ignore_unknown)
                effective = replace(event, read=step)
                with inner_folder(job) as folder:
                    PayloadJob(
                        *(entry, effective, payload, session, folder, workspace.config, reporter),
                        after=state.head,
                        reader=columns.read,
                        strict=strict,
                    ).run()
            except OdfError as error:
                if isinstance(error, NotSynced):
                    done.append(path.name)
                _say_done(error, done)
                raise
            done.append(path.name)
            reporter.check()
    return PullResult.between(before, entry.dataset.state())


def _unchanged(entry: DatasetEntry, source: AddPushSource, path: Path) -> ChainState:
    """The state of the dataset before a file.

    Raises:
        Conflict: the source is defined otherwise by now.
    """
    state = entry.dataset.state()
    if state.push_sources.get(source.source_name) != source:
        raise Conflict(
            f"push source '{source.source_name}' changed while files were pushed",
            where=path.name,
            hint="push what is left again",
        )
    return state


def _columns(
    workspace: Workspace, state: ChainState, source: AddPushSource, step: ReadStep, ignore_unknown: bool
) -> PushedColumns:
    """What the source takes: the columns that it declares, else those of the dataset."""
    vocab = state.vocabulary
    operations = vocab.operation_type_column
    columns = declared_columns(step)
    optional: list[str] = []
    if columns is None and source.preprocess is None and (held := declared_schema(state)) is not None:
        columns = data_columns(held, vocab).append(pa.field(operations, pa.int32()))
        optional.append(vocab.event_time_column)
    if source.preprocess is None:  # a query may count on the column being there
        optional.append(operations)
    names = [] if columns is None else columns.names
    return PushedColumns(
        step=step,
        plain=step is not source.read,
        columns=columns,
        optional=tuple(name for name in names if name.casefold() in {each.casefold() for each in optional}),
        operations=operations,
        ignore_unknown=ignore_unknown,
        limits=Limits.of(workspace.config.prepare),
    )


def _check_unpacked(path: Path, step: ReadStep, entry: DatasetEntry) -> None:
    """A push source has no prepare steps that could unpack a file."""
    with path.open("rb") as file:
        head = file.read(4)
    for magic, command in _PACKED.items():
        if head.startswith(magic) and not (isinstance(step, EsriShapefile) and magic.startswith(b"PK")):
            raise BadData(
                "is packed, and what is pushed is read as it is",
                where=path.name,
                hint=f"unpack it first: {command} {path.name} | odf ingest {entry.alias} -",
            )


def _say_done(error: OdfError, done: Sequence[str]) -> None:
    """What a person has to know who would push the same files again."""
    if done:
        said = f"already in the dataset: {', '.join(done)}; push only the files after it"
        error.hint = f"{error.hint}; {said}" if error.hint else said
