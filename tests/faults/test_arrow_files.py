"""Damaged Arrow IPC crashes the Arrow library: it is read in a process of its own."""

from __future__ import annotations

import io
import struct
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from odf_engine.data.digest import digest_file, logical_hash
from odf_engine.errors import BadData, InvalidSchema
from tests.faults.jail import run_jailed

_FAR = 1 << 30


def _replaced(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    return data.replace(old, new)


def _numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


_TEXTS = pa.array(["aaaaa", "bbbbbbb"])
_LISTS = pa.array([[1] * 5, [2] * 7], pa.list_(pa.int8()))
_INDEXED = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1, 0], pa.int32()), pa.array(["a", "b"]))
_VIEWS = pa.array(["aaaaaaa", None], pa.string_view())
_VIEW = _numbers(7) + b"a" * 7 + bytes(5)
_RUNS = pc.run_end_encode(pa.array(["a"] * 5 + ["b"] * 7))
_DAMAGES = {
    "offsets of texts": (_TEXTS, _numbers(0, 5, 12), _numbers(0, _FAR, 2 * _FAR - 1)),
    "negative offsets": (_TEXTS, _numbers(0, 5, 12), _numbers(-_FAR, 5, 12)),
    "offsets of lists": (_LISTS, _numbers(0, 5, 12), _numbers(0, _FAR, 2 * _FAR - 1)),
    "indices": (_INDEXED, _numbers(0, 1, 1, 0), _numbers(0, _FAR, -_FAR, 0)),
    "ends of runs": (_RUNS, _numbers(5, 12), _numbers(-_FAR, _FAR)),
    # Validation passes over the views of nulls, and casts read them.
    "views": (_VIEWS, _VIEW + bytes(16), _VIEW + _numbers(-(1 << 24), 0, 0, 0)),
}  # fmt: skip


def _ipc(array: pa.Array, form: str) -> bytes:
    sink = io.BytesIO()
    batch = pa.record_batch([array], ["x"])
    with (pa.ipc.new_file if form == "file" else pa.ipc.new_stream)(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


_FORMS = ("file", "stream") * 3


@pytest.mark.parametrize(("damage", "form"), list(zip(_DAMAGES, _FORMS, strict=True)))
@pytest.mark.complete(after=1)
def test_damaged_file_does_not_crash_the_process(tmp_path: Path, damage: str, form: str) -> None:
    array, old, new = _DAMAGES[damage]
    (tmp_path / "data.arrow").write_bytes(_replaced(_ipc(array, form), old, new))
    done = run_jailed([sys.executable, "-m", "odf_tui", "digest", "data.arrow"], tmp_path)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert done.stderr.startswith("error: data.arrow: ") and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("array", "form"),
    list(zip([_TEXTS, _LISTS, _INDEXED, _VIEWS, _RUNS], _FORMS, strict=False)),
    ids=lambda value: str(getattr(value, "type", value)),
)
@pytest.mark.complete(after=1)
def test_the_process_finds_the_same_hash(tmp_path: Path, array: pa.Array, form: str) -> None:
    batch = pa.record_batch([array], ["x"])
    (tmp_path / form).write_bytes(_ipc(array, form))
    found = digest_file(tmp_path / form)
    assert (found.rows, found.logical_hash) == (len(array), logical_hash([batch], batch.schema))


def test_a_crash_is_reported(tmp_path: Path) -> None:
    array, old, new = _DAMAGES["views"]
    (tmp_path / "data.arrow").write_bytes(_replaced(_ipc(array, "file"), old, new))
    with pytest.raises(BadData, match=r"data\.arrow: damaged file: the Arrow reader crashed \(signal"):
        digest_file(tmp_path / "data.arrow")


@pytest.mark.complete
def test_errors_of_the_reader_process_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "duration").write_bytes(_ipc(pa.array([1], pa.duration("s")), "file"))
    with pytest.raises(InvalidSchema, match="logical hash does not support") as caught:
        digest_file(tmp_path / "duration")
    assert caught.value.hint is not None and "BIGINT" in caught.value.hint
    text = _ipc(_TEXTS, "stream").replace(b"x\0", b"\xff\0")
    (tmp_path / "name").write_bytes(text)
    with pytest.raises(BadData, match="cannot be read as Parquet, Arrow IPC file or Arrow IPC stream"):
        digest_file(tmp_path / "name")
