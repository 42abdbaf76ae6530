"""PyArrow, imported when an attribute is first used: it is slow to import, and few commands need it.

`pa`, `pc`, `pq` and `types` are ``pyarrow``, ``pyarrow.compute``, ``pyarrow.parquet`` and ``pyarrow.types``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import types

    pc: Any
else:

    class _LazyModule:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module(self._name), name)
            setattr(self, name, value)
            return value

    pa, pc, pq, types = (
        _LazyModule(name) for name in ("pyarrow", "pyarrow.compute", "pyarrow.parquet", "pyarrow.types")
    )

__all__ = ["pa", "pc", "pq", "types"]
