"""Documents as they are stored: files of a workspace, and which of them the user has accepted."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec

from odf_engine.base.atomic_files import make_folder, read_small_file, replace_text_file
from odf_engine.base.files import remove_file
from odf_engine.base.settings import workspace_user_file
from odf_engine.errors import AlreadyExists, InvalidManifest, NotFound, OdfError, UsageError
from odf_engine.workspace.documents.document import DOCUMENT_NAME, Document, read_document

_SUFFIX: Final = ".yaml"
D = TypeVar("D", bound=Document[Any])


class DocumentEntry(NamedTuple, Generic[D]):
    """A valid document, and whether it takes effect.

    Attributes:
        document: the document.
        state: ``active``; or ``new`` or ``changed`` if the user has to accept the document first.
        reason: how to accept it, or "" if it is active.
    """

    document: D
    state: Literal["active", "new", "changed"]
    reason: str

    @property
    def name(self) -> str:
        """The name of the document."""
        return self.document.name


class Unreadable(NamedTuple):
    """A file that is not a valid document: its name without the suffix, and the error."""

    name: str
    error: OdfError

    @property
    def state(self) -> Literal["invalid"]:
        """The state of the document."""
        return "invalid"

    @property
    def reason(self) -> str:
        """The error as one line."""
        return self.error.format_line


class Documents(Generic[D]):
    """The documents of a kind: ``.odf/FOLDER/NAME.yaml``, and which of them the user has accepted.

    A third party may have made a workspace, which was unpacked from an archive for example, and flows run
    programs. So the digests of accepted documents are in a file of the user's own configuration.

    Args:
        odf: the ``.odf`` folder of the workspace.
        kind: the kind of the documents. Its plural is the name of the folder.
    """

    def __init__(self, odf: Path, kind: type[D]) -> None:
        self._kind, self._word = kind, kind.word
        self.folder = odf / f"{kind.word}s"
        self._accepted = workspace_user_file(odf).with_suffix(f".{kind.word}s.json")

    def path(self, name: str) -> Path:
        """Return the path of a document.

        Raises:
            UsageError: it is not a name of a document.
        """
        if not DOCUMENT_NAME.fullmatch(name):
            raise UsageError(f"invalid {self._word} name '{name}'")
        return self.folder / f"{name}{_SUFFIX}"

    def stamps(self) -> dict[str, tuple[int, int]]:
        """Return the modification time (ns) and the size of all files, by name. Files may be invalid.

        Raises:
            OdfError: the folder cannot be read.
        """
        try:
            entries = sorted(self.folder.iterdir())
        except FileNotFoundError:
            return {}
        except OSError as error:
            problem = f"the folder of the {self._word}s cannot be read: {error.strerror}"
            raise OdfError(problem, where=str(self.folder)) from None
        stamps: dict[str, tuple[int, int]] = {}
        for path in entries:
            with contextlib.suppress(OSError):  # it was removed since
                status = path.stat()
                if path.suffix == _SUFFIX and stat.S_ISREG(status.st_mode):
                    stamps[path.stem] = status.st_mtime_ns, status.st_size
        return stamps

    def text(self, name: str) -> bytes:
        """Return the text of a document.

        Raises:
            NotFound: there is no such document.
            InvalidManifest: the file cannot be read.
        """
        path = self.path(name)
        try:
            return read_small_file(path)
        except FileNotFoundError:
            raise self._not_found(name) from None
        except OSError as error:
            raise InvalidManifest(f"cannot be read: {error.strerror}", where=str(path)) from None

    def parse(self, text: bytes, source: str) -> D:
        """Parse a document that is not stored.

        Raises:
            InvalidManifest: it is invalid; ``where`` has ``source``, line and column.
        """
        return read_document(text, source, self._kind)

    def read(self, name: str) -> D:
        """Read a document.

        Raises:
            NotFound: there is no such document.
            InvalidManifest: the file is invalid.
        """
        path = self.path(name)
        document = read_document(self.text(name), str(path), self._kind)
        if document.name != name:
            raise InvalidManifest(
                f"the {self._word} is named '{document.name}'",
                where=str(path),
                hint=f"name the file {document.name}{_SUFFIX}",
            )
        return document

    def require(self, name: str) -> None:
        """Check that there is a document, which may be invalid.

        Raises:
            NotFound: there is none.
        """
        if name not in self.stamps():
            raise self._not_found(name)

    def entries(self) -> list[DocumentEntry[D] | Unreadable]:
        """Return all documents, by name."""
        accepted = self.accepted()
        entries: list[DocumentEntry[D] | Unreadable] = []
        for name in self.stamps():
            try:
                entries.append(self._entry(self.read(name), accepted))
            except OdfError as error:
                entries.append(Unreadable(name, error))
        return entries

    def entry(self, name: str) -> DocumentEntry[D]:
        """Return a document, and whether it takes effect.

        Raises:
            NotFound: there is no such document.
            InvalidManifest: the file is invalid.
        """
        return self._entry(self.read(name), self.accepted())

    def _entry(self, document: D, accepted: Mapping[str, str]) -> DocumentEntry[D]:
        name, digest, part = document.name, accepted.get(document.name), document.accepted_part
        if digest == document.digest or not part:
            return DocumentEntry(document, "active", "")
        reason = f"odf {self._word} {document.accept_command} {name} accepts {part}"
        return DocumentEntry(document, "new" if digest is None else "changed", reason)

    def active(self) -> list[D]:
        """Return the documents that take effect."""
        entries = [entry for entry in self.entries() if not isinstance(entry, Unreadable)]
        return [entry.document for entry in entries if entry.state == "active"]

    def write(self, text: bytes, source: str, *, replace: bool = False) -> D:
        """Store a document under its name.

        Raises:
            InvalidManifest: it is invalid.
            AlreadyExists: there is another document of this name, and ``replace`` is false.
        """
        document = read_document(text, source, self._kind)
        path = self.path(document.name)
        if path.exists() and not replace and read_small_file(path) != text:
            raise AlreadyExists(
                f"{self._word} '{document.name}' already exists",
                hint=f"to replace it, use odf {self._word} add --replace",
            )
        make_folder(self.folder)
        replace_text_file(path, text.decode("utf-8-sig"))
        return read_document(read_small_file(path), str(path), self._kind)

    def remove(self, name: str) -> None:
        """Delete a document, and withdraw its acceptance.

        Raises:
            NotFound: there is no such document.
        """
        if not remove_file(self.path(name)):
            raise self._not_found(name)
        self.withdraw(name)

    def accepted(self) -> dict[str, str]:
        """Return the accepted digests by name of the document; none if the file is missing or invalid."""
        try:
            return msgspec.json.decode(read_small_file(self._accepted), type=dict[str, str])
        except (OSError, msgspec.MsgspecError):
            return {}

    def accept(self, document: D) -> None:
        """Accept a document.

        Raises:
            OdfError: the file cannot be written.
        """
        self._store({**self.accepted(), document.name: document.digest})

    def withdraw(self, name: str) -> None:
        """Withdraw the acceptance of a document.

        Raises:
            OdfError: the file cannot be written.
        """
        self._store({other: digest for other, digest in self.accepted().items() if other != name})

    def _store(self, accepted: Mapping[str, str]) -> None:
        self._accepted.parent.mkdir(parents=True, exist_ok=True)
        text = msgspec.json.encode(accepted, order="sorted").decode()
        replace_text_file(self._accepted, f"{text}\n")

    def _not_found(self, name: str) -> NotFound:
        return NotFound(
            f"{self._word} '{name}' not found", hint=f"list the {self._word}s: odf {self._word} list"
        )
