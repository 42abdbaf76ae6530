"""Jobs that exchange datasets with other places, and remember how they stand to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from msgspec import to_builtins

from odf_engine.coordinator.protocol import Compare, Pull, Push, Search
from odf_engine.errors import Cancelled, NotFound, OdfError, UsageError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.refs import DatasetAlias
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.workspace.credentials import Credentials
from odf_engine.workspace.remotes import Kind, Remotes, Seen, checked_url
from odf_engine.workspace.workspace import DatasetEntry, Workspace

if TYPE_CHECKING:
    from odf_engine.coordinator.operations import Context
    from odf_engine.sync.compare import Relation
    from odf_engine.sync.places import Access
    from odf_engine.sync.pull import Pulled
    from odf_engine.sync.remote import Listed, RemoteDataset

MOST_FOUND: Final = 10_000
"""More datasets than these are not told: all of them are held in memory, and kept in the journal."""


# --- Pull ------------------------------------------------------------------------------------------


def source_of(workspace: Workspace, entry: DatasetEntry, url: str | None) -> str | None:
    """Where a dataset is pulled from: from ``url``, else from where it comes; None: it is made here.

    Raises:
        UsageError: it comes from several places.
    """
    if url is not None:
        return url
    known = Remotes(workspace.odf).of(entry.id).pull
    if len(known) > 1:
        where = ", ".join(known)
        raise UsageError(f"{entry.alias} comes from {where}", hint="say from which one: --from URL")
    return known[0] if known else None


def warn_of_source(workspace: Workspace, entry: DatasetEntry, reporter: Reporter) -> None:
    """Says that what is appended here is not there: the two histories part, unless it is pushed there."""
    known = Remotes(workspace.odf).of(entry.id)
    for url in known.pull:
        if url not in known.push:
            hint = f"odf repo alias remove {entry.alias} lets go of that place"
            reporter.line(f"it comes from {url}, which has not what is appended here ({hint})", "warning")


def pull(
    workspace: Workspace, entry: DatasetEntry | None, url: str, request: Pull, reporter: Reporter
) -> dict[str, Any]:
    """Takes over what is new at a URL, into ``entry`` or into a dataset that is not here yet.

    One that turns out to be here is brought up to date instead of made twice.

    Returns: the dataset's entry in the ``--json`` output of ``odf pull``.
    """
    url = checked_url(url)
    if request.set_watermark is not None:
        raise UsageError(f"it comes from {url}: its watermark is set there", hint=f"odf pull --from {url}")
    remotes = Remotes(workspace.odf)
    here = {each.id for each in workspace.datasets()}
    entry = entry or _known(workspace, remotes.at(url))
    reporter.line(f"from {url}")
    with _opened(workspace, url, reporter) as remote:
        if entry is None:
            entry, pulled = _pull_new(workspace, remote, request, reporter)
        else:
            pulled = _pull_into(workspace, entry, remote, request, reporter)
        # One's own dataset is made here all the same, and one that comes from somewhere does not move by
        # itself: only what had no other beginning comes from there from now on.
        mine = entry.id in here and (workspace.keys.holds(entry.id) or remotes.of(entry.id).pull)
        kind: Kind | None = None if mine else "pull"
        _note(workspace, entry, url, pulled.relation, pulled.their_head, kind)
    if pulled.status == "updated":
        reporter.line(f"{pulled.blocks:,} blocks with {pulled.records:,} records, {pulled.bytes:,} bytes")
    return {
        "name": str(entry.alias),
        "status": pulled.status,
        "old_head": _text(pulled.old_head),
        "new_head": _text(pulled.new_head),
        "blocks": pulled.blocks,
        "records": pulled.records,
        "error": None,
        "url": url,
        "label": remotes.label(url),
        "bytes": pulled.bytes,
        "ahead": pulled.relation.ours,
    }


def _pull_new(
    workspace: Workspace, remote: RemoteDataset, request: Pull, reporter: Reporter
) -> tuple[DatasetEntry, Pulled]:
    from odf_engine.sync.pull import HereAlready, pull_new

    if request.alias is None:
        raise UsageError("it is not here yet, and has no name", hint="give it one: --as NAME")
    alias = DatasetAlias.parse(request.alias)
    try:
        return pull_new(workspace, alias, remote, reporter, parallel=workspace.config.sync.parallel)
    except HereAlready as error:
        entry = _known(workspace, error.dataset)
        if entry is None:
            raise
    reporter.line(f"it is here already: {entry.alias}")
    return entry, _pull_into(workspace, entry, remote, request, reporter)


def _pull_into(
    workspace: Workspace, entry: DatasetEntry, remote: RemoteDataset, request: Pull, reporter: Reporter
) -> Pulled:
    from odf_engine.sync.pull import pull_into

    with _divergence_noted(workspace, entry, remote):
        parallel = workspace.config.sync.parallel
        return pull_into(entry, remote, reporter, force=request.force, parallel=parallel)


def _known(workspace: Workspace, dataset: DatasetId | None) -> DatasetEntry | None:
    if dataset is not None:
        try:
            return workspace.resolve(str(dataset))
        except NotFound:
            pass  # what is known of it outlived it
    return None


# --- Push, compare, search -------------------------------------------------------------------------


def push(request: Push, context: Context, reporter: Reporter) -> dict[str, Any]:
    """Brings another place up to date; the result is described with the request."""
    from odf_engine.sync.push import push as push_to

    workspace = context.workspace
    entry, url = workspace.resolve(request.dataset), checked_url(request.url)
    reporter.line(f"to {url}")
    with _opened(workspace, url, reporter) as remote, _divergence_noted(workspace, entry, remote):
        parallel = workspace.config.sync.parallel
        pushed = push_to(entry, remote, reporter, force=request.force, parallel=parallel)
        _note(workspace, entry, url, pushed.relation, pushed.new_head, "push")
    if pushed.status == "updated":
        reporter.line(f"{pushed.blocks:,} blocks and {pushed.objects:,} objects, {pushed.bytes:,} bytes")
    return {
        "name": str(entry.alias),
        "url": url,
        "label": Remotes(workspace.odf).label(url),
        "status": pushed.status,
        "old_head": _text(pushed.old_head),
        "new_head": _text(pushed.new_head),
        "blocks": pushed.blocks,
        "objects": pushed.objects,
        "bytes": pushed.bytes,
    }


def compare(request: Compare, context: Context, reporter: Reporter) -> dict[str, Any]:
    """Looks how a dataset stands to its remotes; the result is described with the request."""
    from odf_engine.sync.compare import compare as relation_to

    workspace = context.workspace
    entry = workspace.resolve(request.dataset)
    remotes = Remotes(workspace.odf)
    known = remotes.of(entry.id)
    seen: list[Seen] = []
    problems: list[dict[str, str]] = []
    for url in request.urls or dict.fromkeys([*known.pull, *known.push]):
        reporter.phase("compare")
        try:
            with _opened(workspace, checked_url(url), reporter) as remote:
                relation = relation_to(entry.dataset, remote, reporter)
                seen.append(_note(workspace, entry, remote.url, relation, remote.head()))
        except Cancelled:
            raise
        except OdfError as error:
            reporter.line(f"{url}: {error.message}", "warning")
            problems.append({"url": url, "label": remotes.label(url), "message": error.message})
    found = [{**to_builtins(each), "label": remotes.label(each.url)} for each in seen]
    return {"name": str(entry.alias), "seen": found, "problems": problems}


def search(request: Search, context: Context, reporter: Reporter) -> dict[str, Any]:
    """Looks for datasets in repositories; the result is described with the request."""
    from odf_engine.sync.places import open_repository

    workspace = context.workspace
    remotes = Remotes(workspace.odf)
    named = [remotes.repository(name) for name in request.repositories] or remotes.repositories()
    words = request.text.casefold().split()
    found: list[dict[str, Any]] = []
    problems: list[dict[str, str]] = []
    reporter.phase("search")
    for repo in named:
        try:
            repository = open_repository(repo.url, access(workspace, reporter))
            try:
                for listed in repository.datasets():
                    reporter.check()
                    if len(found) < MOST_FOUND and _matches(listed, words):
                        found.append({"repository": repo.name, **listed._asdict()})
                        reporter.amount(files=len(found))
            finally:
                repository.close()
        except Cancelled:
            raise
        except OdfError as error:
            reporter.line(f"{repo.name}: {error.message}", "warning")
            problems.append({"repository": repo.name, "message": error.message})
    if len(found) == MOST_FOUND:
        reporter.line(f"there may be more than these {MOST_FOUND:,}: look for something rarer", "warning")
    return {"datasets": found, "problems": problems}


def _matches(listed: Listed, words: list[str]) -> bool:
    text = " ".join((listed.name, listed.id or "", listed.description, *listed.keywords)).casefold()
    return all(word in text for word in words)


# --- What all of them need -------------------------------------------------------------------------


def access(workspace: Workspace, reporter: Reporter) -> Access:
    """What speaking with other places takes."""
    from odf_engine.sync.places import Access

    return Access(workspace.config, Credentials(workspace.odf), reporter)


@contextmanager
def _opened(workspace: Workspace, url: str, reporter: Reporter) -> Iterator[RemoteDataset]:
    from odf_engine.sync.places import open_remote

    remote = open_remote(url, access(workspace, reporter))
    try:
        yield remote
    finally:
        remote.close()


@contextmanager
def _divergence_noted(workspace: Workspace, entry: DatasetEntry, remote: RemoteDataset) -> Iterator[None]:
    """Remembers how far two histories are apart, when that is why nothing was done."""
    from odf_engine.sync.compare import Diverged

    try:
        yield
    except Diverged as error:
        if error.relation is not None:
            _note(workspace, entry, remote.url, error.relation, remote.head())
        raise


def _note(
    workspace: Workspace,
    entry: DatasetEntry,
    url: str,
    relation: Relation,
    their_head: Any,
    kind: Kind | None = None,
) -> Seen:
    seen = Seen(
        url=url,
        relation=relation.kind,
        ours=relation.ours,
        theirs=relation.theirs,
        common=_text(relation.common),
        our_head=_text(entry.dataset.head()),
        their_head=_text(their_head),
        at=str(Timestamp.now()),
    )
    Remotes(workspace.odf).note(entry.id, seen, kind)
    return seen


def _text(value: object) -> str | None:
    return None if value is None else str(value)
