"""PyArrow, imported when an attribute is first used: it is slow to import, and few commands need it.

`pa`, `pc`, `pq` and `types` are ``pyarrow``, ``pyarrow.compute``, ``pyarrow.parquet`` and ``pyarrow.types``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odf_engine.base.lazy import LazyModule

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import types

    pc: Any
else:
    pa = LazyModule("pyarrow", stores_members=True)
    pc = LazyModule("pyarrow.compute", stores_members=True)
    pq = LazyModule("pyarrow.parquet", stores_members=True)
    types = LazyModule("pyarrow.types", stores_members=True)

__all__ = ["pa", "pc", "pq", "types"]
