"""Small files that are replaced as a whole."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from odf_engine.storage.objects import sync_folder


def write_text(path: Path, text: str) -> None:
    """Replaces a file, readable by its owner alone, durably and in one step."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
