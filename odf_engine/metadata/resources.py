"""Resources of RFC-018 (``$schema``, ``headers``, ``spec``): datasets, sources, and values of sources.

The RFC is a prototype. A Dataset, a Source, a VariableSet and a SecretSet are supported; others are reported
with an alternative. Both forms of a resource are accepted: as authors write it (``…SpecInput``), and the
canonical one, with the ids, times and status that a node adds.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from odf_engine.metadata.model import DatasetSnapshot
from odf_engine.metadata.yaml_nodes import Mapping, Scalar, Sequence, YamlNode


class ProblemList(Protocol):
    """Receives the problems of a document."""

    def add_problem(self, node: YamlNode, path: str, message: str, hint: str | None = None) -> Any:
        """Record a problem."""
        ...


class SourceDefinition(DatasetSnapshot):
    """A root dataset whose polling source is a Source resource, which stays outside the chain.

    Attributes:
        config: values for ``${{ config.NAME }}``, by name: references such as ``SecretSet:keys#token``.
        resource_id: the UUID of the resource, or "" if it has none yet.
    """

    config: dict[str, str] = msgspec.field(default_factory=dict)
    resource_id: str = ""


class ValueSet(NamedTuple):
    """A VariableSet or a SecretSet.

    Attributes:
        type: ``VariableSet`` or ``SecretSet``.
        name: the name of the set.
        values: the values by name.
    """

    type: str
    name: str
    values: dict[str, str]


def join_sources(definitions: Iterable[DatasetSnapshot]) -> list[DatasetSnapshot]:
    """Merge each Source with the Dataset of the same name, at the position of the first.

    Other duplicates are kept, so that the caller can report them.
    """
    joined: dict[int, DatasetSnapshot] = {}
    places: dict[str, int] = {}
    for number, definition in enumerate(definitions):
        name = definition.name.casefold()
        earlier = joined.get(places.setdefault(name, number))
        source, dataset = definition, earlier
        if isinstance(earlier, SourceDefinition):
            source, dataset = earlier, definition
        if not isinstance(source, SourceDefinition) or dataset is None or isinstance(dataset, type(source)):
            joined[number] = definition
            continue
        metadata = [*source.metadata, *dataset.metadata]
        joined[places[name]] = replace(source, name=dataset.name, kind=dataset.kind, metadata=metadata)
    return list(joined.values())


SCHEMA: Final = "$schema"
_RESOURCE: Final = re.compile(r"https://opendatafabric\.org/schemas/(?P<context>\w+)/\w+/(?P<name>\w+)")
_ALTERNATIVES: Final = {
    "flow": "add flows with `odf flow add` instead",
    "sink": "use a flow with an Export or Command task instead",
    "auth": "use tokens for pushes instead of accounts",
    "storage": "use `odf repo add` instead",
    "dataset": "define a Dataset with SetTransform instead",
}
_GENERATED: Final = ("id", "generation", "createdAt", "updatedAt", "deletedAt", "ownerReferences")
"""Headers that a node adds."""
_HEADERS: Final = ("name", "account", "labels", "annotations", *_GENERATED)
_SPECS: Final = {
    "Dataset": ("kind", "metadata"),
    "Source": ("config", "ingress", "prepare", "read", "preprocess", "merge", "vocab"),
}
_VALUES: Final = {"VariableSet": "variables", "SecretSet": "secrets"}
VALUE_REFERENCE: Final = re.compile(r"(VariableSet|SecretSet):((?:[^/#:]+/)?[^/#:]+)#([^#]+)")
_UNSUPPORTED_PARTS: Final = {
    "did": "the id of a dataset is created when it is added",
    "volume": "datasets are stored in the workspace; remove it",
    "buffer": "pushed rows are committed at once; remove it",
}


def convert_resource(reader: ProblemList, root: Mapping) -> ConvertedResource | None:
    """Return a resource as the content of a DatasetSnapshot: a Dataset, or a Source with its dataset.

    Problems are added to the reader, and None is returned.
    """
    parts = _unique_entries(reader, root, "")
    schema = parts[SCHEMA]
    name, context = _resource_type(schema)
    if name not in _SPECS:
        alternative = _ALTERNATIVES.get(context)
        problem = f"the resource {name} is not supported" if name else "unknown schema of a resource"
        hint = alternative or f"supported resources: {', '.join([*_SPECS, *_VALUES])}"
        reader.add_problem(schema, "", problem, hint)
        return None
    headers = _read_headers(reader, root, parts)
    spec = _read_parts(reader, root, parts.get("spec"), "spec", _SPECS[name])
    title = (headers or {}).get("name")
    if headers is None or spec is None or not isinstance(title, Scalar):
        return None
    alias = Scalar(title.line, title.column, _with_account(reader, headers, title.text), False)
    config: dict[str, str] | None = None
    if name == "Source":
        references, is_polled = spec.pop("config", None), not _is_endpoint(spec.get("ingress"))
        if is_polled:
            config = {} if references is None else _read_references(reader, references)
        elif references is not None:
            hint = "rows are pushed to a RestEndpoint, which has no values; remove it"
            reader.add_problem(references, "spec", "unsupported 'config'", hint)
        spec = {"kind": _scalar(root, "Root"), "metadata": _source_events(reader, root, spec)}
    entries = {"name": alias, **spec}
    nodes: list[tuple[Scalar, YamlNode]] = [(_scalar(value, key), value) for key, value in entries.items()]
    resource_id = headers.get("id")
    return ConvertedResource(
        Mapping(root.line, root.column, nodes),
        config,
        resource_id.text if isinstance(resource_id, Scalar) else "",
    )


class ConvertedResource(NamedTuple):
    """A resource as the content of a DatasetSnapshot.

    Attributes:
        content: the content.
        config: the references of a polled Source to values, or None for other resources.
        resource_id: the UUID of the resource, or "" if it has none.
    """

    content: Mapping
    config: dict[str, str] | None
    resource_id: str


def is_value_set(root: YamlNode) -> bool:
    """Return whether a document is a VariableSet or a SecretSet."""
    entries = root.entries if isinstance(root, Mapping) else []
    return any(key.text == SCHEMA and _resource_type(value)[0] in _VALUES for key, value in entries)


def read_value_set(reader: ProblemList, root: Mapping) -> ValueSet | None:
    """Return a VariableSet or a SecretSet. Problems are added to the reader, and None is returned."""
    parts = _unique_entries(reader, root, "")
    name, _ = _resource_type(parts[SCHEMA])
    key = _VALUES[name]
    headers = _read_headers(reader, root, parts)
    spec = _read_parts(reader, root, parts.get("spec"), "spec", (key,))
    title, node = (headers or {}).get("name"), (spec or {}).get(key)
    if not isinstance(node, Mapping):
        if spec is not None:
            place = node or parts["spec"]
            reader.add_problem(place, "spec", f"expected '{key}' with names and values")
        return None
    values: dict[str, str] = {}
    for name_of_value, value in _unique_entries(reader, node, f"spec.{key}").items():
        path = f"spec.{key}.{name_of_value}"
        if isinstance(value, Mapping):
            fields = _unique_entries(reader, value, path)
            if "contentEncoding" in fields:
                hint = "write the value itself; it is stored in a file that only you can read"
                reader.add_problem(
                    fields["contentEncoding"], path, "encrypted values are not supported", hint
                )
                continue
            value = fields.get("value", value)
        if not isinstance(value, Scalar) or value.is_null:
            reader.add_problem(value, path, "expected a text")
        else:
            values[name_of_value] = value.text
    if headers is None or not isinstance(title, Scalar):
        return None
    return ValueSet(name, _with_account(reader, headers, title.text), values)


def _resource_type(schema: YamlNode) -> tuple[str, str]:
    """Return the name and the context of a resource type, or two empty texts if it is not of ODF."""
    match = _RESOURCE.fullmatch(schema.text) if isinstance(schema, Scalar) else None
    return (match["name"].removesuffix("Input"), match["context"]) if match else ("", "")


def _read_headers(
    reader: ProblemList, root: Mapping, parts: dict[str, YamlNode]
) -> dict[str, YamlNode] | None:
    headers = _read_parts(reader, root, parts.get("headers"), "headers", _HEADERS)
    for key, _ in root.entries:
        if key.text not in (SCHEMA, "headers", "spec", "status"):
            hint = "a resource has $schema, headers and spec"
            reader.add_problem(key, "", f"unknown field '{key.text}'", hint)
    if headers is None:
        return None
    title = headers.get("name")
    if title is None:
        reader.add_problem(parts["headers"], "headers", "missing field 'name'")
    elif not isinstance(title, Scalar):
        reader.add_problem(title, "headers.name", "expected a text")
    _check_uuid(reader, headers.get("id"), "headers.id")
    return headers


def _with_account(reader: ProblemList, headers: dict[str, YamlNode], name: str) -> str:
    """Return a name with its account, such as ``alice/name``, if the headers have one.

    An account is a text, or an AccountRef with an id, a DID or a name.
    """
    node = headers.get("account")
    if node is None:
        return name
    if isinstance(node, Scalar):
        return f"{node.text}/{name}"
    fields = {} if not isinstance(node, Mapping) else _unique_entries(reader, node, "headers.account")
    for key, value in fields.items():
        if key not in ("id", "did", "name") or not isinstance(value, Scalar):
            reader.add_problem(value, f"headers.account.{key}", "an account has id, did and name, all texts")
    _check_uuid(reader, fields.get("id"), "headers.account.id")
    account = fields.get("name")
    if not isinstance(account, Scalar):
        hint = "accounts are prefixes of names here: account/dataset"
        reader.add_problem(node, "headers.account", "expected the name of the account", hint)
        return name
    return f"{account.text}/{name}"


def _check_uuid(reader: ProblemList, node: YamlNode | None, path: str) -> None:
    if node is None:
        return
    try:
        uuid.UUID(node.text if isinstance(node, Scalar) else "")
    except ValueError:
        reader.add_problem(node, path, "expected a UUID", "remove it: the id is created when it is added")


def _read_references(reader: ProblemList, node: YamlNode) -> dict[str, str]:
    """Return the references of ``config``, by name, as text: ``SecretSet:NAME#PATH``."""
    if not isinstance(node, Mapping):
        reader.add_problem(node, "spec.config", "expected names with references to values")
        return {}
    references: dict[str, str] = {}
    for name, value in _unique_entries(reader, node, "spec.config").items():
        text = value.text if isinstance(value, Scalar) else _reference_text(reader, value, name)
        if not VALUE_REFERENCE.fullmatch(text):
            hint = "write SecretSet:NAME#VALUE or VariableSet:NAME#VALUE"
            reader.add_problem(value, f"spec.config.{name}", "expected a reference to a value", hint)
        references[name] = text
    return references


def _reference_text(reader: ProblemList, node: YamlNode, name: str) -> str:
    """Return a reference that is written as an object (ResourceRef or ResourceHandle) as a text."""
    fields = _unique_entries(reader, node, f"spec.config.{name}") if isinstance(node, Mapping) else {}
    texts = {key: value.text for key, value in fields.items() if isinstance(value, Scalar)}
    return f"{texts.get('type', '').rpartition('/')[2]}:{texts.get('name', '')}#{texts.get('path', '')}"


def _is_endpoint(ingress: YamlNode | None) -> bool:
    return _ingress_kind(ingress).lower() == "restendpoint"


def _ingress_kind(ingress: YamlNode | None) -> str:
    entries = ingress.entries if isinstance(ingress, Mapping) else []
    kinds = [value.text for key, value in entries if key.text == "kind" and isinstance(value, Scalar)]
    return kinds[0] if kinds else ""


def _source_events(reader: ProblemList, root: Mapping, spec: dict[str, YamlNode]) -> Sequence:
    """Return the events of a Source: its vocabulary, and a polling source or a push source."""
    events: list[YamlNode] = []
    ingress = spec.pop("ingress", root)
    vocab = spec.pop("vocab", None)
    if isinstance(vocab, Mapping):
        events.append(Mapping(vocab.line, vocab.column, [_entry(vocab, "kind", "SetVocab"), *vocab.entries]))
    append = Mapping(root.line, root.column, [_entry(root, "kind", "Append")])
    steps = [(_scalar(value, key), value) for key, value in {"merge": append, **spec}.items()]
    entries = ingress.entries if isinstance(ingress, Mapping) else []
    kind = _ingress_kind(ingress)
    if _is_endpoint(ingress):
        for key, _ in entries:
            if key.text in _UNSUPPORTED_PARTS:
                hint = _UNSUPPORTED_PARTS[key.text]
                reader.add_problem(key, "spec.ingress", f"unsupported '{key.text}'", hint)
        head = [_entry(ingress, "kind", "AddPushSource"), _entry(ingress, "sourceName", "default")]
    else:
        fetch = [
            _entry(value, "kind", "EthereumLogs")
            if key.text == "kind" and kind.lower() == "evmlogs"
            else (key, value)
            for key, value in entries
        ]
        node = Mapping(ingress.line, ingress.column, fetch)
        head = [_entry(ingress, "kind", "SetPollingSource"), (_scalar(ingress, "fetch"), node)]
    return Sequence(root.line, root.column, [*events, Mapping(ingress.line, ingress.column, [*head, *steps])])


def _read_parts(
    reader: ProblemList, root: Mapping, node: YamlNode | None, name: str, known: tuple[str, ...]
) -> dict[str, YamlNode] | None:
    if not isinstance(node, Mapping):
        reader.add_problem(node or root, "", f"missing field '{name}'")
        return None
    for key, _ in node.entries:
        if key.text not in known:
            problem = "unsupported" if key.text in _UNSUPPORTED_PARTS else "unknown field"
            hint = _UNSUPPORTED_PARTS.get(key.text, f"fields: {', '.join(known)}")
            reader.add_problem(key, name, f"{problem} '{key.text}'", hint)
    return {key: value for key, value in _unique_entries(reader, node, name).items() if key in known}


def _unique_entries(reader: ProblemList, node: Mapping, path: str) -> dict[str, YamlNode]:
    """Return the entries by key, and record duplicate keys."""
    yaml_nodes: dict[str, YamlNode] = {}
    for key, value in node.entries:
        if key.text in yaml_nodes:
            reader.add_problem(key, path, f"duplicate field '{key.text}'")
        yaml_nodes.setdefault(key.text, value)
    return yaml_nodes


def _scalar(at: YamlNode, text: str) -> Scalar:
    return Scalar(at.line, at.column, text, False)


def _entry(at: YamlNode, key: str, text: str) -> tuple[Scalar, YamlNode]:
    return _scalar(at, key), _scalar(at, text)
