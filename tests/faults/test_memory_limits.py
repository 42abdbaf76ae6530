"""Small files of other authors that would need gigabytes: every reader has a limit."""

from __future__ import annotations

import struct
import sys
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.digest import physical_hash
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.engines.stateful import checkpoint
from odf_engine.errors import BadData
from odf_engine.identity.multiformats import ARROW0_SHA3_256, Multihash
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    AddData,
    DatasetKind,
    DataSlice,
    OffsetInterval,
    SetDataSchema,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.workspace import Workspace
from tests.data import crafted_parquet as crafted
from tests.faults.jail import run_jailed

_LIMIT_MB = 800
_CHILD = """
import resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, 6 << 30))  # keeps a failing test from using all memory
done = subprocess.run(sys.argv[1:], check=False)
print("peak", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)
sys.exit(done.returncode)
"""


def _run(scratch: Path, *command: str | Path) -> tuple[int, int, str]:
    """Run a command in the jail; its exit code, its peak memory in MB, and what it printed."""
    done = run_jailed([sys.executable, "-c", _CHILD, *command], scratch, env={"COLUMNS": "80"})
    text, _, peak = done.stdout.rpartition("peak ")
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, int(peak), text + done.stderr


_ROWS = 100_000_000
_TEXTS = 10_000
_NUMBER = struct.pack("<q", 7)
_TEXT = b"x" * (1 << 16)


def _numbers() -> tuple[int, bytes]:
    columns = [crafted.repeated(name, crafted.INT64, _NUMBER, _ROWS) for name in ("offset", "x")]
    return _ROWS, crafted.parquet(_ROWS, *columns)


def _texts() -> tuple[int, bytes]:
    text = crafted.repeated("x", crafted.BYTE_ARRAY, crafted.texts(_TEXT), _TEXTS)
    return _TEXTS, crafted.parquet(_TEXTS, text)


def _prefixes() -> tuple[int, bytes]:
    return _TEXTS, crafted.parquet(_TEXTS, crafted.shared_prefix("x", _TEXT, _TEXTS))


def _list() -> tuple[int, bytes]:
    return 1, crafted.parquet(1, crafted.one_list("x", _ROWS))


def _page() -> tuple[int, bytes]:
    packed, size = crafted.zeros(3 << 29), 3 << 29
    page = crafted.page(10, crafted.PLAIN, packed=packed, size=size)
    return 10, crafted.parquet(10, crafted.Column("x", crafted.INT64, 10, page))


@pytest.mark.parametrize("make", [_texts, _list, _page])
@pytest.mark.complete
def test_the_digest_of_a_small_file_needs_little_memory(
    tmp_path: Path, make: Callable[[], tuple[int, bytes]]
) -> None:
    _, data = make()
    (tmp_path / "bomb.parquet").write_bytes(data)
    code, peak, text = _run(tmp_path, sys.executable, "-m", "odf_tui", "digest", "bomb.parquet")
    assert peak < _LIMIT_MB, f"{len(data):,} bytes took {peak:,} MB"
    assert ("the limit is" in text) == (code != 0), text


@pytest.mark.parametrize("make", [_numbers, _texts, _prefixes, _list, _page])
@pytest.mark.complete(after=1)
def test_the_last_rows_of_a_small_slice_need_little_memory(
    tmp_path: Path, make: Callable[[], tuple[int, bytes]]
) -> None:
    rows, data = make()
    workspace = Workspace.init(tmp_path / "ws")
    dataset = workspace.create_dataset(DatasetAlias.parse("bomb"), DatasetKind.Root).dataset
    staged = dataset.staging_path("data")
    staged.write_bytes(data)
    kind = pa.list_(pa.int64()) if make is _list else pa.string() if rows == _TEXTS else pa.int64()
    schema = slice_schema(pa.schema([("x", kind)]), DEFAULT_VOCABULARY)
    found, size = physical_hash(staged)
    declared = DataSlice(Multihash(ARROW0_SHA3_256, bytes(32)), found, OffsetInterval(0, rows - 1), size)
    events = [SetDataSchema(encode_schema(schema)), AddData(new_data=declared)]
    for event, path in zip(events, (None, staged), strict=True):
        dataset.commit([event], system_time=Timestamp.now(), expected_head=dataset.head(), data=path)
    command = (sys.executable, "-m", "odf_tui", "tail", "bomb", "--json", "-w", tmp_path / "ws")
    code, peak, text = _run(tmp_path, *command)
    assert peak < _LIMIT_MB, f"{len(data):,} bytes took {peak:,} MB"
    assert ("the limit is" in text) == (code != 0), text[:2000]


_READ = """
import resource, sys
from pathlib import Path
from odf_engine.errors import BadData
from odf_engine.engines.stateful.checkpoint import read_checkpoint_metadata, read_checkpoint
for path in map(Path, sys.argv[1:]):
    for read in (read_checkpoint_metadata, lambda path: read_checkpoint(path, Path(f"{path}-unpacked"))):
        try:
            read(path)
        except BadData as error:
            print(f"{path.name}: {error}")
    print(f"{path.name}: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MB")
"""


class _Zeros:
    """So many zeros, as a file to read from."""

    def __init__(self, size: int) -> None:
        self._left = size

    def read(self, size: int) -> bytes:
        size = min(size, self._left)
        self._left -= size
        return bytes(size)


def _write_checkpoint(path: Path, *entries: tuple[bytes, str, int]) -> None:
    """Write the description of a checkpoint and entries of zeros: their kinds, names and sizes."""
    about = checkpoint.CheckpointMetadata(
        format=2, engine="4.3.0+odf6", query="q", state="s", watermarks={}, watermark=None
    )
    text = msgspec.json.encode(about)
    with (
        pa.output_stream(str(path), compression="zstd") as output,
        tarfile.open(fileobj=output, mode="w|") as tar,  # type: ignore[arg-type]
    ):
        for kind, name, size in entries:
            entry = tarfile.TarInfo(name)
            entry.type = kind
            if name == "checkpoint.json" and not size:
                entry.size = len(text)
                tar.addfile(entry, BytesIO(text))
            else:
                entry.size = size
                # Not by addfile, which knows what some kinds of entries may have.
                tar.fileobj.write(entry.tobuf(tarfile.USTAR_FORMAT))  # type: ignore[union-attr]
                tarfile.copyfileobj(_Zeros(size), tar.fileobj, size)  # type: ignore[arg-type]
                tar.fileobj.write(bytes(-size % 512))  # type: ignore[union-attr]


_ABOUT = (tarfile.REGTYPE, "checkpoint.json", 0)
_LARGE = 2 << 30


_CHECKPOINTS = {
    "description": ([(tarfile.REGTYPE, "checkpoint.json", _LARGE)], "not a checkpoint of this engine"),
    "attributes": ([(tarfile.XHDTYPE, "attributes", _LARGE), _ABOUT], "the attributes of a file have"),
    "long name": ([(tarfile.GNUTYPE_LONGNAME, "name", _LARGE), _ABOUT], "'name' is not a file"),
    "for all": ([(tarfile.XGLTYPE, "attributes", 512), _ABOUT], "'attributes' is not a file"),
    "state": ([_ABOUT, (tarfile.REGTYPE, "state/0", _LARGE)], "unpacks to more than"),
    "link": ([_ABOUT, (tarfile.SYMTYPE, "link", 0)], "'link' is not a file"),
    "name": ([_ABOUT, (tarfile.REGTYPE, "caf\udce9", 0)], ""),
    "other name": ([(tarfile.REGTYPE, "caf\udce9", 0)], "not a checkpoint of this engine"),
    "nested": ([_ABOUT, *[(tarfile.XHDTYPE, "attributes", 0)] * 2000], "maximum recursion depth"),
}
"""Entries of checkpoints, and what is reported of them."""


@pytest.mark.complete
def test_small_checkpoints_need_little_memory(tmp_path: Path) -> None:
    # One process reads all of them, since its start is most of the work.
    paths = [tmp_path / name for name in _CHECKPOINTS]
    for path in paths:
        _write_checkpoint(path, *_CHECKPOINTS[path.name][0])
        assert path.stat().st_size < 1 << 20
    code, peak, text = _run(tmp_path, sys.executable, "-c", _READ, *paths)
    assert code == 0, text
    for path in paths:
        reported = "".join(line for line in text.splitlines() if line.startswith(f"{path.name}: "))
        assert _CHECKPOINTS[path.name][1] in reported, text
        files = Path(f"{path}-unpacked").rglob("*")
        assert sum(file.stat().st_size for file in files if file.is_file()) <= 64 << 20
    assert peak < 300, f"{peak:,} MB: {text}"


def test_a_checkpoint_has_a_limited_number_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_MAX_ENTRIES", 3)
    files = [(tarfile.REGTYPE, str(at), 0) for at in range(4)]
    _write_checkpoint(tmp_path / "three", _ABOUT, *files[:3])
    assert checkpoint.read_checkpoint(tmp_path / "three", tmp_path / "3").query == "q"
    _write_checkpoint(tmp_path / "four", _ABOUT, *files)
    with pytest.raises(BadData, match="more than 3 files"):
        checkpoint.read_checkpoint(tmp_path / "four", tmp_path / "4")


@pytest.mark.parametrize(
    "text",
    [b"\xff", b'{"format": 1, "engine": "\xff"}', b"[" * 100_000, b'{"format": 1e999, "engine": ""}'],
    ids=["no text", "name", "nested", "number"],
)
def test_checkpoint_with_invalid_json_is_rejected(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "checkpoint"
    with (
        pa.output_stream(str(path), compression="zstd") as output,
        tarfile.open(fileobj=output, mode="w|") as tar,  # type: ignore[arg-type]
    ):
        entry = tarfile.TarInfo("checkpoint.json")
        entry.size = len(text)
        tar.addfile(entry, BytesIO(text))
    with pytest.raises(BadData, match="the checkpoint is damaged"):
        checkpoint.read_checkpoint_metadata(path)
