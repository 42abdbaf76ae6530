"""Documents as they are read: headers, content, targets, positions.

A kind of documents is a subclass of :class:`Document`, which has its content and what it validates.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Generic, NamedTuple, Self, TypeVar, get_args

import msgspec

from odf_engine.base.config import Config
from odf_engine.errors import InvalidManifest, OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.names import DatasetAlias, DatasetPattern
from odf_engine.metadata import yaml

DOCUMENT_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,62}[a-zA-Z0-9])?")


class Part(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Base class of the objects of a document."""


class Kind(Part, frozen=True, tag_field="kind"):
    """Base class of the objects that a field ``kind`` distinguishes."""


class Selector(Part, frozen=True):
    """Selects datasets, as a DatasetSelector or a ResourceRef of RFC-018.

    Attributes:
        labels: labels of the setting ``labels``, all of which the datasets must have.
        name: name, id or pattern that the datasets must match.
        type: type of the resources, which are datasets.
        account: the account before the name.
        did: the id of a dataset, instead of its name.
    """

    labels: dict[str, str] = {}
    name: str = ""
    type: str = "Dataset"
    account: str = ""
    did: str = ""

    def __post_init__(self) -> None:
        if self.type.rpartition("/")[2] != "Dataset":
            raise ValueError(f"the target is a {self.type}: targets are datasets")
        if self.did and (self.name or self.account):
            raise ValueError("did excludes name and account")
        if not (self.labels or self.name or self.did):
            raise ValueError("labels is empty, and there is no name and no did")

    @property
    def pattern(self) -> str:
        """The name, id or pattern with the account."""
        name = self.did or self.name or "%"
        return f"{self.account}/{name}" if self.account else name

    def __str__(self) -> str:
        labels = ", ".join(f"{key}={value}" for key, value in self.labels.items())
        return f"label {labels}" if self.pattern == "%" else f"{self.pattern} with label {labels}"


Target = str | Selector
"""A name, id or pattern such as ``my.%`` or ``Dataset:my.%``, or a selector."""
_TYPE: Final = re.compile(r"Dataset:(?=.)", re.IGNORECASE)


def _pattern(target: Target) -> str:
    return target.pattern if isinstance(target, Selector) else target


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
        """The target as a list; a selector without labels as its pattern."""
        targets = self.target if isinstance(self.target, list) else [self.target]
        return [
            target if isinstance(target, Selector) and target.labels else _TYPE.sub("", _pattern(target), 1)
            for target in targets
        ]


def matches_target(target: Target, alias: DatasetAlias, dataset_id: DatasetId, config: Config) -> bool:
    """Return whether a target selects a dataset.

    Raises:
        InvalidIdentity: the name of the target is malformed.
    """
    if not DatasetPattern.parse(_pattern(target)).matches(alias, dataset_id):
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
        source: the text with positions.
    """

    word: ClassVar[str]
    accept_command: ClassVar[str] = "accept"

    name: str
    spec: S
    source: DocumentSource

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return self.source.digest

    @classmethod
    def create(cls, name: str, spec: S, source: DocumentSource) -> Self:
        """Return the document of a file. Kinds override it to check what the type of the content cannot.

        Raises:
            InvalidManifest: the content is invalid.
        """
        return cls(name, spec, source)

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
    if not DOCUMENT_NAME.fullmatch(name):
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
            DatasetPattern.parse(_pattern(target))
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
