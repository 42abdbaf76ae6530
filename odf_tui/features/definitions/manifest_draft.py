"""Manifest files that are written for the user to edit."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from odf_engine.api.samples import DERIVATIVE, PUSH, ROOT
from odf_engine.errors import OdfError

TEMPLATES: Final = {"root": ROOT, "push": PUSH, "derivative": DERIVATIVE}

_NAME: Final = "my.dataset"
_UNSAFE: Final = re.compile(r"[^\w.-]+")


_PLAIN: Final = re.compile(r"[A-Za-z_]\w*")
_SAMPLE_QUERY: Final = re.compile(r"SELECT event_time, id, amount\n +FROM \w+\n +WHERE amount > 0\n")
_INDENT: Final = "\n" + " " * 10
_QUERY_WIDTH: Final = 70


class SourceTable(msgspec.Struct, frozen=True):
    """A dataset that a query reads: its name, and its columns without those that every dataset has."""

    name: str
    columns: list[str] = []


class ManifestDraft(msgspec.Struct, frozen=True):
    """A manifest file that the user edits.

    Attributes:
        path: the file.
        text: the text that was written into it.
    """

    path: Path
    text: str

    def is_changed(self) -> bool:
        """Return whether the file differs from the text. A removed file counts as unchanged."""
        try:
            return self.path.read_bytes() != self.text.encode()
        except FileNotFoundError:
            return False

    def find_line(self, field: str) -> int | None:
        """Return the first line with a field, from 1."""
        lines = self.text.splitlines()
        return next((at + 1 for at, line in enumerate(lines) if line.strip().startswith(f"{field}:")), None)


def find_unused_name(used: Collection[str]) -> str:
    """Return a default name that no dataset has."""
    names = {name.lower() for name in used}
    return next(name for name in _numbered(_NAME) if name not in names)


def create(folder: Path, template: str, name: str, source: SourceTable | None = None) -> ManifestDraft:
    """Write a manifest from a template, a key of :data:`TEMPLATES`, into a folder; see :func:`write`.

    Args:
        folder: the workspace.
        template: the template.
        name: name of the dataset.
        source: the input of a derivative dataset.

    Raises:
        OdfError: the folder is not writable.
    """
    text = TEMPLATES[template]
    if template == "derivative" and source is not None:
        text = _with_input(text, source)
    return write(folder, f"new-{template}", text.replace("NAME", name))


def _with_input(text: str, source: SourceTable) -> str:
    """Return the template of a derivative dataset with an input, and a query of all its columns."""
    alias = re.sub(r"\W+", "_", source.name.rpartition("/")[2].rpartition(".")[2]).strip("_")
    if not _PLAIN.fullmatch(alias):
        alias = "input"
    text = re.sub(r"(?<![\w.])input\b", alias, text.replace("com.example.input", source.name))
    if not source.columns:
        return text
    names = [
        column if _PLAIN.fullmatch(column) else f"`{column.replace('`', '``')}`" for column in source.columns
    ]
    lines = textwrap.wrap(", ".join(names), _QUERY_WIDTH, break_long_words=False, break_on_hyphens=False)
    query = (_INDENT + " " * len("SELECT ")).join(lines)
    return _SAMPLE_QUERY.sub(lambda match: f"SELECT {query}{_INDENT}FROM {alias}\n", text, count=1)


def write(folder: Path, stem: str, text: str) -> ManifestDraft:
    """Write a manifest into the subfolder ``manifests``, or into the folder if it has none.

    Args:
        folder: the workspace.
        stem: name of the file without its suffix. A number is appended if the file exists.
        text: the manifest.

    Raises:
        OdfError: the folder is not writable.
    """
    directory = folder / "manifests" if (folder / "manifests").is_dir() else folder
    try:
        return ManifestDraft(_write(directory, _stem(stem), text), text)
    except OSError as error:
        raise OdfError(f"cannot write a manifest: {error.strerror}", where=str(directory)) from None


def copy(folder: Path, dataset: str, text: str) -> ManifestDraft:
    """Write the definition of a dataset into a temporary file in the cache of the workspace.

    Raises:
        OdfError: the cache is not writable.
    """
    directory = folder / ".odf" / "cache" / "edit"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return ManifestDraft(_write(directory, _stem(dataset), text), text)
    except OSError as error:
        raise OdfError(f"cannot write the definition: {error.strerror}", where=str(directory)) from None


def rename_after_dataset(path: Path, dataset: str) -> Path:
    """Rename a manifest after its dataset, if possible. Returns its path."""
    if path.stem == _stem(dataset):
        return path
    for stem in _numbered(_stem(dataset)):
        target = path.with_name(f"{stem}.yaml")
        try:
            target.hardlink_to(path)  # unlike a rename, this never overwrites
        except FileExistsError:
            continue
        except OSError:
            return path
        path.unlink()
        return target
    return path


def discard(path: Path) -> None:
    """Remove a manifest. Errors are ignored."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def _stem(dataset: str) -> str:
    return _UNSAFE.sub("-", dataset).strip("-.") or "dataset"


def _write(folder: Path, stem: str, text: str) -> Path:
    for name in _numbered(stem):
        path = folder / f"{name}.yaml"
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            continue
        return path
    raise AssertionError("unreachable: the numbers are unlimited")


def _numbered(stem: str) -> Iterator[str]:
    yield stem
    for number in count(2):
        yield f"{stem}-{number}"
