"""Reads manifests from files, folders, URLs and stdin."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from odf_engine.api.workspace import Workspace
from odf_engine.errors import InvalidManifest, NotFound, UsageError
from odf_tui.cli.shared.input import MAX_TEXT_BYTES, read_text

_DOWNLOAD_SECONDS: Final = 60.0


def read_sources(workspace: Workspace, name: str, recursive: bool) -> list[tuple[str, str]]:
    """Return the manifests that an argument names, as pairs of their place and their text."""
    if name == "-":
        return [("stdin", _read_utf8(name, "stdin"))]
    if is_url(name):
        return [(name, _download(workspace, name))]
    path = Path(name)
    if path.is_dir():
        if not recursive:
            raise UsageError(
                f"{name} is a folder", hint="use -r to read the manifests in it and its subfolders"
            )
        files = sorted([*path.rglob("*.yaml"), *path.rglob("*.yml")])
        return [(str(file), _read_file(file)) for file in files if ".odf" not in file.parts]
    return [(name, _read_file(path))]


def is_url(name: str) -> bool:
    """Return whether an argument is the URL of a manifest."""
    return name.lower().startswith(("http://", "https://"))


def _download(workspace: Workspace, url: str) -> str:
    """Return the manifest at a URL. The download takes at most :data:`_DOWNLOAD_SECONDS`."""
    try:
        return workspace.download(url, MAX_TEXT_BYTES, _DOWNLOAD_SECONDS).decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidManifest("the response is not UTF-8 text", where=url) from None


def _read_file(path: Path) -> str:
    if not path.exists():
        raise NotFound(f"file not found: {path}")
    return _read_utf8(str(path), str(path))


def _read_utf8(name: str, source: str) -> str:
    try:
        return read_text(name)
    except UnicodeDecodeError as error:
        raise InvalidManifest("the file is not UTF-8 text", where=f"{source}: byte {error.start}") from None
