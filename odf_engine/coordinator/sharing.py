"""Jobs that exchange datasets with other places, and remember how they stand to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from odf_engine.coordinator.protocol import Compare, Pull, Push, Search
from odf_engine.errors import Cancelled, OdfError, UsageError
from odf_engine.identity.refs import DatasetAlias
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.workspace.credentials import Credentials
from odf_engine.workspace.remotes import Remotes, Seen
from odf_engine.workspace.workspace import DatasetEntry, Workspace

if TYPE_CHECKING:
    from odf_engine.coordinator.operations import Context
    from odf_engine.sync.compare import Relation
    from odf_engine.sync.places import Access


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


def pull(
    workspace: Workspace, entry: DatasetEntry | None, url: str, request: Pull, reporter: Reporter
) -> Any:
    """Takes over what is new at a URL, into ``entry`` or into a dataset that is not here yet.

    Returns: the dataset's entry in the ``--json`` output of ``odf pull``.
    """
    from odf_engine.sync.places import open_remote
    from odf_engine.sync.pull import pull_into, pull_new

    parallel = workspace.config.sync.parallel
    remote = open_remote(url, access(workspace, reporter))
    try:
        if entry is None:
            assert request.alias is not None  # the command gives one
            alias = DatasetAlias.parse(request.alias)
            entry, pulled = pull_new(workspace, alias, remote, reporter, parallel=parallel)
        else:
            pulled = pull_into(entry, remote, reporter, force=request.force, parallel=parallel)
        _note(workspace, entry, url, pulled.relation, pulled.their_head, "pull")
    finally:
        remote.close()
    return {
        "name": str(entry.alias),
        "status": pulled.status,
        "old_head": _text(pulled.old_head),
        "new_head": _text(pulled.new_head),
        "blocks": pulled.blocks,
        "records": pulled.records,
        "error": None,
        "url": url,
        "ahead": pulled.relation.ours,
    }


def push(request: Push, context: Context, reporter: Reporter) -> dict[str, Any]:
    """Brings another place up to date; the result is described with the request."""
    from odf_engine.sync.places import open_remote
    from odf_engine.sync.push import push as push_to

    workspace = Workspace.find(explicit=context.host.folder)
    entry = workspace.resolve(request.dataset)
    remote = open_remote(request.url, access(workspace, reporter))
    try:
        parallel = workspace.config.sync.parallel
        pushed = push_to(entry, remote, reporter, force=request.force, parallel=parallel)
        _note(workspace, entry, request.url, pushed.relation, pushed.new_head, "push")
    finally:
        remote.close()
    return {
        "name": str(entry.alias),
        "url": request.url,
        "status": pushed.status,
        "old_head": _text(pushed.old_head),
        "new_head": _text(pushed.new_head),
        "blocks": pushed.blocks,
        "objects": pushed.objects,
        "bytes": pushed.bytes,
    }


def compare(request: Compare, context: Context, reporter: Reporter) -> dict[str, Any]:
    """Looks how a dataset stands to its remotes; the result is described with the request."""
    from odf_engine.sync import compare as comparing
    from odf_engine.sync.places import open_remote

    workspace = Workspace.find(explicit=context.host.folder)
    entry = workspace.resolve(request.dataset)
    remotes = Remotes(workspace.odf)
    known = remotes.of(entry.id)
    seen: list[Seen] = []
    problems: list[dict[str, str]] = []
    for url in request.urls or dict.fromkeys([*known.pull, *known.push]):
        remote = open_remote(url, access(workspace, reporter))
        try:
            relation = comparing.compare(entry.dataset, remote, reporter)
            _note(workspace, entry, url, relation, remote.head())
            seen.extend(filter(None, [remotes.of(entry.id).seen_at(url)]))
        except Cancelled:
            raise
        except OdfError as error:
            reporter.line(f"{url}: {error.message}", "warning")
            problems.append({"url": url, "message": error.message})
        finally:
            remote.close()
    return {"name": str(entry.alias), "seen": to_builtins(seen), "problems": problems}


def search(request: Search, context: Context, reporter: Reporter) -> dict[str, Any]:
    """Looks for datasets in repositories; the result is described with the request."""
    from odf_engine.sync.places import open_repository

    workspace = Workspace.find(explicit=context.host.folder)
    remotes = Remotes(workspace.odf)
    named = [remotes.repository(name) for name in request.repositories] or remotes.repositories()
    wanted = request.text.casefold()
    found: list[dict[str, Any]] = []
    problems: list[dict[str, str]] = []
    for repo in named:
        reporter.check()
        repository = open_repository(repo.url, access(workspace, reporter))
        try:
            for listed in repository.datasets():
                reporter.check()
                text = " ".join((listed.name, listed.id or "", listed.description, *listed.keywords))
                if wanted in text.casefold():
                    found.append({"repository": repo.name, **listed._asdict()})
        except Cancelled:
            raise
        except OdfError as error:
            reporter.line(f"{repo.name}: {error.message}", "warning")
            problems.append({"repository": repo.name, "message": error.message})
        finally:
            repository.close()
    return {"datasets": found, "problems": problems}


def access(workspace: Workspace, reporter: Reporter) -> Access:
    """What speaking with other places takes."""
    from odf_engine.sync.places import Access

    return Access(workspace.config, Credentials(workspace.odf), reporter)


def _note(
    workspace: Workspace,
    entry: DatasetEntry,
    url: str,
    relation: Relation,
    their_head: Any,
    kind: Any = None,
) -> None:
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


def _text(value: object) -> str | None:
    return None if value is None else str(value)
