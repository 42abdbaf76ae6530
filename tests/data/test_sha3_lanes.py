"""Hashes of several messages at the same time are those of OpenSSL."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.data import digest, sha3_lanes
from odf_engine.data.digest import LogicalHasher, SerialExecutors, logical_hash
from odf_engine.data.sha3_lanes import Kernel, Sha3Stream, compile_kernel, find_kernel

pytest.importorskip("llvmlite")


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return compile_kernel()


messages = st.lists(st.lists(st.binary(max_size=500), max_size=5), min_size=1, max_size=6)


@settings(deadline=None)
@given(parts=messages, starts=st.lists(st.binary(max_size=300), min_size=6, max_size=6))
def test_hashes_are_those_of_openssl(
    kernel: Kernel, parts: Sequence[Sequence[bytes]], starts: Sequence[bytes]
) -> None:
    streams = [Sha3Stream(kernel, start) for start, _ in zip(starts, parts, strict=False)]
    kernel.update(streams, [message[:2] for message in parts])
    kernel.update(streams[::-1], [message[2:] for message in parts][::-1])
    expected = [
        hashlib.sha3_256(start + b"".join(message)).digest()
        for start, message in zip(starts, parts, strict=False)
    ]
    assert [stream.digest() for stream in streams] == expected


def test_arrow_buffers_and_reused_buffers_are_hashed(kernel: Kernel) -> None:
    data = os.urandom(100_000)
    reused = bytearray(1000)

    def pieces():
        for start in range(0, len(data), 1000):
            reused[:] = data[start : start + 1000]
            yield memoryview(reused)

    streams = [Sha3Stream(kernel) for _ in range(3)]
    kernel.update(streams, [[pa.py_buffer(data).slice(3)], pieces(), [data[:135], data[135:]]])
    expected = [hashlib.sha3_256(part).digest() for part in (data[3:], data, data)]
    assert [stream.digest() for stream in streams] == expected


def test_messages_of_several_threads_are_hashed_together(kernel: Kernel) -> None:
    messages = [[os.urandom(size)] * repeats for size in (1, 136, 5000, 300_000) for repeats in (0, 1, 5, 30)]
    with ThreadPoolExecutor(7) as threads:
        hashes = list(threads.map(kernel.group.digest, messages))
    assert hashes == [hashlib.sha3_256(b"".join(message)).digest() for message in messages]


def test_error_of_a_message_reaches_only_its_thread(kernel: Kernel) -> None:
    def damaged() -> Iterator[bytes]:
        yield bytes(100_000)
        raise OSError("damaged")

    messages = [damaged() if number % 5 == 2 else [bytes(100_000)] * 9 for number in range(40)]
    with ThreadPoolExecutor(6) as threads:
        results = [threads.submit(kernel.group.digest, message) for message in messages]
    for number, result in enumerate(results):
        if number % 5 == 2:
            assert isinstance(result.exception(), OSError)
        else:
            assert result.result() == hashlib.sha3_256(bytes(900_000)).digest()


columns = st.sampled_from([
    pa.int64(), pa.uint8(), pa.string(), pa.bool_(), pa.decimal128(20, 2), pa.list_(pa.int32()),
    pa.timestamp("ms", "UTC"), pa.struct([("x", pa.int16()), ("y", pa.string())]),
])  # fmt: skip


@settings(deadline=None)
@given(kinds=st.lists(columns, min_size=1, max_size=9), data=st.data(), cut=st.integers(0, 30))
def test_logical_hash_does_not_depend_on_lanes(
    kernel: Kernel, kinds: Sequence[pa.DataType], data: st.DataObject, cut: int
) -> None:
    rows = data.draw(st.integers(0, 30))
    values = [
        pa.array(data.draw(st.lists(_values(kind), min_size=rows, max_size=rows)), kind) for kind in kinds
    ]
    table = pa.table(values, names=[f"c{number}" for number in range(len(kinds))])
    batches = [*table.slice(0, cut).to_batches(), *table.slice(cut).to_batches()]
    alone = logical_hash(batches, table.schema)
    with pytest.MonkeyPatch.context() as patch, SerialExecutors(2) as executors:
        patch.setattr(digest, "find_kernel", lambda size=0: kernel)
        hasher = LogicalHasher(table.schema, executors)
        for batch in batches:
            hasher.update(batch)
        assert hasher.finish() == alone


def _values(kind: pa.DataType) -> st.SearchStrategy[object]:
    if pa.types.is_struct(kind):
        value = st.fixed_dictionaries({field.name: _values(field.type) for field in kind})
    elif pa.types.is_list(kind):
        value = st.lists(_values(kind.value_type), max_size=4)
    elif pa.types.is_string(kind):
        value = st.text(max_size=40)
    elif pa.types.is_boolean(kind):
        value = st.booleans()
    else:
        value = st.integers(0, 100)
    return st.none() | value


def test_code_is_compiled_when_there_is_much_to_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_builder": None, "_kernel": None, "_bytes": 0}.items():
        monkeypatch.setattr(sha3_lanes, name, value)
    assert find_kernel(1000) is None
    assert sha3_lanes._builder is None
    find_kernel(1 << 30)
    assert sha3_lanes._builder is not None
    sha3_lanes._builder.join()


@pytest.mark.parametrize("fault", ["wrong", "slow", "missing"])
def test_code_that_is_wrong_or_slow_is_not_used(
    kernel: Kernel, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"_builder": None, "_kernel": None, "_bytes": 0}.items():
        monkeypatch.setattr(sha3_lanes, name, value)
    if fault == "wrong":
        monkeypatch.setattr(sha3_lanes, "_ROTATIONS", ((0, 0, 0, 0, 0), *sha3_lanes._ROTATIONS[1:]))
    elif fault == "slow":
        monkeypatch.setattr(sha3_lanes, "_MIN_GAIN", 1000)
    else:
        monkeypatch.setitem(__import__("sys").modules, "llvmlite", None)
    assert find_kernel(wait=True) is None
