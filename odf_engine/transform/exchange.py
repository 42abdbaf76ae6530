"""A folder through which files go to and from an engine that sees no other."""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath

from msgspec.structs import replace

from odf_engine.errors import BadData
from odf_engine.metadata.model import TransformRequest
from odf_engine.transform.contract import TableFiles

_CHUNK = 1 << 20


class Exchange:
    """Folders for the files of a transaction: read by the engine, written by it, and for its own use.

    Args:
        folder: here; ``in``, ``out`` and ``scratch`` are made within.
        seen_as: what the engine calls it; by default the same.
    """

    def __init__(self, folder: Path, seen_as: PurePath | None = None) -> None:
        self.folder = folder
        self._seen_as = folder if seen_as is None else seen_as
        self.inputs, self.outputs, self.scratch = (folder / name for name in ("in", "out", "scratch"))
        for each in (self.inputs, self.outputs, self.scratch):
            each.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def handed(self, request: TransformRequest) -> Iterator[TransformRequest]:
        """The request with the paths that the engine knows; the files are there within the block.

        Raises:
            OSError: the folder cannot be written.
        """
        clear(self.inputs)
        clear(self.outputs)
        try:
            yield replace(
                request,
                query_inputs=[
                    replace(
                        each,
                        data_paths=[
                            self._hand(path, f"{at}-{number}.parquet")
                            for number, path in enumerate(each.data_paths)
                        ],
                        schema_file=self._hand(each.schema_file, f"{at}-schema.parquet"),
                    )
                    for at, each in enumerate(request.query_inputs)
                ],
                prev_checkpoint_path=None
                if request.prev_checkpoint_path is None
                else self._hand(request.prev_checkpoint_path, "checkpoint"),
                new_checkpoint_path=str(self._seen_as / "out" / "checkpoint"),
                new_data_path=str(self._seen_as / "out" / "data"),
            )
        finally:
            clear(self.inputs)
            clear(self.outputs)

    @contextmanager
    def lend(self, tables: Sequence[TableFiles]) -> Iterator[list[TableFiles]]:
        """The tables with the paths that the engine knows; the files are there within the block.

        Raises:
            OSError: the folder cannot be written.
        """
        clear(self.inputs)
        try:
            yield [
                dataclasses.replace(
                    each,
                    paths=[
                        Path(self._hand(str(path), f"{at}-{number}.parquet"))
                        for number, path in enumerate(each.paths)
                    ],
                )
                for at, each in enumerate(tables)
            ]
        finally:
            clear(self.inputs)

    def fetch(self, request: TransformRequest) -> None:
        """Copies what the engine wrote to where the request wants it: afterwards the engine cannot change it.

        Raises:
            BadData: there is something else than a file in its place.
        """
        for name, wanted in (("data", request.new_data_path), ("checkpoint", request.new_checkpoint_path)):
            _copy(self.outputs / name, Path(wanted))

    def _hand(self, path: str, name: str) -> str:
        place = self.inputs / name
        try:
            # Another name for the same file, which is never changed: nothing is copied.
            place.hardlink_to(Path(path).resolve())
        except OSError:
            shutil.copyfile(path, place)
        return str(self._seen_as / "in" / name)


def clear(folder: Path) -> None:
    """Empties a folder."""
    for each in folder.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each, ignore_errors=True)
        else:
            each.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    """Copies a file, and nothing else: a link could lead anywhere, a pipe would never end."""
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    except OSError:
        raise BadData(f"the engine left something that is no file: {source.name}") from None
    with os.fdopen(descriptor, "rb") as file, target.open("xb") as copy:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BadData(f"the engine left something that is no file: {source.name}")
        shutil.copyfileobj(file, copy, _CHUNK)
        copy.flush()
        os.fsync(copy.fileno())
