"""The façade: what users, scripts, commands and the workstation do with workspaces, datasets and rows.

It also exports the types of the engine that users of the façade need, such as jobs, requests and times. The
stub ``__init__.pyi`` lists them. Each is imported when it is first used: importing this package loads neither
PySpark nor PyArrow. It must not import the user interface.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

_EXPORT: Final = re.compile(r"^from (\S+) import (\w+) as \2$", re.M)


@cache
def _modules() -> dict[str, str]:
    """Return the module of each export, from the stub."""
    stub = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    return {name: module for module, name in _EXPORT.findall(stub)}


def __getattr__(name: str) -> Any:
    """Import an export when it is used (PEP 562)."""
    if name not in _modules():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_modules()[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_modules()})
