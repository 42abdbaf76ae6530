"""Checks of the attachments of a dataset, which are small texts with paths (chapter "Attachments")."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from odf_engine.errors import InvalidManifest
from odf_engine.metadata import model

_MAX_ATTACHED: Final = 4 << 20  # bytes; each stored state of the chain contains the attachments


def check_attachments(attachments: model.Attachments) -> None:
    """Check that attachments are small enough to be stored in a chain, and have paths of files in a folder.

    Raises:
        InvalidManifest: they are too large; a path is absolute, leaves the folder, exists twice, or
            is the folder of another attachment.
    """
    if not isinstance(attachments, model.Embedded):
        return
    paths = [attachment_path(item) for item in attachments.items]
    for path in {path for path in paths if paths.count(path) > 1}:
        raise InvalidManifest(f"two attachments have the path '{path}'", where="SetAttachments")
    for path in paths:
        if not set(paths).isdisjoint(path.parents):
            raise InvalidManifest(f"an attachment is the folder of '{path}'", where="SetAttachments")
    size = sum(len(item.content.encode()) for item in attachments.items)
    if size > _MAX_ATTACHED:
        raise InvalidManifest(
            f"the attachments have {size:,} bytes, the limit is {_MAX_ATTACHED:,}",
            where="SetAttachments",
            hint="attach a text with the location of the large file",
        )


def attachment_path(item: model.AttachmentEmbedded) -> PurePosixPath:
    """Return the path of an attachment, relative to the folder that it is written to.

    Raises:
        InvalidManifest: it is absolute, leaves the folder, or is no path of a file.
    """
    path = PurePosixPath(item.path)
    is_file = path.name and ".." not in path.parts and not path.is_absolute()
    if not is_file or not item.path.isprintable() or "\\" in item.path:
        raise InvalidManifest(
            f"the path of an attachment is not the path of a file in a folder: {item.path!r}",
            where="SetAttachments",
            hint="use a relative path without '..', such as docs/README.md",
        )
    return path
