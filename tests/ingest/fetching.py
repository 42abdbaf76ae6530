"""Fetching one URL, for the tests of protocols."""

from __future__ import annotations

import tempfile
from email.utils import format_datetime
from pathlib import Path

from odf_engine.base.config import FetchConfig
from odf_engine.ingest.fetch.fetch_step import fetch
from odf_engine.ingest.fetch.model import FetchContext, Payload
from odf_engine.metadata.model import FetchStep, SourceState
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.workspace import Workspace
from tests.ingest.recorder import Recorder

MODIFIED = Timestamp.parse("2024-03-01T12:00:00Z")
HTTP_DATE = format_datetime(MODIFIED.to_datetime(), usegmt=True)


def get(
    workspace: Workspace,
    step: FetchStep,
    reporter: Recorder,
    state: SourceState | None = None,
    *,
    untrusted: bool = False,
    environment: dict[str, str] | None = None,
    shares: bool = False,
    **config: float | str,
) -> Payload | None:
    """Fetches in a job's folder of its own; the dataset may read the variable TOKEN."""
    job = Path(tempfile.mkdtemp(dir=workspace.odf))
    config.setdefault("longest_pause_seconds", 0.05)
    context = FetchContext(
        resolve=workspace.resolve_path,
        root=workspace.folder,
        dataset=None,  # type: ignore[arg-type] - not looked at for a URL
        state=state,
        job=job,
        config=FetchConfig(**config),  # type: ignore[arg-type]
        reporter=reporter,
        environment=environment or {},
        allowed=["TOKEN"],
        name="my.data",
        untrusted=untrusted,
        downloads=workspace.odf / "cache" / "downloads",
        shares_download=shares,
    )
    return next(fetch(step, context), None)
