"""The version of a workspace: programs leave alone what a newer one has made."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from odf_engine.errors import OdfError, Unsupported
from odf_engine.workspace.small_files import read_small, write_text

VERSION: Final = 1
"""Another one is given to workspaces in which programs that know only this one would do harm."""
_FILE: Final = "version"


def write_version(odf: Path) -> None:
    """Says in the ``.odf`` folder of a workspace which version it has."""
    write_text(odf / _FILE, f"{VERSION}\n")


def check_version(odf: Path) -> None:
    """Reads it again; the first workspaces did not say it.

    Raises:
        Unsupported: it is another one.
    """
    path = odf / _FILE
    try:
        text = read_small(path)[:80].decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return
    except OSError as error:
        raise OdfError(f"the workspace cannot be read: {error.strerror}", where=str(path)) from None
    if text != str(VERSION):
        said = f"of version {text}" if text.isdecimal() else f"of an unknown version, '{text}'"
        raise Unsupported(
            f"this workspace is {said}; this program knows version {VERSION}",
            where=str(path),
            hint="open it with the newer version of odf that made it; nothing was changed",
        )
