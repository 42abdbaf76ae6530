"""Manifests, blocks and events as YAML (specification: Manifests, Metadata Reference)."""

from __future__ import annotations

from collections.abc import Mapping as Versions
from typing import Any, Final

from odf_engine.errors import InvalidManifest
from odf_engine.metadata._nodes import Mapping, Node, Scalar, parse_documents
from odf_engine.metadata._read_text import BAD, TextReader, closest
from odf_engine.metadata._write_text import to_plain, to_yaml
from odf_engine.metadata.model import DatasetSnapshot, MetadataBlock, MetadataEvent, Model
from odf_engine.metadata.wire import shape_of

__all__ = [
    "block_to_yaml",
    "read_block_manifest",
    "read_event",
    "read_manifests",
    "snapshot_to_yaml",
    "to_plain",
    "to_yaml",
]

# Kinds of manifests: what is in them, and the versions that can be read.
_CONTENTS: Final[Versions[str, tuple[Any, tuple[int, ...]]]] = {
    "DatasetSnapshot": (DatasetSnapshot, (1,)),
    "MetadataEvent": (MetadataEvent, (1,)),
    "MetadataBlock": (MetadataBlock, (2, 3)),
}
_WRAPPER: Final = ("kind", "version", "content")


def read_manifests(text: str | bytes, source: str) -> list[DatasetSnapshot]:
    """Every DatasetSnapshot manifest of ``text``, which may hold several documents.

    Args:
        text: YAML; bytes have to be UTF-8.
        source: what errors call it, such as the file's path.

    Raises:
        InvalidManifest: whatever is wrong with it, each problem with its line and column.
    """
    roots = parse_documents(text, source)
    if not roots:
        raise InvalidManifest("there is no manifest in it", where=source)
    reader = TextReader(source, definition=True)
    snapshots = [_read(reader, root, "DatasetSnapshot", bare=False)[0] for root in roots]
    reader.check()
    return snapshots


def read_block_manifest(text: str | bytes, source: str) -> tuple[MetadataBlock, int | None]:
    """A block and its version, from a MetadataBlock manifest; a bare block has no version.

    Raises:
        InvalidManifest: whatever is wrong with it.
    """
    return _read_one(text, source, "MetadataBlock")


def read_event(text: str | bytes, source: str) -> MetadataEvent:
    """An event, from a MetadataEvent manifest or bare.

    Raises:
        InvalidManifest: whatever is wrong with it.
    """
    return _read_one(text, source, "MetadataEvent")[0]


def block_to_yaml(block: MetadataBlock, version: int) -> str:
    """A block as a MetadataBlock manifest."""
    return _manifest("MetadataBlock", version, block)


def snapshot_to_yaml(snapshot: DatasetSnapshot) -> str:
    """A snapshot as a DatasetSnapshot manifest."""
    return _manifest("DatasetSnapshot", 1, snapshot)


def _manifest(kind: str, version: int, content: Model) -> str:
    return to_yaml({"kind": kind, "version": version, "content": to_plain(content)})


def _read_one(text: str | bytes, source: str, kind: str) -> tuple[Any, int | None]:
    roots = parse_documents(text, source)
    if len(roots) != 1:
        raise InvalidManifest(f"expected one {kind}, found {len(roots)} documents", where=source)
    reader = TextReader(source)
    value = _read(reader, roots[0], kind, bare=True)
    reader.check()
    return value


def _read(reader: TextReader, root: Node, kind: str, *, bare: bool) -> tuple[Any, int | None]:
    """The content of a manifest, and its version; ``bare`` allows the content without its wrapper."""
    if not isinstance(root, Mapping):
        return reader.note(root, "", f"expected a manifest with the fields {', '.join(_WRAPPER)}"), None
    shape, _ = shape_of(_CONTENTS[kind][0])
    keys = {key.text for key, _ in root.entries}
    if "content" not in keys and "version" not in keys:
        if bare:
            return reader.read(shape, root, ""), None
        reader.note(
            root,
            "",
            "this is no manifest: the fields 'version' and 'content' are missing",
            f"a manifest starts with 'kind: {kind}', 'version: 1' and 'content:'",
        )
        return BAD, None
    version, content = _unwrap(reader, root, kind)
    if version is None or content is None:
        return BAD, None
    return reader.read(shape, content, "content"), version


def _unwrap(reader: TextReader, root: Mapping, kind: str) -> tuple[int | None, Node | None]:
    parts: dict[str, Node] = {}
    for key, value in root.entries:
        if key.text not in _WRAPPER:
            guess = closest(key.text, _WRAPPER)
            hint = f"did you mean '{guess}'?" if guess else "a manifest has kind, version and content"
            reader.note(key, "", f"unknown field '{key.text}'", hint)
        elif key.text in parts:
            reader.note(key, "", f"the field '{key.text}' is there twice")
        parts.setdefault(key.text, value)
    for name in _WRAPPER:
        if name not in parts:
            reader.note(root, "", f"the field '{name}' is missing")
    if not all(name in parts for name in _WRAPPER) or not _check_kind(reader, parts["kind"], kind):
        return None, None
    return _version(reader, parts["version"], kind), parts["content"]


def _check_kind(reader: TextReader, node: Node, kind: str) -> bool:
    found = node.text if isinstance(node, Scalar) else None
    if found == kind:
        return True
    if found in _CONTENTS:
        reader.note(node, "kind", f"this is a {found}, and a {kind} is needed here")
    else:
        reader.note(node, "kind", f"expected {kind}" + (f", found '{found}'" if found else ""))
    return False


def _version(reader: TextReader, node: Node, kind: str) -> int | None:
    known = _CONTENTS[kind][1]
    version = node.value if isinstance(node, Scalar) else None
    if version in known and not isinstance(version, bool):
        return version  # type: ignore[return-value]
    if not isinstance(version, int) or isinstance(version, bool):
        reader.note(node, "version", f"expected {' or '.join(map(str, known))}")
    elif version < known[0]:
        reader.note(node, "version", f"version {version} of {kind} is obsolete and cannot be read")
    else:
        hint = "a newer version of this program may read it"
        reader.note(node, "version", f"version {version} of {kind} is not known", hint)
    return None
