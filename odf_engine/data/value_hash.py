"""Numbers that tell values apart: 64 bits a value, the same on every machine and at every time."""

from __future__ import annotations

from typing import Final
from zlib import crc32

import pyarrow as pa
from pyarrow import types

from odf_engine.data.kernels import pc
from odf_engine.data.value_bytes import decoded

_NULL: Final = 0x9E3779B97F4A7C15
_STEPS: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def value_hashes(array: pa.Array) -> pa.Array:
    """A hash of each value as ``uint64``, evenly spread; equal values of a type have equal ones.

    Good for estimates and for sharing out work. Different texts may have the same one.

    Raises:
        pa.ArrowNotImplementedError: values that have no text.
    """
    array = decoded(array)
    kind = array.type
    if types.is_floating(kind):
        array = pc.add(array.cast(pa.float64()), 0.0).view(pa.uint64())  # minus zero is zero
    elif types.is_boolean(kind) or types.is_integer(kind):
        array = array.cast(pa.int64() if not types.is_unsigned_integer(kind) else pa.uint64())
        array = array.view(pa.uint64())
    elif types.is_primitive(kind) and kind.bit_width in (32, 64):
        array = array.view(pa.int64() if kind.bit_width == 64 else pa.int32()).cast(pa.int64())
        array = array.view(pa.uint64())
    else:
        values = array if _is_bytes(kind) else array.cast(pa.string())
        raw = values.cast(pa.large_binary()).to_pylist()
        array = pa.array([None if value is None else crc32(value) for value in raw], pa.uint64())
    return _mixed(pc.fill_null(array, pa.scalar(_NULL, pa.uint64())))


def _is_bytes(kind: pa.DataType) -> bool:
    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)


def _mixed(array: pa.Array) -> pa.Array:
    """Every bit of the value in every bit of the result; different numbers stay different."""
    array = pc.add(array, pa.scalar(_NULL, pa.uint64()))
    for shift, factor in _STEPS:
        array = _shifted(array, shift)
        array = pc.multiply(array, pa.scalar(factor, pa.uint64()))
    return _shifted(array, 31)


def _shifted(array: pa.Array, by: int) -> pa.Array:
    return pc.bit_wise_xor(array, pc.shift_right(array, pa.scalar(by, pa.uint64())))
