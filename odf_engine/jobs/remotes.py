"""Compare datasets with their remotes, and search repositories."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec.structs import asdict

from odf_engine.base.progress import Reporter, count_of
from odf_engine.errors import Cancelled, OdfError
from odf_engine.jobs.base import JobContext, JobRequest, JobSummary
from odf_engine.net.urls import short_url
from odf_engine.on_demand import recorded_sync, remotes, transports

if TYPE_CHECKING:
    from odf_engine.sync.remotes.base import RepositoryEntry

MAX_FOUND: Final = 10_000
"""Maximum number of datasets in a result: all of them are held in memory and stored in the job log."""


class RemoteRelation(msgspec.Struct, frozen=True):
    """A :class:`odf_engine.workspace.remotes.RemoteStatus` with the display name of the remote."""

    url: str = ""
    relation: Literal["", "equal", "ahead", "behind", "diverged", "new"] = ""
    ours: int = 0
    theirs: int = 0
    common: str | None = None
    our_head: str | None = None
    their_head: str | None = None
    at: str = ""
    label: str = ""

    @property
    def text(self) -> str:
        """The relation of the dataset to the remote, such as ``3 behind``."""
        match self.relation:
            case "equal":
                return "up to date"
            case "ahead":
                return f"{self.ours:,} ahead"
            case "behind":
                return f"{self.theirs:,} behind"
            case "diverged":
                return f"diverged: {self.ours:,} ahead, {self.theirs:,} behind"
            case "new":
                return "remote is empty"
            case _:
                return "changed locally" if self.at else "not compared yet"


class RemoteProblem(msgspec.Struct, frozen=True):
    """A remote that could not be compared, with its display name and the reason."""

    url: str = ""
    label: str = ""
    message: str = ""


class CompareResult(msgspec.Struct, frozen=True):
    """Result of a comparison: the remotes that were compared (``seen``), and those that were not."""

    name: str = ""
    seen: list[RemoteRelation] = []
    problems: list[RemoteProblem] = []


class Compare(JobRequest[CompareResult], frozen=True, tag="compare"):
    """Compare a dataset with ``urls``, by default all of its remotes, and store their state."""

    read_only = True
    repeatable = True
    is_silent = True

    dataset: str
    urls: list[str] = []

    @property
    def needs_spark(self) -> bool:
        return False

    def run(self, context: JobContext, reporter: Reporter) -> CompareResult:
        workspace = context.workspace
        entry = workspace.resolve(self.dataset)
        known_remotes = remotes.Remotes(workspace.odf)
        known = known_remotes.get(entry.id)
        seen: list[RemoteRelation] = []
        problems: list[RemoteProblem] = []
        for url in self.urls or dict.fromkeys([*known.pull, *known.push]):
            reporter.phase("compare")
            try:
                status = recorded_sync.compare_with_remote(workspace, entry, url, reporter)
                seen.append(RemoteRelation(**asdict(status), label=known_remotes.display_name(status.url)))
            except Cancelled:
                raise
            except OdfError as error:
                reporter.log(f"{url}: {error.message}", "warning")
                problems.append(RemoteProblem(url, known_remotes.display_name(url), error.message))
        return CompareResult(str(entry.alias), seen, problems)

    @classmethod
    def summarize(cls, result: CompareResult) -> JobSummary:
        texts = [f"{status.text} · {short_url(status.label or status.url)}" for status in result.seen]
        texts += [
            f"{short_url(problem.label or problem.url)}: {problem.message}" for problem in result.problems
        ]
        if not texts:
            return JobSummary("no remotes to compare", "muted")
        return JobSummary(", ".join(texts), "warn" if result.problems else "good")

    @classmethod
    def failure(cls, result: CompareResult) -> str:
        return next((f"{problem.label}: {problem.message}" for problem in result.problems), "")

    def command(self, name_of: Callable[[str], str]) -> list[str]:
        return ["repo", "status", name_of(self.dataset)]


class FoundDataset(msgspec.Struct, frozen=True):
    """A dataset of a repository; fields that the repository does not provide are None or empty."""

    repository: str = ""
    name: str = ""
    url: str = ""
    id: str | None = None
    kind: str | None = None
    head: str | None = None
    blocks: int | None = None
    records: int | None = None
    size: int | None = None
    description: str = ""
    keywords: tuple[str, ...] = ()


class RepositoryProblem(msgspec.Struct, frozen=True):
    """A repository that could not be searched, and the reason."""

    repository: str = ""
    message: str = ""


class SearchResult(msgspec.Struct, frozen=True):
    """Result of a search."""

    datasets: list[FoundDataset] = []
    problems: list[RepositoryProblem] = []


class Search(JobRequest[SearchResult], frozen=True, tag="search"):
    """Search datasets in ``repositories``, by default in all; ``dataset`` is empty."""

    read_only = True
    has_screen = True
    is_silent = True

    text: str
    repositories: list[str] = []
    dataset: str = ""

    @property
    def needs_spark(self) -> bool:
        return False

    def run(self, context: JobContext, reporter: Reporter) -> SearchResult:
        workspace = context.workspace
        known = remotes.Remotes(workspace.odf)
        repositories = [known.repository(name) for name in self.repositories] or known.repositories()
        words = self.text.casefold().split()
        matches: list[FoundDataset] = []
        problems: list[RepositoryProblem] = []
        reporter.phase("search")
        for repo in repositories:
            try:
                access = recorded_sync.remote_access(workspace, reporter)
                repository = transports.open_repository(repo.url, access)
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

    @classmethod
    def summarize(cls, result: SearchResult) -> JobSummary:
        datasets = count_of(len(result.datasets), "dataset")
        if not result.problems:
            return JobSummary(datasets)
        failed = ", ".join(problem.repository for problem in result.problems)
        return JobSummary(f"{datasets}; failed: {failed}", "warn")


def _matches(listed: RepositoryEntry, words: list[str]) -> bool:
    text = " ".join((listed.name, listed.id or "", listed.description, *listed.keywords)).casefold()
    return all(word in text for word in words)
