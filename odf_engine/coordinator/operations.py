"""What each kind of job does: a few lines that call the floor below.

The floors below are imported when the first job needs them, so that the worker answers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import to_builtins

from odf_engine.coordinator import changing, looking, proving, querying, tracing
from odf_engine.coordinator.protocol import (
    CheckProof,
    Compare,
    Describe,
    Diff,
    Export,
    Ingest,
    Project,
    Pull,
    Push,
    Query,
    Request,
    Search,
    Trace,
    Update,
    Validate,
    Verify,
)
from odf_engine.progress import Reporter

if TYPE_CHECKING:
    from odf_engine.ingest.poll import PullResult
    from odf_engine.spark.session import SparkRuntime
    from odf_engine.workspace.workspace import DatasetEntry, Workspace


class Host(Protocol):
    """What the worker has for all jobs."""

    @property
    def folder(self) -> Path:
        """The workspace's folder."""
        ...

    def spark(self, reporter: Reporter) -> SparkRuntime:
        """The worker's Spark; waits until it has started.

        Raises:
            OdfError: it does not start.
            Cancelled: while waiting.
        """
        ...


@dataclass(frozen=True)
class Context:
    """What a job finds in the worker; closed at the end of the job.

    Attributes:
        host: the worker.
        environment: variables that its dataset's source may read, as the client has them.
    """

    host: Host
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    @cached_property
    def workspace(self) -> Workspace:
        """The worker's workspace, opened for this job.

        Raises:
            NotFound, Unsupported: see :meth:`odf_engine.workspace.workspace.Workspace.find`.
        """
        from odf_engine.workspace.workspace import Workspace

        return Workspace.find(explicit=self.host.folder)

    def close(self) -> None:
        """Closes the index of blocks: references in cycles would keep its file open for some time."""
        if "workspace" in self.__dict__:
            self.workspace.index.close()


Executor = Callable[[Request, Context, Reporter], Any]
"""Does a request; the result is what JSON can hold."""


def execute(request: Request, context: Context, reporter: Reporter) -> dict[str, Any]:
    """Does a job.

    Returns: the dataset's entry in the ``--json`` output of the command of the same name.
    Raises:
        OdfError: the job failed, or was cancelled.
    """
    match request:
        case Pull():
            return _pull(request, context, reporter)
        case Push() | Compare() | Search():
            return _share(request, context, reporter)
        case Ingest():
            return _ingest(request, context, reporter)
        case Verify():
            return _verify(request, context, reporter)
        case Validate():
            return changing.validate(request, context, reporter)
        case Update():
            return changing.update(request, context, reporter)
        case Query():
            return querying.query(request, context, reporter)
        case CheckProof():
            return proving.check(request, context, reporter)
        case Trace():
            return tracing.trace(request, context, reporter)
        case Diff():
            return looking.diff(request, context, reporter)
        case Describe():
            return looking.describe(request, context, reporter)
        case Project():
            return looking.project(request, context, reporter)
        case Export():
            return looking.export(request, context, reporter)


def warm_up() -> None:
    """Imports what the first pull needs. Only once Spark has started: its modules import each other in
    circles, which two threads must not do at the same time."""
    import odf_engine.ingest.push
    import odf_engine.transform.engines
    import odf_engine.transform.run  # noqa: F401


def _pull(request: Pull, context: Context, reporter: Reporter) -> dict[str, Any]:
    from odf_engine.coordinator import sharing
    from odf_engine.metadata.model import DatasetKind
    from odf_engine.metadata.timestamp import Timestamp
    from odf_engine.workspace.trust import Trust

    workspace = context.workspace
    if request.url is not None and request.url == request.dataset:  # it may not be here yet
        return sharing.pull(workspace, None, request.url, request, reporter)
    entry = workspace.resolve(request.dataset)
    if (url := sharing.source_of(workspace, entry, request.url)) is not None:
        return sharing.pull(workspace, entry, url, request, reporter)
    if request.set_watermark is None:
        Trust(workspace).check(entry)  # pulling does it too: here it spares the wait for Spark
    runtime = context.host.spark(reporter)
    if entry.dataset.state().kind is DatasetKind.Derivative:
        from odf_engine.transform.anew import transform_or_begin_anew
        from odf_engine.transform.engines import engines_for
        from odf_engine.transform.run import transform

        run = transform_or_begin_anew if request.reset_on_divergence else transform
        with engines_for(workspace, entry, runtime) as engine:
            return _pulled(entry, run(workspace, entry, engine, reporter))

    from odf_engine.ingest.poll import pull  # after Spark has started, see warm_up

    result = pull(
        workspace,
        entry,
        runtime,
        reporter,
        fetch_uncacheable=request.fetch_uncacheable,
        set_watermark=None if request.set_watermark is None else Timestamp.parse(request.set_watermark),
        force=request.force,
        strict=request.strict,
        environment=context.environment,
    )
    return _pulled(entry, result)


def _share(request: Push | Compare | Search, context: Context, reporter: Reporter) -> dict[str, Any]:
    from odf_engine.coordinator import sharing

    match request:
        case Push():
            return sharing.push(request, context, reporter)
        case Compare():
            return sharing.compare(request, context, reporter)
        case Search():
            return sharing.search(request, context, reporter)


def _ingest(request: Ingest, context: Context, reporter: Reporter) -> dict[str, Any]:
    from odf_engine.coordinator import sharing
    from odf_engine.ingest.push_source import push_source
    from odf_engine.metadata.timestamp import Timestamp
    from odf_engine.workspace.spool import release
    from odf_engine.workspace.trust import Trust

    workspace = context.workspace
    entry = workspace.resolve(request.dataset)
    push_source(entry, request.source)  # as above
    Trust(workspace).check(entry)
    sharing.warn_of_source(workspace, entry, reporter)
    files = [Path(file) for file in request.files]
    try:
        runtime = context.host.spark(reporter)

        from odf_engine.ingest.push import push

        result = push(
            workspace,
            entry,
            runtime,
            reporter,
            files=files,
            source=request.source,
            format=request.format,
            event_time=None if request.event_time is None else Timestamp.parse(request.event_time),
            ignore_unknown=request.ignore_unknown,
            strict=request.strict,
        )
        return _pulled(entry, result)
    finally:
        for file in files:
            release(workspace.odf, file)


def _pulled(entry: DatasetEntry, result: PullResult) -> dict[str, Any]:
    return {
        "name": str(entry.alias),
        "status": result.status,
        "old_head": _text(result.old_head),
        "new_head": _text(result.new_head),
        "blocks": result.blocks,
        "records": result.records,
        "error": None,
    }


def _verify(request: Verify, context: Context, reporter: Reporter) -> dict[str, Any]:
    from odf_engine.verify.integrity import verify
    from odf_engine.verify.origins import origins
    from odf_engine.verify.walk import is_derivative

    workspace = context.workspace
    entry = workspace.resolve(request.dataset)
    with ExitStack() as stack:
        replay = None
        if not request.integrity and is_derivative(entry.dataset):
            runtime = context.host.spark(reporter)
            from odf_engine.transform.engines import engines_for
            from odf_engine.verify.replay import Replay

            engine = stack.enter_context(engines_for(workspace, entry, runtime))
            replay = Replay(workspace, entry, engine, reporter)
        known = None if request.rows else workspace.index
        report = verify(entry.dataset, reporter, request.first, request.last, replay, known)
    found = origins(workspace, entry, request.last)
    head = None
    if report.valid and request.first is None and request.last is None:
        state = entry.dataset.state()
        head = state.head if state.blocks == report.blocks else None  # else it was appended to meanwhile
    named = {"name": str(entry.alias), "head": _text(head)}
    return {**named, **to_builtins(report), "origins": to_builtins(found)}


def tidy(folder: Path, datasets: Sequence[str]) -> None:
    """Removes what a killed worker left half-written in these datasets (ids); nobody may work on them."""
    if not datasets:
        return
    from odf_engine.workspace.workspace import Workspace

    wanted = set(datasets)
    for entry in Workspace(folder).datasets():
        if str(entry.id) in wanted:
            entry.dataset.sweep(untouched_for=0)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
