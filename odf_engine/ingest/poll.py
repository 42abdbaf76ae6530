"""Pulling a root dataset: fetch, prepare, read, preprocess, merge, write, commit, until there is no more.

What one fetch brings becomes at most one commit, with the rows and the source's state in one block, so
that nothing is taken twice or lost. Everything temporary is in one folder of the workspace's cache,
which goes when the pull ends, however it ends; a payload that failed is fetched anew by the next pull.
Only a download that broke off stays, for the next pull to go on with.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from odf_engine.errors import Unsupported
from odf_engine.identity.multiformats import Multihash
from odf_engine.ingest.fetch import FetchContext, Payload, fetch
from odf_engine.ingest.folders import errors_of_the_disk, inner_folder, job_folder
from odf_engine.ingest.payload import PayloadJob
from odf_engine.metadata.model import AddData, DatasetKind, FilesGlob, SetPollingSource
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import DatasetEntry, Workspace

if TYPE_CHECKING:
    from odf_engine.chain.chain import Dataset
    from odf_engine.chain.state import ChainState
    from odf_engine.spark.session import SparkRuntime


@dataclass(frozen=True)
class PullResult:
    """What a pull did.

    Attributes:
        status: whether anything was committed.
        old_head, new_head: before and after; equal when nothing was committed.
        blocks: how many were committed.
        records: how many rows they added.
    """

    status: Literal["updated", "up-to-date"]
    old_head: Multihash | None
    new_head: Multihash | None
    blocks: int
    records: int

    @classmethod
    def between(cls, before: ChainState, after: ChainState) -> PullResult:
        """What happened between two states of a chain."""
        return cls(
            status="up-to-date" if after.head == before.head else "updated",
            old_head=before.head,
            new_head=after.head,
            blocks=after.blocks - before.blocks,
            records=after.records - before.records,
        )


def pull(
    workspace: Workspace,
    entry: DatasetEntry,
    runtime: SparkRuntime,
    reporter: Reporter,
    *,
    fetch_uncacheable: bool = False,
    set_watermark: Timestamp | None = None,
    force: bool = False,
    strict: bool = False,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> PullResult:
    """Brings a root dataset up to date with its source.

    Args:
        workspace: where relative paths start.
        entry: the dataset.
        runtime: a started Spark.
        reporter: hears of phases, amounts and commits, and is asked whether to stop.
        fetch_uncacheable: fetch a source again that cannot say whether it changed.
        set_watermark: instead of polling, say up to when event time is complete.
        force: fetch although the source says that nothing changed.
        strict: rows that a ledger has with other values are an error, not a warning.
        environment: values for ``${{ env.NAME }}`` that were given along with the request.

    Raises:
        NotTrusted: somebody else wrote the source, and it was not allowed to run.
        Cancelled: what was committed until then stays.
        OdfError: the pull failed; what was committed until then stays, and the next pull goes on there.
    """
    dataset = entry.dataset
    before = dataset.state()
    if before.kind is not DatasetKind.Root:
        raise Unsupported(
            f"{entry.alias} is a derivative dataset, and only root datasets can be pulled",
            hint="pull the datasets that it reads",
        )
    if set_watermark is not None:
        _set_watermark(workspace, entry, before, set_watermark, reporter)
    else:
        Trust(workspace).check(entry)
        if _has_news(dataset, before, reporter, fetch_uncacheable=fetch_uncacheable, force=force):
            _poll(workspace, entry, runtime, reporter, environment, force=force, strict=strict)
    return PullResult.between(before, dataset.state())


def _has_news(
    dataset: Dataset, state: ChainState, reporter: Reporter, *, fetch_uncacheable: bool, force: bool
) -> bool:
    """Whether it makes sense to ask the source."""
    source = state.polling_source
    if "SetPollingSource" in state.not_understood:
        raise Unsupported(
            "the polling source is of a kind that only a newer version understands",
            where=f"block {state.not_understood['SetPollingSource']}",
        )
    if source is None:
        reporter.line(_no_source(dataset, state))
        return False
    if force or isinstance(source.fetch, FilesGlob) or not state.was_polled:
        return True
    if getattr(source.fetch, "cache", None) is not None:
        reporter.line("the source is cached forever, and was ingested already")
        return False
    if state.source_state is None and not fetch_uncacheable:
        reporter.line(
            "the source does not say whether it changed, and was ingested already: it is not fetched again"
            " (pull with --fetch-uncacheable to fetch it)",
            "warning",
        )
        return False
    return True


def _no_source(dataset: Dataset, state: ChainState) -> str:
    if disabled := dataset.page(1, kinds={"DisablePollingSource"}):
        why = f"the polling source was disabled by block {disabled[0].sequence_number}"
    else:
        why = "the dataset has no polling source"
    return why + (": rows are pushed into it" if state.push_sources else ": there is nothing to pull")


def _set_watermark(
    workspace: Workspace, entry: DatasetEntry, state: ChainState, watermark: Timestamp, reporter: Reporter
) -> None:
    if state.watermark is not None and watermark <= state.watermark:
        reporter.line(f"the watermark is {state.watermark} already")
        return
    reporter.phase("commit")
    checkpoint = state.last_checkpoint
    event = AddData(
        prev_checkpoint=checkpoint.physical_hash if checkpoint else None,
        prev_offset=state.last_offset,
        new_checkpoint=checkpoint,
        new_watermark=watermark,
        new_source_state=state.source_state,
    )
    head = entry.dataset.commit(
        [event],
        system_time=max(Timestamp.now(), state.system_time),
        expected_head=state.head,
        block_version=workspace.config.block_version,
    )
    reporter.line(f"watermark {watermark}")
    reporter.committed(str(entry.id), str(head), "AddData", 0)


def _poll(
    workspace: Workspace,
    entry: DatasetEntry,
    runtime: SparkRuntime,
    reporter: Reporter,
    environment: Mapping[str, str],
    *,
    force: bool,
    strict: bool,
) -> None:
    state = entry.dataset.state()
    source = state.polling_source
    assert isinstance(source, SetPollingSource)
    with errors_of_the_disk(workspace.odf), job_folder(workspace.odf / "cache") as job:
        context = FetchContext(
            resolve=workspace.resolve_path,
            root=workspace.folder,
            dataset=entry.dataset,
            state=None if force else state.source_state,
            job=job,
            config=workspace.config.fetch,
            reporter=reporter,
            force=force,
            environment=environment,
            allowed=workspace.config.allowed_for(str(entry.alias), str(entry.id)),
            name=str(entry.alias),
            untrusted=not Trust(workspace).allows_private_network(entry),
            downloads=workspace.odf / "cache" / "downloads",
        )
        session = runtime.session()
        with closing(_told(fetch(source.fetch, context), reporter)) as payloads:
            head = state.head
            for payload in payloads:
                with inner_folder(job) as folder:
                    # What was fetched, and how it is read, goes with the state at the beginning: nobody
                    # else may commit in between, such as another source, or the same file.
                    head = PayloadJob(
                        entry,
                        source,
                        payload,
                        session,
                        folder,
                        workspace.config,
                        reporter,
                        after=head,
                        strict=strict,
                    ).run()


def _told(payloads: Iterator[Payload], reporter: Reporter) -> Generator[Payload, None, None]:
    """The payloads, with the phase in which each is fetched."""
    while True:
        reporter.phase("fetch")
        try:
            payload = next(payloads)
        except StopIteration:
            return
        yield payload
        reporter.check()
