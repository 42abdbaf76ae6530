"""Finds the workspace of the current folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from odf_engine.base.atomic_files import read_small_file, replace_text_file
from odf_engine.base.files import fsync_folder
from odf_engine.base.settings import CONFIG_FILE, load_config, user_file
from odf_engine.errors import AlreadyExists, NotFound, OdfError, Unsupported, UsageError, disk_hint

ODF_FOLDER: Final = ".odf"
WORKSPACE_VARIABLE: Final = "ODF_WORKSPACE"
VERSION: Final = 1
"""Version of the layout on disk. It changes when programs of an older version would damage the workspace."""
_VERSION_FILE: Final = "version"
_CHECKED_FOLDERS: Final = ("cache", "datasets", "incoming", "keys", "remotes", "trust")
"""Folders in ``.odf`` whose entries have predictable names."""
_OBJECT_FOLDERS: Final = ("blocks", "checkpoints", "data")
"""Folders of a dataset whose files are opened without following links."""


def write_version(odf: Path) -> None:
    """Store the version in the ``.odf`` folder of a workspace."""
    replace_text_file(odf / _VERSION_FILE, f"{VERSION}\n")


def check_version(odf: Path) -> None:
    """Check the version of a workspace. The oldest workspaces have no version file.

    Raises:
        Unsupported: another version.
        OdfError: the file cannot be read.
    """
    path = odf / _VERSION_FILE
    try:
        text = read_small_file(path)[:80].decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return
    except OSError as error:
        raise OdfError(
            f"the workspace cannot be read: {error.strerror}", where=str(path), hint=disk_hint(error)
        ) from None
    if text != str(VERSION):
        version = text if text.isdecimal() else f"'{text}'"
        raise Unsupported(
            f"unsupported workspace version {version}: this program supports version {VERSION}",
            where=str(path),
            hint="use a newer version of odf; nothing was changed",
        )


def workspace_folder(start: Path | None = None, explicit: Path | None = None) -> Path:
    """Return the folder of the workspace.

    It is ``explicit``, otherwise ``$ODF_WORKSPACE``, otherwise ``start`` or a parent of it.

    Raises:
        NotFound: there is no ``.odf`` folder; the hint has the command to create one.
        OdfError: the workspace belongs to another user, or contains symbolic links.
    """
    try:
        return _find_folder(start, explicit)
    except OSError as error:
        raise OdfError(
            f"the workspace cannot be read: {error.strerror or error}",
            where=str(error.filename or explicit or start or "."),
            hint=disk_hint(error),
        ) from error


def _find_folder(start: Path | None, explicit: Path | None) -> Path:
    hint = "create one: odf init"
    given = explicit or (Path(text) if (text := os.environ.get(WORKSPACE_VARIABLE)) else None)
    if given is not None:
        folder = given.expanduser().resolve()
        if (folder / ODF_FOLDER).is_dir():
            return _check_folder(folder)
        source = "" if explicit else f" (from ${WORKSPACE_VARIABLE})"
        raise NotFound(f"{folder}{source} is not a workspace", hint=f"{hint} {folder}")
    first = (start or Path.cwd()).resolve()
    for folder in (first, *first.parents):
        if (folder / ODF_FOLDER).is_dir():
            return _check_folder(folder)
    raise NotFound(f"no workspace in {first} or its parent folders", hint=hint)


def make_workspace_folder(folder: Path) -> None:
    """Create a folder, if it is missing, and the ``.odf`` folder in it.

    Raises:
        AlreadyExists: it is already a workspace.
        OdfError: the folder belongs to another user.
        UsageError: it is not a folder, or cannot be created.
    """
    odf = folder / ODF_FOLDER
    try:
        created = [odf, *(path for path in (folder, *folder.parents) if not path.exists())]
        folder.mkdir(parents=True, exist_ok=True)
        _check_owner(folder, folder)
        odf.mkdir(mode=0o700)
        for path in created:
            fsync_folder(path.parent)
    except FileExistsError:
        if odf.is_dir():
            raise AlreadyExists(f"{folder} is already a workspace") from None
        raise UsageError(f"{folder} is not a folder") from None
    except OSError as error:
        raise UsageError(f"{folder} cannot be a workspace: {error.strerror}") from None


def _check_folder(folder: Path) -> Path:
    """Check the owner of a workspace and its ``.odf`` folder; return the folder."""
    _check_owner(folder, folder)
    check_odf_folder(folder / ODF_FOLDER)
    return folder


def check_odf_folder(odf: Path) -> None:
    """Check that reading and writing in an ``.odf`` folder is safe.

    Another user who owns it could make this program run commands. Symbolic links could redirect writes and
    deletions to other files, also in a workspace that was unpacked from an archive.

    Raises:
        OdfError: the folder or its settings belong to another user, or it contains a symbolic link.
    """
    for path in (odf, odf / CONFIG_FILE):
        _check_owner(path, odf.parent)
    for folder in (odf, *(odf / name for name in _CHECKED_FOLDERS)):
        try:
            entries = os.scandir(folder)
        except OSError:
            continue  # reported when the folder is used
        with entries:
            for entry in entries:
                if entry.is_symlink():
                    _check_link(Path(entry.path))


def check_dataset_folder(folder: Path) -> None:
    """Check that a folder of a dataset in ``.odf`` contains no symbolic links.

    The objects themselves are not listed, as there may be many: they are opened without following links.

    Raises:
        OdfError: it contains a symbolic link.
    """
    folders = [os.fspath(folder)]
    while folders:
        try:
            entries = os.scandir(folders.pop())
        except OSError:
            continue  # reported when the folder is used
        with entries:
            for entry in entries:
                if entry.is_symlink():
                    _check_link(Path(entry.path))
                elif entry.name not in _OBJECT_FOLDERS and entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)


def user_name(uid: int) -> str:
    """Return the name of a user, for messages."""
    import pwd  # Deferred: only errors need it.

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"number {uid}"


def _check_owner(path: Path, workspace: Path) -> None:
    """Check that the effective user, or the caller of sudo, owns a path and its target, as git does.

    Raises:
        OdfError: another user owns it, and the workspace is not a safe folder.
    """
    users = {os.geteuid()}
    if 0 in users and (caller := os.environ.get("SUDO_UID", "")).isdecimal():
        users.add(int(caller))
    for status in (os.lstat, os.stat):
        try:
            owner = status(path).st_uid
        except OSError:
            return  # reported when the file is used
        if owner not in users and not {"*", str(workspace)} & set(_safe_folders()):
            raise OdfError(
                f"unsafe workspace: {path} belongs to another user ({user_name(owner)})",
                hint=f"if you trust it: {_allow_command(workspace)}",
            )


def _check_link(path: Path) -> None:
    """Check that a symbolic link leads to a safe folder.

    Raises:
        OdfError: it leads to another folder.
    """
    target = Path(os.path.realpath(path))  # resolve() raises for a loop of links
    hint = "replace it with a file or folder"
    if target.is_dir():
        if str(target) in _safe_folders():
            return
        hint += f"; or, if you created it: {_allow_command(target)}"
    raise OdfError(f"unsafe workspace: {path} is a symbolic link", hint=hint)


def _safe_folders() -> list[str]:
    """Return the safe folders in the user's own configuration as absolute paths; ``*`` is unchanged."""
    folders = load_config(user_file()).safe_directories
    return [folder if folder == "*" else str(Path(folder).expanduser().resolve()) for folder in folders]


def _allow_command(folder: Path) -> str:
    """Return the command that adds a folder to the safe ones."""
    import json  # Deferred: only errors need these.
    import shlex

    folders = [*_safe_folders(), str(folder)]
    text = json.dumps(folders) if any("," in name for name in folders) else ",".join(folders)
    return f"odf config set --user safeDirectories {shlex.quote(text)}"
