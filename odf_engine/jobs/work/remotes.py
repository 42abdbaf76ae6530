"""Work of the jobs in :mod:`odf_engine.jobs.remotes`."""

from __future__ import annotations

from msgspec.structs import asdict

from odf_engine.base.progress import Reporter
from odf_engine.errors import Cancelled, OdfError
from odf_engine.jobs.base import JobContext
from odf_engine.jobs.remotes import (
    MAX_FOUND,
    Compare,
    CompareResult,
    FoundDataset,
    RemoteProblem,
    RemoteRelation,
    RepositoryProblem,
    Search,
    SearchResult,
)
from odf_engine.sync.recorded_sync import compare_with_remote, remote_access
from odf_engine.sync.remotes.base import RepositoryEntry
from odf_engine.sync.remotes.transports import open_repository
from odf_engine.workspace.remotes import Remotes


def run_compare(request: Compare, context: JobContext, reporter: Reporter) -> CompareResult:
    """Run the job, see :class:`odf_engine.jobs.remotes.Compare`."""
    workspace = context.workspace
    entry = workspace.resolve(request.dataset)
    remotes = Remotes(workspace.odf)
    known = remotes.get(entry.id)
    seen: list[RemoteRelation] = []
    problems: list[RemoteProblem] = []
    for url in request.urls or dict.fromkeys([*known.pull, *known.push]):
        reporter.phase("compare")
        try:
            status = compare_with_remote(workspace, entry, url, reporter)
            seen.append(RemoteRelation(**asdict(status), label=remotes.display_name(status.url)))
        except Cancelled:
            raise
        except OdfError as error:
            reporter.log(f"{url}: {error.message}", "warning")
            problems.append(RemoteProblem(url, remotes.display_name(url), error.message))
    return CompareResult(str(entry.alias), seen, problems)


def run_search(request: Search, context: JobContext, reporter: Reporter) -> SearchResult:
    """Run the job, see :class:`odf_engine.jobs.remotes.Search`."""
    workspace = context.workspace
    remotes = Remotes(workspace.odf)
    repositories = [remotes.repository(name) for name in request.repositories] or remotes.repositories()
    words = request.text.casefold().split()
    matches: list[FoundDataset] = []
    problems: list[RepositoryProblem] = []
    reporter.phase("search")
    for repo in repositories:
        try:
            repository = open_repository(repo.url, remote_access(workspace, reporter))
            try:
                for listed in repository.datasets():
                    reporter.raise_if_cancelled()
                    if len(matches) < MAX_FOUND and _matches(listed, words):
                        matches.append(FoundDataset(repo.name, *listed))
                        reporter.set_amounts(files=len(matches))
            finally:
                repository.close()
        except Cancelled:
            raise
        except OdfError as error:
            reporter.log(f"{repo.name}: {error.message}", "warning")
            problems.append(RepositoryProblem(repo.name, error.message))
    if len(matches) == MAX_FOUND:
        text = f"result truncated at {MAX_FOUND:,} datasets: use a more specific search text"
        reporter.warn(text, "truncated-result", MAX_FOUND)
    return SearchResult(matches, problems)


def _matches(listed: RepositoryEntry, words: list[str]) -> bool:
    text = " ".join((listed.name, listed.id or "", listed.description, *listed.keywords)).casefold()
    return all(word in text for word in words)
