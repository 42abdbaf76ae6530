"""Finds the workspace of the current folder; imports nothing else of the engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from odf_engine.errors import AlreadyExists, NotFound, OdfError, UsageError

ODF_FOLDER: Final = ".odf"
WORKSPACE_VARIABLE: Final = "ODF_WORKSPACE"
_CHECKED_FOLDERS: Final = ("cache", "datasets", "incoming", "keys", "remotes", "trust")
"""Folders in ``.odf`` whose entries have names that others can predict."""


def workspace_folder(start: Path | None = None, explicit: Path | None = None) -> Path:
    """The folder of the workspace in ``explicit``, else in ``$ODF_WORKSPACE``, else around ``start``.

    Raises:
        NotFound: no ``.odf`` folder there; the hint says how to make one.
        OdfError: the workspace is another user's, or holds symbolic links.
    """
    hint = "make one with: odf init"
    named = explicit or (Path(text) if (text := os.environ.get(WORKSPACE_VARIABLE)) else None)
    if named is not None:
        folder = named.expanduser().resolve()
        if (folder / ODF_FOLDER).is_dir():
            return _checked(folder)
        source = "" if explicit else f" (which ${WORKSPACE_VARIABLE} names)"
        raise NotFound(f"{folder}{source} is not a workspace", hint=f"{hint} {folder}")
    begin = (start or Path.cwd()).resolve()
    for folder in (begin, *begin.parents):
        if (folder / ODF_FOLDER).is_dir():
            return _checked(folder)
    raise NotFound(f"there is no workspace in {begin} or above it", hint=hint)


def make_workspace_folder(folder: Path) -> None:
    """Makes a folder, if it is not there, and the one in it that makes it a workspace.

    Raises:
        AlreadyExists: it is a workspace already.
        OdfError: the folder is another user's.
        UsageError: it cannot be one.
    """
    odf = folder / ODF_FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_owner(folder, folder)
        odf.mkdir(mode=0o700)
    except FileExistsError:
        if odf.is_dir():
            raise AlreadyExists(f"{folder} is a workspace already") from None
        raise UsageError(f"{folder} is not a folder") from None
    except OSError as error:
        raise UsageError(f"{folder} cannot be a workspace: {error.strerror}") from None


def _checked(folder: Path) -> Path:
    """The folder of a workspace, after its owner and its ``.odf`` were checked."""
    _check_owner(folder, folder)
    check_odf_folder(folder / ODF_FOLDER)
    return folder


def check_odf_folder(odf: Path) -> None:
    """Whether it is safe to read and write in an ``.odf`` folder.

    Another user who owns it could make this program do what that user wants. Symbolic links could lead to
    files that are overwritten or removed, also in a workspace that was unpacked from an archive.

    Raises:
        OdfError: it or its settings belong to another user, or a link is in it or in a folder of it.
    """
    from odf_engine.settings import CONFIG_FILE

    for path in (odf, odf / CONFIG_FILE):
        _check_owner(path, odf.parent)
    for folder in (odf, *(odf / name for name in _CHECKED_FOLDERS)):
        try:
            entries = os.scandir(folder)
        except OSError:
            continue  # whoever needs the folder reports this
        with entries:
            for entry in entries:
                if entry.is_symlink():
                    _check_link(Path(entry.path))


def user_name(uid: int) -> str:
    """The name of a user, for messages."""
    import pwd  # only errors need it

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"number {uid}"


def _check_owner(path: Path, workspace: Path) -> None:
    """As git does: the effective user, or the one who started sudo, has to own a path and what it leads to.

    Raises:
        OdfError: another user owns it, and the workspace is not among the safe folders.
    """
    users = {os.geteuid()}
    if 0 in users and (caller := os.environ.get("SUDO_UID", "")).isdecimal():
        users.add(int(caller))
    for status in (os.lstat, os.stat):
        try:
            owner = status(path).st_uid
        except OSError:
            return  # whoever needs the file reports this
        if owner not in users and not {"*", str(workspace)} & set(_safe_folders()):
            raise OdfError(
                f"the workspace is not opened: {path} belongs to another user ({user_name(owner)})",
                hint=f"if you trust it: {_allow(workspace)}",
            )


def _check_link(path: Path) -> None:
    """
    Raises:
        OdfError: the link leads to a file, or to a folder that is not among the safe ones.
    """
    target = Path(os.path.realpath(path))  # resolve() raises for a loop of links
    hint = "replace it by a file or folder"
    if target.is_dir():
        if str(target) in _safe_folders():
            return
        hint += f"; or, if you made it: {_allow(target)}"
    raise OdfError(f"the workspace is not opened: {path} is a symbolic link", hint=hint)


def _safe_folders() -> list[str]:
    """The folders that the user's own configuration calls safe, as absolute paths; ``*`` stays as it is."""
    from odf_engine.settings import load, user_file  # only what is not safe by itself needs it

    named = load(user_file()).safe_directories
    return [each if each == "*" else str(Path(each).expanduser().resolve()) for each in named]


def _allow(folder: Path) -> str:
    """The command that adds a folder to the safe ones."""
    import json  # only errors need these
    import shlex

    folders = [*_safe_folders(), str(folder)]
    text = json.dumps(folders) if any("," in each for each in folders) else ",".join(folders)
    return f"odf config set --user safeDirectories {shlex.quote(text)}"
