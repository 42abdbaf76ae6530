"""Kinds of jobs, one module per kind with its request, its result and its work.

A new kind of job is a module here: :data:`JOB_KINDS` has the requests of all modules. Since clients import
them too, a job uses the rest of the engine through :mod:`odf_engine.on_demand`. The package must not import
`worker`.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final

from odf_engine.jobs.base import JobRequest


def _requests(base: type[JobRequest[Any]]) -> list[type[JobRequest[Any]]]:
    """Return the subclasses of a request that are kinds of jobs."""
    subclasses = base.__subclasses__()
    kinds = [request for request in subclasses if request.__struct_config__.tag is not None]
    return [*kinds, *(kind for request in subclasses for kind in _requests(request))]


for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)

JOB_KINDS: Final = {request.kind(): request for request in _requests(JobRequest)}
"""The requests by kind of job."""
