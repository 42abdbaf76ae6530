"""What tests of pushes share: the other place as its readers see it, and what is sent to it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from odf_engine.base.progress import Reporter
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.flatbuffers import decode_block
from odf_engine.sync.push import ChainPush, push
from odf_engine.sync.remotes.base import MAX_BLOCK_BYTES, ObjectFile, RemoteDataset
from odf_engine.sync.remotes.folder_remote import FolderRemote
from odf_engine.workspace.dataset_summary import DatasetEntry


class Watching(Reporter):
    """Remembers what it is told, and cancels once so many bytes are reported."""

    def __init__(self, cancel_at: int | None = None) -> None:
        super().__init__()
        self.phases: list[str] = []
        self.amounts: dict[str, int] = {}
        self.lines: list[str] = []
        self.cancel_at = cancel_at

    def phase(self, name: str) -> None:
        self.phases.append(name)

    def set_amounts(self, **amounts: Any) -> None:
        self.amounts.update({name: value for name, value in amounts.items() if value is not None})
        if self.cancel_at is not None and self.amounts.get("bytes", 0) >= self.cancel_at:
            self.cancel()

    def log(self, text: str, level: str = "info") -> None:
        self.lines.append(text)


def send(
    entry: DatasetEntry,
    remote: RemoteDataset,
    reporter: Reporter | None = None,
    *,
    force: bool = False,
    parallel: int = 3,
) -> ChainPush:
    """Pushes."""
    return push(entry, remote, reporter or Reporter(), force=force, parallel=parallel)


def folder_remote(folder: Path) -> FolderRemote:
    """A folder as a remote."""
    return FolderRemote(f"file://{folder}/")


def read_whole(remote: RemoteDataset, known: Sequence[str] = ()) -> list[str]:
    """Reads a dataset as anybody would who does not believe in it; hashes of its blocks, newest first.

    Nothing may be missing, and everything has to have the bytes that its name says. What was read before
    may be given as ``known``.
    """
    found: list[str] = []
    at = remote.head()
    while at is not None:
        if str(at) in known:
            return [*found, *known[known.index(str(at)) :]]
        data = remote.read("blocks", at, MAX_BLOCK_BYTES)
        assert Multihash.sha3_256(data) == at
        block = decode_block(data).block
        event: Any = block.event
        for kind, name in (("data", "new_data"), ("checkpoints", "new_checkpoint")):
            if (said := getattr(event, name, None)) is not None:
                content = b"".join(map(bytes, remote.chunks(ObjectFile(kind, said.physical_hash, said.size))))
                assert len(content) == said.size
                assert hashlib.sha3_256(content).digest() == said.physical_hash.digest
        found.append(str(at))
        at = block.prev_block_hash
    return found


def chain(entry: DatasetEntry) -> list[str]:
    """Hashes of the blocks here, newest first."""
    return [str(stored.hash) for stored in entry.dataset.blocks()]


def leftovers(folder: Path) -> list[str]:
    """Files in the making."""
    return [path.name for path in folder.rglob(".*")]
