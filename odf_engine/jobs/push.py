"""Push: send the new blocks of a dataset to a remote."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET, UnsetType

from odf_engine.base.progress import Reporter, count_of, size_of
from odf_engine.jobs.base import JobContext, JobRequest, JobResult, JobSummary, branch_option, text_or_none
from odf_engine.net.urls import normalize_url, short_url
from odf_engine.on_demand import recorded_sync, remotes


class PushResult(JobResult, frozen=True):
    """Result of a push: an entry of ``odf push --json``.

    Attributes:
        name: alias of the dataset.
        url, label: the remote and its display name.
        status: ``updated`` or ``up-to-date``; ``failed`` only in the output of the command line.
        old_head, new_head: the remote's head before and after the job.
        blocks, objects, bytes: number of blocks, other files and bytes sent.
        branch: the branch that was pushed; absent for the head.
    """

    name: str = ""
    url: str = ""
    label: str = ""
    status: str = ""
    old_head: str | None = None
    new_head: str | None = None
    blocks: int = 0
    objects: int = 0
    bytes: int = 0
    branch: str | UnsetType = UNSET


class Push(JobRequest[PushResult], frozen=True, tag="push"):
    """Push a dataset to a remote.

    Attributes:
        dataset: id of the dataset.
        url: the remote.
        force: replace a diverged history of the remote. The previous head stays there as a reference, if the
            remote supports it.
        branch: the branch to push to the remote's branch of the same name, or "" for the head.
    """

    repeatable = True

    dataset: str
    url: str
    force: bool = False
    branch: str = ""

    @property
    def needs_spark(self) -> bool:
        return False

    @property
    def is_transfer(self) -> bool:
        return True

    def run(self, context: JobContext, reporter: Reporter) -> PushResult:
        workspace, url = context.workspace, normalize_url(self.url)
        entry = workspace.resolve(self.dataset).on_branch(self.branch)
        pushed = recorded_sync.push_to_remote(workspace, entry, url, reporter, force=self.force)
        return PushResult(
            name=str(entry.alias),
            url=url,
            label=remotes.Remotes(workspace.odf).display_name(url),
            status=pushed.status,
            old_head=text_or_none(pushed.old_head),
            new_head=text_or_none(pushed.new_head),
            blocks=pushed.blocks,
            objects=pushed.objects,
            bytes=pushed.bytes,
            branch=self.branch or UNSET,
        )

    @classmethod
    def summarize(cls, result: PushResult) -> JobSummary:
        remote = short_url(result.label or result.url)
        if result.status != "updated":
            return JobSummary(f"{remote} is up to date", "muted")
        return JobSummary(f"pushed {count_of(result.blocks, 'block')}, {size_of(result.bytes)} to {remote}")

    def command(self, name_of: Callable[[str], str]) -> list[str]:
        options = (["--force"] if self.force else []) + branch_option(self.branch)
        return ["push", name_of(self.dataset), "--to", self.url, *options]
