"""Pulls of root datasets from their polling source, payload by payload."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from odf_engine.base.files import translate_os_errors
from odf_engine.base.progress import Reporter, count_of
from odf_engine.chain.state import SOURCE_NAME, ChainUpdate
from odf_engine.checks.gate import load_checks
from odf_engine.data.parquet.slices import WrittenSlice
from odf_engine.errors import Cancelled, Conflict, NotSynced, OdfError, Unsupported
from odf_engine.identity.multiformats import Multihash
from odf_engine.ingest.explicit_watermark import complete_static_dataset, set_watermark
from odf_engine.ingest.fetch.fetch_step import fetch
from odf_engine.ingest.fetch.model import FetchContext, Payload
from odf_engine.ingest.file_batch import FileBatchJob, FileGroups, files_per_commit
from odf_engine.ingest.payload import IngestContext, PayloadJob
from odf_engine.ingest.prep_step import PreparedFile
from odf_engine.ingest.raw_query import FindEngine, find_built_in_engine
from odf_engine.ingest.write_progress import FileProgress
from odf_engine.metadata.model import (
    DatasetKind,
    Decompress,
    FilesGlob,
    Mqtt,
    SetPollingSource,
    Snapshot,
    Url,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net.credentials import Credentials
from odf_engine.storage.scratch import job_scratch_folder, payload_scratch_folder
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.documents.private_source import local_state, read_private_source, read_values
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from odf_engine.chain.dataset import Dataset
    from odf_engine.chain.state import ChainState
    from odf_engine.spark.runtime.session import SparkRuntime


class PullOptions(NamedTuple):
    """Options of a pull from a polling source.

    Attributes:
        fetch_uncacheable: fetch an ingested source that cannot report changes.
        set_watermark: commit this watermark instead of polling.
        force: fetch even if the source reports no change.
        strict: rows of a ledger with a known key and other values are an error, not a warning.
        environment: values for ``${{ env.NAME }}`` in the request.
        find_engine: returns the external engines of preprocess queries.
    """

    fetch_uncacheable: bool = False
    set_watermark: Timestamp | None = None
    force: bool = False
    strict: bool = False
    environment: Mapping[str, str] = MappingProxyType({})
    find_engine: FindEngine = find_built_in_engine


_DEFAULTS: Final = PullOptions()


def pull(
    workspace: Workspace,
    entry: DatasetEntry,
    runtime: SparkRuntime,
    reporter: Reporter,
    options: PullOptions = _DEFAULTS,
) -> ChainUpdate:
    """Ingest the new data of the polling source.

    Args:
        workspace: the workspace; relative paths start at its folder.
        entry: the dataset.
        runtime: a started Spark.
        reporter: receives phases, amounts and commits, and cancels the pull.
        options: what is fetched, and how.

    Raises:
        NotTrusted: the source is by a third party, and is not trusted.
        Cancelled: the pull was cancelled; earlier commits remain.
        OdfError: the pull failed; earlier commits remain, and the next pull continues after them.
    """
    dataset = entry.dataset
    before, repeated = dataset.state(), 0
    if before.kind is not DatasetKind.Root:
        raise Unsupported(
            f"{entry.alias} is a derivative dataset; only root datasets have a polling source",
            hint="pull its inputs",
        )
    if options.set_watermark is not None:
        set_watermark(workspace, entry, options.set_watermark, runtime, reporter)
    else:
        Trust(workspace).require_trust(entry)
        names = (str(entry.alias), str(entry.id))
        fetch_uncacheable = options.fetch_uncacheable or workspace.config.fetch.is_never_cached(*names)
        state = local_state(dataset)
        if _needs_fetch(entry, state, reporter, fetch_uncacheable=fetch_uncacheable, force=options.force):
            repeated = _poll(workspace, entry, runtime, reporter, options)
        complete_static_dataset(workspace, entry, runtime, reporter)
    return ChainUpdate.from_states(before, dataset.state(), repeated)


def _needs_fetch(
    entry: DatasetEntry, state: ChainState, reporter: Reporter, *, fetch_uncacheable: bool, force: bool
) -> bool:
    """Return whether the source has to be fetched; log why not.

    Raises:
        Unsupported: the source is of a newer specification.
    """
    source = state.polling_source
    if "SetPollingSource" in state.not_understood:
        raise Unsupported(
            "the polling source is from a newer specification",
            where=f"block {state.not_understood['SetPollingSource']}",
        )
    if source is None:
        reporter.log(_no_source_message(entry.dataset, state))
        return False
    if force or isinstance(source.fetch, FilesGlob | Mqtt) or not state.was_polled:
        return True
    if getattr(source.fetch, "cache", None) is not None:
        reporter.log("the source is cached forever and already ingested")
        return False
    if state.source_state is None and not fetch_uncacheable:
        reporter.warn(
            "not fetched: the source is already ingested, and cannot report changes (it has no ETag or"
            " modification time); use --fetch-uncacheable to fetch it again, or run odf config set"
            f" fetch.cache.{entry.alias} never to fetch it in each pull",
            "uncacheable-source",
        )
        return False
    return True


def _no_source_message(dataset: Dataset, state: ChainState) -> str:
    if disabled := dataset.list_blocks(1, kinds={"DisablePollingSource"}):
        why = f"the polling source was disabled by block {disabled[0].sequence_number}"
    else:
        why = "the dataset has no polling source"
    return why + ("; it has a push source" if state.push_sources else "; nothing to pull")


class PreviewedRows(NamedTuple):
    """The rows that a pull would commit from the first file with new rows.

    Attributes:
        origin: the path or URL of the file.
        slices: the rows as slices, which exist only for the ``with`` body.
    """

    origin: str
    slices: Sequence[WrittenSlice]


@contextmanager
def preview(
    workspace: Workspace, entry: DatasetEntry, runtime: SparkRuntime, reporter: Reporter, options: PullOptions
) -> Iterator[PreviewedRows | None]:
    """Yield the rows that a pull would commit first, or None if there are none. Nothing is committed.

    See :func:`pull` for the arguments and errors. Checks of the dataset are not evaluated.
    """
    state = local_state(entry.dataset)
    Trust(workspace).require_trust(entry)
    if not _needs_fetch(entry, state, reporter, fetch_uncacheable=True, force=options.force):
        yield None
        return
    with _open_payloads(workspace, entry, runtime, reporter, options) as opened:
        for payload in opened.payloads:
            with opened.open_job(payload, state.head) as payload_job, payload_job.staged() as staged:
                if staged is not None and staged.merged.written:
                    yield PreviewedRows(payload.name, staged.merged.written)
                    return
    yield None


@contextmanager
def sample_file(
    workspace: Workspace,
    entry: DatasetEntry,
    source: SetPollingSource,
    runtime: SparkRuntime,
    reporter: Reporter,
    environment: Mapping[str, str],
) -> Iterator[PreparedFile | None]:
    """Yield the first file that was not ingested yet, else the newest one, after the prepare steps.

    Yields None if the source has no file. Nothing is committed.

    Args:
        workspace: the workspace; relative paths start at its folder.
        entry: the dataset.
        source: the source, which may differ from the source in the chain.
        runtime: a started Spark.
        reporter: receives phases and amounts, and cancels the fetch.
        environment: values for ``${{ env.NAME }}`` in the request.

    Raises:
        NotTrusted: the dataset is by a third party, and is not trusted.
        OdfError: the source cannot be fetched.
    """
    Trust(workspace).require_trust(entry)
    head = entry.dataset.state().head
    for force in (False, True) if isinstance(source.fetch, FilesGlob | Url) else (False,):
        options = PullOptions(force=force, environment=environment)
        newest = 0
        if force:
            with _open_payloads(workspace, entry, runtime, reporter, options, source) as opened:
                newest = sum(1 for _ in opened.payloads) - 1
        with _open_payloads(workspace, entry, runtime, reporter, options, source) as opened:
            for payload in islice(opened.payloads, max(newest, 0), None):
                with opened.open_job(payload, head) as payload_job:
                    yield payload_job.prepare_file()
                return
    yield None


@contextmanager
def fetched_file(
    workspace: Workspace, entry: DatasetEntry, reporter: Reporter, environment: Mapping[str, str]
) -> Iterator[tuple[Payload, Path] | None]:
    """Yield the first file that was not ingested yet, else the newest one, before the prepare steps.

    Yields the file and a folder for temporary files, or None if the source has no file. The arguments and
    errors are as for :func:`sample_file`.
    """
    Trust(workspace).require_trust(entry)
    source = local_state(entry.dataset).polling_source
    assert isinstance(source, SetPollingSource)
    for force in (False, True) if isinstance(source.fetch, FilesGlob | Url) else (False,):
        options = PullOptions(force=force, environment=environment)
        with _open_fetch(workspace, entry, source, reporter, options) as (payloads, job):
            file = None
            for file in payloads:  # noqa: B007
                if not force:
                    break
            if file is not None:
                yield file, job
                return
    yield None


def _poll(
    workspace: Workspace,
    entry: DatasetEntry,
    runtime: SparkRuntime,
    reporter: Reporter,
    options: PullOptions,
) -> int:
    """Ingest the payloads since the last pull; return the number of rows of files that only repeat rows."""
    head, repeated = entry.dataset.state().head, 0
    with _open_payloads(workspace, entry, runtime, reporter, options) as opened:
        groups = FileGroups(opened.payloads, files_per_commit(opened.context, opened.source))
        for group in groups:
            # Payload and source belong to the state at the start: a commit by another process in between,
            # such as of another source or the same file, is a conflict.
            if len(group) > 1:
                committed = _ingest_together(opened, group, head)
                if committed is not None:
                    head = committed
                    continue
                groups.limit = 1  # The next files are probably like these.
            for payload in group:
                with opened.open_job(payload, head) as payload_job:
                    head = payload_job.run()
                repeated += payload_job.repeated
                payload.on_commit()
    return repeated


def _ingest_together(opened: _OpenSource, files: Sequence[Payload], head: Multihash) -> Multihash | None:
    """Ingest files in one commit; return the new head, or None if they must be ingested one by one.

    Raises:
        Cancelled, Conflict, NotSynced: as for one file.
    """
    context, reporter = opened.context, opened.context.reporter
    try:
        with payload_scratch_folder(opened.job) as folder:
            head = FileBatchJob(context, opened.source, files, folder, after=head).run()
    except (Cancelled, Conflict, NotSynced):
        raise
    except OdfError as error:
        reporter.log(f"{count_of(len(files), 'file')} ingested one by one: {error.message}", "debug")
        return None
    for payload in files:
        payload.on_commit()
    return head


class _OpenSource(NamedTuple):
    """A polling source during a pull.

    Attributes:
        context: what its payloads share.
        source: the source event.
        payloads: the payloads since the last pull, which are fetched one after the other.
        job: the folder for temporary files.
    """

    context: IngestContext
    source: SetPollingSource
    payloads: Iterator[Payload]
    job: Path

    @contextmanager
    def open_job(self, payload: Payload, head: Multihash) -> Iterator[PayloadJob]:
        """Yield the job that ingests a payload into a head."""
        if payload.number:
            self.context.reporter.set_amounts(files=payload.number, file=payload.name)
        with payload_scratch_folder(self.job) as folder:
            yield PayloadJob(self.context, self.source, payload, folder, after=head)


@contextmanager
def _open_payloads(
    workspace: Workspace,
    entry: DatasetEntry,
    runtime: SparkRuntime,
    reporter: Reporter,
    options: PullOptions,
    source: SetPollingSource | None = None,
) -> Iterator[_OpenSource]:
    """Yield the source with its payloads since the last pull.

    See :func:`pull` for the arguments. ``source`` replaces the source in the chain.
    """
    source = source or local_state(entry.dataset).polling_source
    assert isinstance(source, SetPollingSource)
    if isinstance(source.fetch, FilesGlob):
        reporter = FileProgress(reporter)
    with _open_fetch(workspace, entry, source, reporter, options) as (payloads, job):
        checks = load_checks(workspace, entry, runtime.session)
        shared = IngestContext(
            entry,
            runtime.session(),
            workspace,
            reporter,
            checks,
            options.strict,
            find_engine=options.find_engine,
        )
        yield _OpenSource(shared, source, payloads, job)


@contextmanager
def _open_fetch(
    workspace: Workspace,
    entry: DatasetEntry,
    source: SetPollingSource,
    reporter: Reporter,
    options: PullOptions,
) -> Iterator[tuple[Iterator[Payload], Path]]:
    """Yield the payloads of a source since the last pull, and the folder for temporary files."""
    state, private = local_state(entry.dataset), read_private_source(entry.dataset.folder)
    environment, allowed = options.environment, workspace.config.allowed_for(str(entry.alias), str(entry.id))
    if private is not None:
        values = read_values(workspace.odf, private, environment)
        environment, allowed = {**environment, **values}, {*allowed, *values}
    with (
        translate_os_errors(workspace.odf, "the current file was not committed"),
        job_scratch_folder(workspace.odf / "cache") as job,
    ):
        context = FetchContext(
            resolve=workspace.resolve_path,
            root=workspace.folder,
            dataset=entry.dataset,
            state=None if options.force else state.source_state,
            job=job,
            config=workspace.config.fetch,
            reporter=reporter,
            force=options.force,
            environment=environment,
            allowed=allowed,
            name=str(entry.alias),
            untrusted=not Trust(workspace).allows_private_network(entry),
            downloads=workspace.odf / "cache" / "downloads",
            shares_download=any(
                isinstance(step, Decompress) and step.sub_path for step in source.prepare or ()
            ),
            dataset_id=str(entry.id),
            credentials=Credentials(workspace.odf),
            mqtt=workspace.config.mqtt,
            ethereum=workspace.config.ethereum,
            whole_payload=isinstance(source.merge, Snapshot),
            source_name=SOURCE_NAME if private is None else private.source_name,
        )
        fetched = fetch(source.fetch, context)
        with closing(_report_fetch_phase(fetched, reporter, context.source_name)) as payloads:
            yield payloads, job


def _report_fetch_phase(
    payloads: Iterator[Payload], reporter: Reporter, source_name: str
) -> Generator[Payload, None, None]:
    """Yield the payloads, with the name of the source in their states; report the phase before each."""
    while True:
        reporter.phase("fetch")
        try:
            payload = next(payloads)
        except StopIteration:
            return
        if payload.state is not None and payload.state.source_name != source_name:
            state = msgspec.structs.replace(payload.state, source_name=source_name)
            payload = dataclasses.replace(payload, state=state)
        yield payload
        reporter.raise_if_cancelled()
