"""Work of the jobs in :mod:`odf_engine.jobs.push`."""

from __future__ import annotations

from msgspec import UNSET

from odf_engine.base.progress import Reporter
from odf_engine.jobs.base import JobContext, text_or_none
from odf_engine.jobs.push import Push, PushResult
from odf_engine.net.urls import normalize_url
from odf_engine.sync.recorded_sync import push_to_remote
from odf_engine.workspace.remotes import Remotes


def run_push(request: Push, context: JobContext, reporter: Reporter) -> PushResult:
    """Run the job, see :class:`odf_engine.jobs.push.Push`."""
    workspace, url = context.workspace, normalize_url(request.url)
    entry = workspace.resolve(request.dataset).on_branch(request.branch)
    pushed = push_to_remote(workspace, entry, url, reporter, force=request.force)
    return PushResult(
        name=str(entry.alias),
        url=url,
        label=Remotes(workspace.odf).display_name(url),
        status=pushed.status,
        old_head=text_or_none(pushed.old_head),
        new_head=text_or_none(pushed.new_head),
        blocks=pushed.blocks,
        objects=pushed.objects,
        bytes=pushed.bytes,
        branch=request.branch or UNSET,
    )
