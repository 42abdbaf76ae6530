"""Services: what a worker does besides its jobs. The worker knows only this interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from odf_engine.worker.protocol import Committed, Job, JobChanged, Request

Submit = Callable[[Request, str, Mapping[str, str]], Job]
"""Creates a job from a request, the name of its target, and environment variables."""

SERVICES: Final = {
    "flows": "odf_engine.automation.flows.runner:FlowRunner",
    "alerts": "odf_engine.automation.alerts.runner:AlertRunner",
}
"""The services by the folder in ``.odf`` that has their documents. A service is imported by its name when the
folder exists: its package is above this one, and most workspaces do not need it.
"""


class Service(ABC):
    """A service of a worker. All methods run in the event loop of the worker.

    Args:
        odf: the ``.odf`` folder of the workspace.
        submit: creates a job.
    """

    def __init__(self, odf: Path, submit: Submit) -> None:
        self._odf, self._submit = odf, submit

    @property
    @abstractmethod
    def active(self) -> bool:
        """Whether the worker has to run, even without jobs and clients."""

    @abstractmethod
    async def serve(self) -> None:
        """Do the work, until this task is cancelled."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop what :meth:`serve` has started, and close files."""

    @abstractmethod
    def notify(self, event: JobChanged | Committed) -> None:
        """Report the new state of a job, or its commit."""
