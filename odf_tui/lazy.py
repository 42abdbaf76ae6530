"""Modules that are imported when they are first used. The first paint needs none of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["LazyModule", "pa", "pc", "pt"]


class LazyModule:
    """A module that the first access to one of its members imports."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, member: str) -> Any:
        return getattr(import_module(self._name), member)


if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.types as pt

    pc: Any = None
else:
    pa, pt = LazyModule("pyarrow"), LazyModule("pyarrow.types")
    pc = LazyModule("pyarrow.compute")
