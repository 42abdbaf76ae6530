"""Documents that users write in YAML: flows, checks, alerts. Values, reading, files, acceptance.

A kind of documents is a subclass of :class:`Document`, which has its content and what it validates.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import stat
import zoneinfo
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Literal, NamedTuple, Self, TypeVar, get_args

import msgspec
from cronsim import CronSim, CronSimError

from odf_engine.base.atomic_files import make_folder, read_small_file, replace_text_file
from odf_engine.base.config import Config
from odf_engine.base.files import remove_file
from odf_engine.base.settings import workspace_user_file
from odf_engine.errors import AlreadyExists, InvalidManifest, NotFound, OdfError, UsageError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.names import DatasetAlias, DatasetPattern
from odf_engine.metadata import yaml

_SUFFIX: Final = ".yaml"
_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,62}[a-zA-Z0-9])?")
_DURATION: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]+)? *(?:ms|s|sec|min|m|h|d|w) *)+")
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(ms|sec|s|min|m|h|d|w)")
_UNITS: Final = {"ms": 0.001, "s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_MAX_SECONDS: Final = 100 * 366 * 86400
_MACROS: Final = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip


class _Value:
    """A value that is written as text. Not a dataclass, because msgspec reads one as an object."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


class DurationText(_Value):
    """A length of time, such as ``10min`` or ``1h 30min``."""

    @property
    def seconds(self) -> float:
        """The length in seconds."""
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(self.text))

    @classmethod
    def parse(cls, text: str) -> DurationText:
        """Parse the text.

        Raises:
            ValueError: it is not a duration, is 0, or is too long.
        """
        if not _DURATION.fullmatch(text):
            raise ValueError(f"'{text}' is not a duration; write for example 30s, 10min, 1h 30min or 1d")
        duration = cls(text)
        if duration.seconds <= 0:
            raise ValueError("the duration must be positive")
        if duration.seconds > _MAX_SECONDS:
            raise ValueError("the duration is longer than 100 years")
        return duration


class Cron(_Value):
    """A cron expression of five fields, or a macro such as ``@daily``."""

    @property
    def fields(self) -> str:
        """The five fields."""
        return _MACROS.get(self.text.strip().lower(), self.text)

    @classmethod
    def parse(cls, text: str) -> Cron:
        """Parse the text.

        Raises:
            ValueError: it is not an expression of five fields, or never matches.
        """
        fields = cls(text).fields
        if len(fields.split()) != 5:
            macros = ", ".join(_MACROS)
            raise ValueError(
                f"'{text}' is not a cron expression: write minute, hour, day of the month, month and day "
                f"of the week, or one of {macros}"
            )
        try:
            next(CronSim(fields, datetime(2024, 1, 1, tzinfo=UTC)))
        except CronSimError as error:
            raise ValueError(f"'{text}' is not a cron expression: {str(error).lower()}") from None
        except StopIteration:
            raise ValueError(f"'{text}' never matches a date") from None
        return cls(text)


class Zone(_Value):
    """A time zone of the IANA database."""

    @property
    def info(self) -> zoneinfo.ZoneInfo:
        """The rules of the zone."""
        return zoneinfo.ZoneInfo(self.text)

    @classmethod
    def parse(cls, text: str) -> Zone:
        """Parse the name.

        Raises:
            ValueError: there is no such zone.
        """
        try:
            zoneinfo.ZoneInfo(text)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"unknown time zone '{text}'; write for example UTC or Europe/Oslo") from None
        return cls(text)


class Part(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Base class of the objects of a document."""


class Kind(Part, frozen=True, tag_field="kind"):
    """Base class of the objects that a field ``kind`` distinguishes."""


class Selector(Part, frozen=True):
    """Selects the datasets that have all these labels.

    Attributes:
        labels: labels of the setting ``labels``.
        name: name, id or pattern that the datasets must also match.
    """

    labels: dict[str, str]
    name: str = "%"

    def __post_init__(self) -> None:
        if not self.labels:
            raise ValueError("labels is empty")

    def __str__(self) -> str:
        labels = ", ".join(f"{key}={value}" for key, value in self.labels.items())
        return f"label {labels}" if self.name == "%" else f"{self.name} with label {labels}"


Target = str | Selector
"""A name, id or pattern such as ``my.%``, or a selector."""


class TargetedSpec(Part, frozen=True, kw_only=True):
    """Base class of contents that are about datasets.

    Attributes:
        target: the datasets.
    """

    target: Target | list[Target]

    def __post_init__(self) -> None:
        if not self.targets or not all(self.targets):
            raise ValueError("the target is empty")

    @property
    def targets(self) -> Sequence[Target]:
        """The target as a list."""
        return self.target if isinstance(self.target, list) else [self.target]


def matches_target(target: Target, alias: DatasetAlias, dataset_id: DatasetId, config: Config) -> bool:
    """Return whether a target selects a dataset.

    Raises:
        InvalidIdentity: the name of the target is malformed.
    """
    name = target.name if isinstance(target, Selector) else target
    if not DatasetPattern.parse(name).matches(alias, dataset_id):
        return False
    if isinstance(target, str):
        return True
    return target.labels.items() <= config.labels_of(str(alias), str(dataset_id)).items()


class Headers(Part, frozen=True):
    """The headers of a document, as of resources in RFC-018."""

    name: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    account: str | None = None
    id: str | None = None


class DocumentSource(NamedTuple):
    """The text of a document with the positions of its values.

    Attributes:
        name: name of the file in messages.
        root: the parsed document.
        digest: SHA-256 of the file.
    """

    name: str
    root: yaml.YamlNode
    digest: str

    def where(self, path: str, key: str | None = None) -> str:
        """Return ``file:line:column`` of a value, such as ``.spec.rules[0]``, or of a key of it."""
        node = _find_node(self.root, path, key)
        return f"{self.name}:{node.line}:{node.column}"


S = TypeVar("S", bound=TargetedSpec)


class _Manifest(msgspec.Struct, Generic[S], frozen=True, forbid_unknown_fields=True):
    """The fields of a file: headers, content, and optionally the name of its schema."""

    headers: Headers
    spec: S
    schema: str = msgspec.field(default="", name="$schema")


class Document(msgspec.Struct, Generic[S], frozen=True):
    """A document as stored. A subclass is a kind of documents, and its type argument is the content.

    Attributes:
        word: what the document is, such as ``flow``; also the last part of its ``$schema``.
        accept_command: the command that accepts the document.
        name: name, unique among the documents of the kind.
        spec: the content.
        digest: SHA-256 of the file.
    """

    word: ClassVar[str]
    accept_command: ClassVar[str] = "accept"

    name: str
    spec: S
    digest: str

    @classmethod
    def create(cls, name: str, spec: S, source: DocumentSource) -> Self:
        """Return the document of a file. Kinds override it to check what the type of the content cannot.

        Raises:
            InvalidManifest: the content is invalid.
        """
        return cls(name, spec, source.digest)

    @property
    def accepted_part(self) -> str:
        """What takes effect only after the user has accepted this content, or "" if nothing does."""
        return "it"


D = TypeVar("D", bound=Document[Any])


def read_document(text: bytes, source: str, kind: type[D]) -> D:
    """Read a document.

    Args:
        text: one YAML document in UTF-8.
        source: name of the file in messages.
        kind: the kind of the document.

    Raises:
        InvalidManifest: it is invalid; ``where`` has line and column.
    """
    word = kind.word
    roots = yaml.parse_documents(text, source)
    if len(roots) != 1:
        raise InvalidManifest(f"a {word} file must have exactly one document", where=source)
    document_source = DocumentSource(source, roots[0], hashlib.sha256(text).hexdigest())
    (content,) = get_args(kind.__orig_bases__[0])  # type: ignore[attr-defined]
    try:
        manifest = msgspec.convert(_to_builtins(roots[0], source), _Manifest[content], dec_hook=_decode)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        unknown = re.search(r"unknown field `([^`]*)`", message)
        raise InvalidManifest(
            message[0].lower() + message[1:],
            where=document_source.where(path.rstrip("`"), unknown[1] if unknown else None),
            hint=f"for the fields, see odf help {word}s",
        ) from None
    name = manifest.headers.name
    if not _NAME.fullmatch(name):
        raise InvalidManifest(
            f"invalid {word} name '{name}'",
            where=document_source.where(".headers.name"),
            hint="use letters, digits, dots, dashes and underscores",
        )
    if manifest.schema and not re.search(rf"/{word}/[a-z0-9]+/{word.title()}$", manifest.schema):
        raise InvalidManifest(
            f"'{manifest.schema}' is not a {word} schema", where=document_source.where(".$schema")
        )
    for target in manifest.spec.targets:
        try:
            DatasetPattern.parse(target.name if isinstance(target, Selector) else target)
        except OdfError as error:
            position = document_source.where(".spec.target")
            raise InvalidManifest(error.message, where=position, hint=error.hint) from None
    return kind.create(name, manifest.spec, document_source)


def _decode(kind: Any, value: Any) -> Any:
    """Decode a field of type Duration, Cron or Zone."""
    if not isinstance(value, str):
        raise ValueError(f"expected text, got `{value}`")
    return kind.parse(value)


def _to_builtins(node: yaml.YamlNode, source: str) -> Any:
    """Return the values of a node.

    Raises:
        InvalidManifest: a mapping has a key twice.
    """
    if isinstance(node, yaml.Mapping):
        fields: dict[str, Any] = {}
        for key, value in node.entries:
            if key.text in fields:
                position = f"{source}:{key.line}:{key.column}"
                raise InvalidManifest(f"duplicate field '{key.text}'", where=position)
            fields[key.text] = _to_builtins(value, source)
        return fields
    if isinstance(node, yaml.Sequence):
        return [_to_builtins(item, source) for item in node.items]
    assert isinstance(node, yaml.Scalar)
    return node.value


def _find_node(root: yaml.YamlNode, path: str, unknown: str | None) -> yaml.YamlNode:
    """Return the node at a path such as ``.spec.triggers[0].cron``; the nearest parent if it is missing.

    Args:
        root: the document.
        path: the path.
        unknown: a key of the mapping at the path, whose node is returned instead.
    """
    node = root
    for key, index in re.findall(r"\.([^.\[\]]+)|\[(\d+)\]", path):
        if index and isinstance(node, yaml.Sequence):
            node = node.items[int(index)]
        elif isinstance(node, yaml.Mapping):
            node = next((value for name, value in node.entries if name.text == key), node)
    if isinstance(node, yaml.Mapping):
        node = next((name for name, _ in node.entries if name.text == unknown), node)
    return node


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
        if not _NAME.fullmatch(name):
            raise UsageError(f"invalid {self._word} name '{name}'")
        return self.folder / f"{name}{_SUFFIX}"

    def stamps(self) -> dict[str, tuple[int, int]]:
        """Return for each file its modification time in nanoseconds and its size; files may be invalid.

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
