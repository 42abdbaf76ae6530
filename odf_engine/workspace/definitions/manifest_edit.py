"""Edits sources within the text of a manifest, so that its comments are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple

import yaml

from odf_engine.errors import InvalidManifest
from odf_engine.metadata.model import (
    AddPushSource,
    DatasetSnapshot,
    MetadataEvent,
    SetDataSchema,
    SetPollingSource,
)
from odf_engine.metadata.yaml import read_manifests, to_builtins

_ANY_WIDTH: Final = 1 << 20


class _Edit(NamedTuple):
    """Text that replaces a range of characters."""

    start: int
    end: int
    text: str


class _UnsupportedLayout(Exception):
    """The text is written in a way that cannot be edited."""


def edit_document(text: str, new: DatasetSnapshot) -> str | None:
    """Return a document of a manifest with changed sources, or None if it cannot be edited.

    Args:
        text: the document.
        new: the definition that the edited document has.
    """
    (old,) = read_manifests(text, "manifest")
    if len(old.metadata) != len(new.metadata):
        return None
    root = yaml.compose(text, yaml.SafeLoader)
    try:
        content = _value(root, "content") if _has(root, "content") else root
        nodes = _value(content, "metadata").value
        changed = [*zip(nodes, old.metadata, new.metadata, strict=True)]
        edits = [edit for node, before, after in changed for edit in _event_edits(text, node, before, after)]
        for edit in sorted(edits, reverse=True):
            text = text[: edit.start] + edit.text + text[edit.end :]
        return text if read_manifests(text, "manifest") == [new] else None
    except (_UnsupportedLayout, InvalidManifest, LookupError, ValueError, AttributeError):
        return None


def _event_edits(text: str, node: Any, before: MetadataEvent, after: MetadataEvent) -> Iterator[_Edit]:
    if before == after:
        return
    match before, after:
        case SetDataSchema(ddl=list() as old), SetDataSchema(ddl=list() as new):
            yield from _list_edits(text, _value(node, "schema"), old, new)
        case (SetPollingSource() | AddPushSource(), SetPollingSource() | AddPushSource()):
            if isinstance(before, SetPollingSource) and isinstance(after, SetPollingSource):
                yield from _format_edits(text, node, before, after)
            old_columns, new_columns = before.read.schema or [], after.read.schema or []
            if old_columns != new_columns:
                read = _value(_value(node, "read"), "schema")
                yield from _list_edits(text, read, old_columns, new_columns)
            if before.preprocess is not None and after.preprocess is not None:
                query = _value(node, "preprocess")
                if before.preprocess.queries is None:
                    old, new = before.preprocess.query or "", after.preprocess.query or ""
                    yield from _query_edits(text, _value(query, "query"), old, new)
                    return
                steps = _value(query, "queries").value
                old_steps, new_steps = before.preprocess.queries, after.preprocess.queries or []
                for step, old_step, new_step in zip(steps, old_steps, new_steps, strict=True):
                    yield from _query_edits(text, _value(step, "query"), old_step.query, new_step.query)


def _format_edits(text: str, node: Any, before: SetPollingSource, after: SetPollingSource) -> Iterator[_Edit]:
    """Yield the edits of the URL, the prepare steps, and the format of CSV."""
    for field, old, new, names in (
        ("fetch", before.fetch, after.fetch, ("url",)),
        ("read", before.read, after.read, ("separator", "quote", "escape", "encoding", "header")),
    ):
        for name in names:
            value = getattr(new, name, None)
            if getattr(old, name, None) != value:
                yield _scalar_edit(text, _value(node, field), name, value)
    if before.prepare == after.prepare:
        return
    keys = [key for key, _ in node.value]
    names = [key.value for key in keys]
    if node.flow_style or "read" not in names:
        raise _UnsupportedLayout
    at = names.index("prepare") if "prepare" in names else names.index("read")
    indent = " " * keys[at].start_mark.column
    start = end = text.rfind("\n", 0, keys[at].start_mark.index) + 1
    if "prepare" in names:
        end = text.rfind("\n", 0, keys[at + 1].start_mark.index) + 1
    body = ""
    if after.prepare:
        steps = yaml.safe_dump(
            {"prepare": [to_builtins(step) for step in after.prepare]}, sort_keys=False, width=_ANY_WIDTH
        )
        body = "".join(f"{indent}{line}\n" for line in steps.splitlines())
    yield _Edit(start, end, body)


def _scalar_edit(text: str, node: Any, name: str, value: str | bool | None) -> _Edit:
    """Return the edit that sets a scalar of a mapping, or removes it if ``value`` is None."""
    pairs = {key.value: (key, part) for key, part in node.value}
    if name in pairs and value is not None:
        return _Edit(pairs[name][1].start_mark.index, pairs[name][1].end_mark.index, _scalar(value))
    if name in pairs:
        line = text.rfind("\n", 0, pairs[name][0].start_mark.index) + 1
        return _Edit(line, text.index("\n", pairs[name][1].end_mark.index) + 1, "")
    key, kind = pairs["kind"]
    at = kind.end_mark.index
    if node.flow_style:
        return _Edit(at, at, f", {name}: {_scalar(value)}")
    line = text.index("\n", at) + 1
    return _Edit(line, line, f"{' ' * key.start_mark.column}{name}: {_scalar(value)}\n")


def _has(node: Any, name: str) -> bool:
    return any(key.value == name for key, _ in node.value)


def _value(node: Any, name: str) -> Any:
    """Return the node of a value of a mapping."""
    for key, value in node.value:
        if key.value == name:
            return value
    raise _UnsupportedLayout


def _list_edits(text: str, node: Any, old: Sequence[str], new: Sequence[str]) -> Iterator[_Edit]:
    """Yield the edits that insert entries into a list."""
    for tag, start, stop, new_start, new_stop in SequenceMatcher(None, old, new, False).get_opcodes():
        if tag == "equal":
            continue
        if tag != "insert" or start != stop or not node.value:
            raise _UnsupportedLayout
        added = [_scalar(entry) for entry in new[new_start:new_stop]]
        if node.flow_style:
            if start:
                at = node.value[start - 1].end_mark.index
                yield _Edit(at, at, "".join(f", {entry}" for entry in added))
            else:
                at = node.value[0].start_mark.index
                yield _Edit(at, at, "".join(f"{entry}, " for entry in added))
            continue
        item = node.value[start - 1] if start else node.value[0]
        line = text.rfind("\n", 0, item.start_mark.index) + 1
        dash = text.index("-", line)
        if text[line:dash].strip() or text[dash + 1 : item.start_mark.index].strip():
            raise _UnsupportedLayout
        if start:
            line = text.find("\n", item.end_mark.index) + 1
            if not line:
                raise _UnsupportedLayout
        indent = " " * (dash - (text.rfind("\n", 0, dash) + 1))
        yield _Edit(line, line, "".join(f"{indent}- {entry}\n" for entry in added))


def _scalar(value: str | bool | None) -> str:
    """Return a value as a YAML scalar that is valid in a list of any style."""
    return yaml.safe_dump([value], default_flow_style=True, width=_ANY_WIDTH, allow_unicode=True)[1:-2]


def _query_edits(text: str, node: Any, old: str, new: str) -> Iterator[_Edit]:
    if old == new:
        return
    start, end = node.start_mark.index, node.end_mark.index
    if node.style is None or node.style in ("'", '"'):
        yield _Edit(start, end, _scalar(new))
        return
    if node.style != "|":
        raise _UnsupportedLayout
    first = text.index("\n", start) + 1
    lines = text[first:end].splitlines(keepends=True)[: len(old.splitlines())]
    indents = {len(line) - len(line.lstrip(" ")) for line in lines if line.strip()}
    indent = " " * min(indents)
    body = "".join(f"{indent}{line}".rstrip(" ") + "\n" for line in new.splitlines())
    yield _Edit(first, first + sum(map(len, lines)), body)
