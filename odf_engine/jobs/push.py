"""Push: send the new blocks of a dataset to a remote."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from odf_engine.base.progress import Reporter, count_of, size_of
from odf_engine.errors import OdfError
from odf_engine.jobs.base import JobContext, JobRequest, JobResult, JobSummary, branch_option, text_or_none
from odf_engine.net.urls import normalize_url, short_url
from odf_engine.on_demand import block_search, recorded_sync, remotes

if TYPE_CHECKING:
    from odf_engine.workspace.workspace import Workspace


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


class PushedInput(msgspec.Struct, frozen=True):
    """An input that a remote must have before its output.

    Attributes:
        dataset: its id.
        url: the remote.
        head: hash of the newest block when the push was planned.
    """

    dataset: str
    url: str
    head: str


class Push(JobRequest[PushResult], frozen=True, tag="push"):
    """Push a dataset to a remote.

    Attributes:
        dataset: id of the dataset.
        url: the remote.
        force: replace a diverged history of the remote. The previous head stays there as a reference, if the
            remote supports it.
        branch: the branch to push to the remote's branch of the same name, or "" for the head.
        inputs: the inputs that earlier jobs push. The job fails if one of them was not pushed.
    """

    repeatable = True

    dataset: str
    url: str
    force: bool = False
    branch: str = ""
    inputs: list[PushedInput] = []

    @property
    def after(self) -> list[str]:
        """Ids of datasets. The job starts after earlier jobs of these datasets have ended."""
        return [source.dataset for source in self.inputs]

    @property
    def needs_spark(self) -> bool:
        return False

    @property
    def is_transfer(self) -> bool:
        return True

    def run(self, context: JobContext, reporter: Reporter) -> PushResult:
        workspace, url = context.workspace, normalize_url(self.url)
        entry = workspace.resolve(self.dataset).on_branch(self.branch)
        for source in self.inputs:
            _require_pushed(workspace, source, f"odf push {entry.alias} --to {url}")
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


def _require_pushed(workspace: Workspace, source: PushedInput, alone: str) -> None:
    """Raise OdfError if the push of an input has failed.

    Args:
        workspace: the workspace.
        source: the input.
        alone: the command that pushes the output without its inputs.
    """
    entry, known = workspace.resolve(source.dataset), remotes.Remotes(workspace.odf)
    status = known.get(entry.id).find_status(source.url)
    if status is not None and status.relation in ("equal", "behind"):
        pushed = status.our_head or ""
        numbers = block_search.block_numbers(entry.dataset, (source.head, pushed))
        # Blocks that were committed since the plan need not be there.
        if numbers.get(pushed, -1) >= numbers.get(source.head, 0):
            return
    place = known.display_name(source.url)
    raise OdfError(
        f"input {entry.alias} was not pushed to {place}",
        hint=f"push the input first: odf push {entry.alias} --to {place}, or push without inputs: {alone}",
    )
