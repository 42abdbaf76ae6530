"""Checkpoint files: engine state, watermarks, emitted rows."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Self, cast

import msgspec
import pyarrow as pa

from odf_engine.chain.normal_form import rules_revision, spark_engine_version
from odf_engine.data.digest import physical_hash
from odf_engine.errors import BadData, StateUnusable, Unsupported
from odf_engine.metadata.model import Checkpoint, SqlQueryStep, TemporalTable

FORMAT: Final = 2
_METADATA_FILE: Final = "checkpoint.json"

# Limits for checkpoints written by third parties.
_ALLOWED_BYTES: Final = 64 << 20
_ALLOWED_RATIO: Final = 250
"""Maximum decompressed size of a checkpoint: 64 MiB, or this many times its compressed size."""
_MAX_METADATA_BYTES: Final = 1 << 20
_MAX_HEADER_BYTES: Final = 1 << 16
_MAX_ENTRIES: Final = 100_000


class ResultState(msgspec.Struct, kw_only=True, rename="camel"):
    """The state of a query that reads its inputs again.

    Attributes:
        queries: steps of the query whose result the dataset has.
        retracted: names of the inputs that have had retractions, sorted.
        temporal_tables: temporal tables of a query with as-of joins.
    """

    queries: list[SqlQueryStep]
    retracted: list[str]
    temporal_tables: list[TemporalTable] | msgspec.UnsetType = msgspec.UNSET


class CheckpointMetadata(msgspec.Struct, kw_only=True, rename="camel"):
    """The metadata of a checkpoint.

    Attributes:
        format: version of the file format.
        engine: engine that wrote it.
        query: hash of the query and its inputs.
        state: fingerprint of the state; another query with the same fingerprint can continue from it.
        watermarks: watermark of each input in milliseconds, by the alias in the query.
        watermark: minimum of the watermarks if all inputs have one.
        result: the state of a query that reads its inputs again.
    """

    format: int
    engine: str
    query: str
    watermarks: dict[str, int]
    watermark: int | None
    state: str
    result: ResultState | msgspec.UnsetType = msgspec.UNSET


class _FormatHeader(msgspec.Struct):
    format: int
    engine: str


def write_checkpoint(path: Path, metadata: CheckpointMetadata, folder: Path) -> Checkpoint:
    """Write a checkpoint.

    Args:
        path: path of the new file.
        metadata: its metadata.
        folder: folder with the content.

    Returns:
        Its hash and size.
    """
    with (
        pa.output_stream(str(path), compression="zstd") as output,
        tarfile.open(fileobj=output, mode="w|", format=tarfile.PAX_FORMAT) as tar,  # pyright: ignore[reportArgumentType]
    ):
        text = msgspec.json.encode(metadata, order="sorted")
        tar.addfile(_entry(_METADATA_FILE, len(text)), io.BytesIO(text))
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            with file.open("rb") as content:
                entry = _entry(file.relative_to(folder).as_posix(), file.stat().st_size)
                tar.addfile(entry, content)
    digest, size = physical_hash(path)
    return Checkpoint(physical_hash=digest, size=size)


def read_checkpoint(path: Path, folder: Path) -> CheckpointMetadata:
    """Extract a checkpoint.

    Args:
        path: path of the file.
        folder: folder for the content.

    Raises:
        BadData: missing, damaged, not a checkpoint, or larger than allowed.
        StateUnusable: the checkpoint has an earlier format.
        Unsupported: the checkpoint has a later format.
    """
    with _open_checkpoint(path) as (metadata, tar):
        count = 0
        while (entry := tar.next()) is not None:
            count += 1
            if count > _MAX_ENTRIES:
                raise tarfile.ReadError(f"it has more than {_MAX_ENTRIES:,} files")
            if entry.sparse is not None:
                raise tarfile.ReadError(f"{entry.name!r} is sparse")
            tar.extract(entry, folder, filter="data")
        return metadata


def read_checkpoint_metadata(path: Path) -> CheckpointMetadata:
    """Read the metadata of a checkpoint.

    Raises:
        BadData, Unsupported: as in :func:`read_checkpoint`.
    """
    with _open_checkpoint(path) as (metadata, _):
        return metadata


def require_present_rules(metadata: CheckpointMetadata, path: str) -> None:
    """Check that the state in a checkpoint was computed by the present rules.

    Raises:
        StateUnusable: it was not.
    """
    if rules_revision(metadata.engine) != rules_revision(spark_engine_version()):
        raise _unusable_state(metadata.engine, path)


def _unusable_state(engine: str, path: str) -> StateUnusable:
    return StateUnusable(
        f"the checkpoint was written by version {engine} of the engine, but this is {spark_engine_version()}",
        where=path,
        hint="derive the dataset again: odf pull --rederive NAME",
    )


@contextmanager
def _open_checkpoint(path: Path) -> Iterator[tuple[CheckpointMetadata, tarfile.TarFile]]:
    """Open a checkpoint; yield its metadata, and the archive after it."""
    try:
        with (
            pa.input_stream(str(path), compression="zstd") as input,
            tarfile.open(
                fileobj=cast("BinaryIO", _BoundedStream(input, path.stat().st_size)),
                mode="r|",
                tarinfo=_Entry,
            ) as tar,
        ):
            first = tar.next()
            content = tar.extractfile(first) if first is not None and first.name == _METADATA_FILE else None
            if first is None or content is None or first.size > _MAX_METADATA_BYTES:
                raise BadData("the file is not a checkpoint of this engine", where=str(path), hint=_HINT)
            yield _parse_metadata(content.read(), path), tar
    except FileNotFoundError:
        raise BadData("the checkpoint is missing", where=str(path), hint=_HINT) from None
    except (OSError, tarfile.TarError, pa.ArrowException, EOFError, ValueError, RecursionError) as error:
        raise BadData(f"the checkpoint is damaged: {error}", where=str(path), hint=_HINT) from error


class _BoundedStream:
    """The decompressed bytes of a checkpoint, up to a limit relative to the compressed size."""

    def __init__(self, stream: pa.NativeFile, packed_bytes: int) -> None:
        self._stream = stream
        self._allowed = self._remaining = max(_ALLOWED_BYTES, _ALLOWED_RATIO * packed_bytes)

    def read(self, size: int) -> bytes:
        """Return the next bytes, ``size`` of them except at the end.

        Raises:
            tarfile.ReadError: the limit is exceeded.
        """
        data = self._stream.read(size)
        self._remaining -= len(data)
        if self._remaining < 0:
            raise tarfile.ReadError(f"it unpacks to more than {self._allowed:,} bytes")
        return data


class _Entry(tarfile.TarInfo):
    """An entry of a checkpoint: a file, or the extended attributes of the next file, such as a long name."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header.

        Raises:
            tarfile.ReadError: an entry of another type, or attributes that exceed the memory limit.
        """
        entry = super().frombuf(buf, encoding, errors)
        if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.XHDTYPE):
            raise tarfile.ReadError(f"{entry.name!r} is not a file")
        if entry.type == tarfile.XHDTYPE and entry.size > _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"the attributes of a file have {entry.size:,} bytes")
        return entry


_HINT: Final = "run `odf verify`; pull the dataset from an intact remote, or rebuild it"


def _parse_metadata(text: bytes, path: Path) -> CheckpointMetadata:
    try:
        header = msgspec.json.decode(text, type=_FormatHeader)
        if header.format < FORMAT:
            raise _unusable_state(header.engine, str(path))
        if header.format > FORMAT:
            raise Unsupported(
                f"the checkpoint was written by the engine {header.engine} in format {header.format}, "
                f"but this version reads formats up to {FORMAT}",
                where=str(path),
                hint="use that version, or rebuild the dataset with this one",
            )
        return msgspec.json.decode(text, type=CheckpointMetadata)
    except msgspec.MsgspecError as error:
        raise BadData(f"the checkpoint is damaged: {error}", where=str(path), hint=_HINT) from error


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size = size
    entry.mode = 0o644
    return entry
