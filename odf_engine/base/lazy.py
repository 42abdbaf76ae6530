"""Modules that are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any


class LazyModule:
    """A module that the first access to one of its members imports.

    Type checkers and the import contracts see an import under ``TYPE_CHECKING``::

        if TYPE_CHECKING:
            import asyncio
        else:
            asyncio = LazyModule("asyncio")

    Args:
        name: the full name of the module.
        stores_members: whether the members that were used become attributes, which loops read faster. Tests
            cannot replace them in the module afterwards.
    """

    def __init__(self, name: str, *, stores_members: bool = False) -> None:
        self._name = name
        self._stores_members = stores_members
        self._module: ModuleType | None = None

    def __getattr__(self, member: str) -> Any:
        if self._module is None:
            self._module = import_module(self._name)
        value = getattr(self._module, member)
        if self._stores_members:
            setattr(self, member, value)
        return value
