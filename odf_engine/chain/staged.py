"""Files of a commit on their way to their names, and what the disk may say to that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from odf_engine.errors import BadData, NotFound, OdfError
from odf_engine.metadata.model import Checkpoint, DataSlice
from odf_engine.storage.objects import LocalObjects, find_name


@contextmanager
def told_of_the_disk(folder: Path) -> Iterator[None]:
    """Lets errors of the file system within the block be told in words for people."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"{error.filename} is not there (any more)", where=str(folder)) from error
    except OSError as error:
        raise OdfError(
            f"the dataset cannot be written: {error.strerror or error}",
            where=str(error.filename or folder),
            hint="nothing was committed; free some space or check the permissions, then try again",
        ) from error


def store_file(
    objects: LocalObjects, staged: Path | None, said: Sequence[DataSlice | Checkpoint | None]
) -> None:
    """Makes a staged file the object that an event speaks of; all others have to be there.

    Args:
        objects: where it goes.
        staged: the file, if there is one.
        said: what each event of the commit says of such a file, or None.

    Raises:
        BadData: the file is not what its event says, or none says anything.
        NotFound: an object that is spoken of is missing.
    """
    for item in filter(None, said):
        if staged is None:
            if find_name(objects, item.physical_hash) is None:
                raise NotFound(f"{objects.folder.name} object {item.physical_hash} is not in the dataset")
            continue
        if (size := staged.stat().st_size) != item.size:
            raise BadData(f"the staged file has {size} bytes, its block says {item.size}", where=str(staged))
        objects.put_file(str(item.physical_hash), staged)
        staged = None
    if staged is not None:
        raise BadData("no event says what the staged file is", where=str(staged))
