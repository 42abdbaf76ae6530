"""Engine of Open Data Fabric: datasets as hash-linked chains of blocks; their ingestion, transformation,
exchange and verification.

The Python API::

    import odf_engine as odf

    workspace = odf.open("~/data")
    workspace["my.cases"].pull()
    table = workspace["my.cases"].scan(columns=["area", "cases"]).to_arrow()

``import odf_engine`` loads neither Spark nor Arrow: each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from odf_engine.api.dataset import Dataset, Provenance, PullResult, PushResult, VerifyResult
    from odf_engine.api.rows import Rows
    from odf_engine.api.workspace import Watch, Workspace, init, open
    from odf_engine.errors import OdfError

__all__ = [
    "Dataset",
    "OdfError",
    "Provenance",
    "PullResult",
    "PushResult",
    "Rows",
    "VerifyResult",
    "Watch",
    "Workspace",
    "init",
    "open",
]

_MODULES: Final = {
    "Dataset": "odf_engine.api.dataset",
    "OdfError": "odf_engine.errors",
    "Provenance": "odf_engine.api.dataset",
    "PullResult": "odf_engine.api.dataset",
    "PushResult": "odf_engine.api.dataset",
    "Rows": "odf_engine.api.rows",
    "VerifyResult": "odf_engine.api.dataset",
    "Watch": "odf_engine.api.workspace",
    "Workspace": "odf_engine.api.workspace",
    "init": "odf_engine.api.workspace",
    "open": "odf_engine.api.workspace",
}


def __getattr__(name: str) -> Any:
    """Import a name of the API when it is first used (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
