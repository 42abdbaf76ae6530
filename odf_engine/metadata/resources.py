"""Resources of RFC-018 (``$schema``, ``headers``, ``spec``) as content of DatasetSnapshot manifests.

The RFC is a prototype. A Dataset and a Source are supported; others are reported with an alternative.
"""

from __future__ import annotations

import re
from typing import Any, Final, Protocol

from odf_engine.metadata.yaml_nodes import Mapping, Scalar, Sequence, YamlNode


class ProblemList(Protocol):
    """Receives the problems of a document."""

    def add_problem(self, node: YamlNode, path: str, message: str, hint: str | None = None) -> Any:
        """Record a problem."""
        ...


SCHEMA: Final = "$schema"
_RESOURCE: Final = re.compile(r"https://opendatafabric\.org/schemas/(?P<context>\w+)/\w+/(?P<name>\w+)")
_ALTERNATIVES: Final = {
    "flow": "add flows with `odf flow add` instead",
    "sink": "use a flow with an Export or Command task instead",
    "config": "use environment variables, as ${{ env.NAME }}, instead",
    "auth": "use tokens for pushes instead of accounts",
    "storage": "use `odf repo add` instead",
    "dataset": "define a Dataset with SetTransform instead",
}
_HEADERS: Final = ("name", "account", "labels", "annotations", "id")
_SPECS: Final = {
    "Dataset": ("kind", "metadata"),
    "Source": ("ingress", "prepare", "read", "preprocess", "merge", "vocab"),
}
_UNSUPPORTED_PARTS: Final = {
    "did": "the id of a dataset is created when it is added",
    "volume": "datasets are stored in the workspace; remove it",
    "config": "use environment variables, as ${{ env.NAME }}",
    "buffer": "pushed rows are committed at once; remove it",
}


def convert_resource(reader: ProblemList, root: Mapping) -> Mapping | None:
    """Return the content of a DatasetSnapshot for a resource (RFC-018): a Dataset, or a Source.

    A Source becomes a root dataset of its name. None if there are problems, which the reader has.
    """
    parts = _unique_entries(reader, root, "")
    schema = parts[SCHEMA]
    match = _RESOURCE.fullmatch(schema.text) if isinstance(schema, Scalar) else None
    name = match["name"] if match else ""
    if name not in _SPECS:
        alternative = _ALTERNATIVES.get(match["context"]) if match else None
        problem = f"the resource {name} is not supported" if name else "unknown schema of a resource"
        hint = alternative or f"supported resources: {', '.join(_SPECS)}"
        reader.add_problem(schema, "", problem, hint)
        return None
    headers = _read_parts(reader, root, parts.get("headers"), "headers", _HEADERS)
    spec = _read_parts(reader, root, parts.get("spec"), "spec", _SPECS[name])
    for key, _ in root.entries:
        if key.text not in (SCHEMA, "headers", "spec"):
            reader.add_problem(
                key, "", f"unknown field '{key.text}'", "a resource has $schema, headers and spec"
            )
    for key in ("name", "account"):
        value = (headers or {}).get(key)
        if value is not None and not isinstance(value, Scalar):
            reader.add_problem(value, f"headers.{key}", "expected a text")
    title = (headers or {}).get("name")
    if headers is None or spec is None or not isinstance(title, Scalar):
        if headers is not None and title is None:
            reader.add_problem(parts["headers"], "headers", "missing field 'name'")
        return None
    account = headers.get("account")
    prefix = f"{account.text}/" if isinstance(account, Scalar) else ""
    alias = Scalar(title.line, title.column, f"{prefix}{title.text}", False)
    if name == "Source":
        spec = {"kind": _scalar(root, "Root"), "metadata": _source_events(reader, root, spec)}
    entries = {"name": alias, **spec}
    return Mapping(root.line, root.column, [(_scalar(value, key), value) for key, value in entries.items()])


def _source_events(reader: ProblemList, root: Mapping, spec: dict[str, YamlNode]) -> Sequence:
    """Return the events of a Source: its vocabulary, and a polling source or a push source."""
    events: list[YamlNode] = []
    ingress = spec.pop("ingress", root)
    vocab = spec.pop("vocab", None)
    if isinstance(vocab, Mapping):
        events.append(Mapping(vocab.line, vocab.column, [_entry(vocab, "kind", "SetVocab"), *vocab.entries]))
    steps = [(_scalar(value, key), value) for key, value in spec.items()]
    entries = ingress.entries if isinstance(ingress, Mapping) else []
    kinds = [value.text for key, value in entries if key.text == "kind" and isinstance(value, Scalar)]
    kind = kinds[0] if kinds else ""
    if kind.lower() == "restendpoint":
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
