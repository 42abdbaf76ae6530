"""Where the workspace is. Light: the workstation asks before it has loaded anything else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from odf_engine.errors import AlreadyExists, NotFound, UsageError

ODF_FOLDER: Final = ".odf"
WORKSPACE_VARIABLE: Final = "ODF_WORKSPACE"


def workspace_folder(start: Path | None = None, explicit: Path | None = None) -> Path:
    """The folder of the workspace in ``explicit``, else in ``$ODF_WORKSPACE``, else around ``start``.

    Raises:
        NotFound: no ``.odf`` folder there; the hint says how to make one.
    """
    hint = "make one with: odf init"
    named = explicit or (Path(text) if (text := os.environ.get(WORKSPACE_VARIABLE)) else None)
    if named is not None:
        folder = named.expanduser().resolve()
        if (folder / ODF_FOLDER).is_dir():
            return folder
        source = "" if explicit else f" (which ${WORKSPACE_VARIABLE} names)"
        raise NotFound(f"{folder}{source} is not a workspace", hint=f"{hint} {folder}")
    begin = (start or Path.cwd()).resolve()
    for folder in (begin, *begin.parents):
        if (folder / ODF_FOLDER).is_dir():
            return folder
    raise NotFound(f"there is no workspace in {begin} or above it", hint=hint)


def make_workspace_folder(folder: Path) -> None:
    """Makes a folder, if it is not there, and the one in it that makes it a workspace.

    Raises:
        AlreadyExists: it is a workspace already.
        UsageError: it cannot be one.
    """
    odf = folder / ODF_FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        odf.mkdir(mode=0o700)
    except FileExistsError:
        if odf.is_dir():
            raise AlreadyExists(f"{folder} is a workspace already") from None
        raise UsageError(f"{folder} is not a folder") from None
    except OSError as error:
        raise UsageError(f"{folder} cannot be a workspace: {error.strerror}") from None
