"""Translates the queries of manifests into Spark SQL, within the text of the manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import unified_diff
from typing import Any, Final, NamedTuple

import yaml
from msgspec.structs import replace

from odf_engine.errors import OdfError
from odf_engine.metadata.model import (
    AddPushSource,
    DatasetSnapshot,
    MetadataEvent,
    SetPollingSource,
    SetTransform,
    Sql,
)
from odf_engine.metadata.yaml import read_manifests, snapshot_to_yaml
from odf_engine.sql.translation import SOURCES, TARGET, Columns, translate_query

FindColumns = Callable[[str], Columns | None]
"""Returns the columns of a dataset by its reference in a manifest, or None if they are unknown."""


class TranslatedQuery(NamedTuple):
    """A query of a manifest before and after its translation.

    Attributes:
        dataset: name of the dataset.
        engine: the engine of the original query.
        old, new: the query with all its steps, as text.
        changes: how the results of the new query differ.
    """

    dataset: str
    engine: str
    old: str
    new: str
    changes: Sequence[str]

    def diff(self) -> list[str]:
        """Return the lines of both queries, each after ``-``, ``+`` or a space."""
        old, new = self.old.splitlines(), self.new.splitlines()
        return list(unified_diff(old, new, lineterm="", n=1000))[3:]


class ManifestTranslation(NamedTuple):
    """A manifest whose queries are for Spark.

    Attributes:
        text: the manifest; the original queries are comments in it.
        snapshots: its definitions.
        queries: the translated queries, or [] if all were for Spark.
    """

    text: str
    snapshots: list[DatasetSnapshot]
    queries: list[TranslatedQuery]


def translate_manifest(text: str, source: str, find_columns: FindColumns) -> ManifestTranslation:
    """Translate the queries of a manifest that are for Flink, RisingWave or DataFusion.

    Args:
        text: the manifest.
        source: name of the source in errors.
        find_columns: returns the columns of inputs; more known types mean fewer reported changes.

    Raises:
        InvalidManifest: the manifest is invalid.
        InvalidQuery: a part of a query has no translation; ``where`` is the dataset and the position.
    """
    queries: list[TranslatedQuery] = []
    edits: list[tuple[tuple[int, int], Sql, Sql]] = []
    snapshots: list[DatasetSnapshot] = []
    for number, snapshot in enumerate(read_manifests(text, source)):
        events: list[MetadataEvent] = []
        for index, event in enumerate(snapshot.metadata):
            old = _query_of(event)
            if old is None or old.engine.lower() not in SOURCES:
                events.append(event)
                continue
            try:
                new, changes = translate_query(
                    old, continuous=isinstance(event, SetTransform), inputs=_inputs_of(event, find_columns)
                )
            except OdfError as error:
                error.where = f"dataset {snapshot.name}, {error.where}"
                raise
            events.append(_with_query(event, new))
            edits.append(((number, index), old, new))
            queries.append(
                TranslatedQuery(snapshot.name, old.engine, _query_text(old), _query_text(new), changes)
            )
        snapshots.append(replace(snapshot, metadata=events))
    if not queries:
        return ManifestTranslation(text, snapshots, [])
    edited = _edit(text, edits)
    if edited is None or read_manifests(edited, source) != snapshots:
        # A layout that the edit does not support: the manifest is written again, without its own comments.
        edited = "---\n".join(
            "".join(
                f"{line}\n" for query in queries if query.dataset == manifest.name for line in _comment(query)
            )
            + snapshot_to_yaml(manifest).removeprefix("---\n")
            for manifest in snapshots
        )
    return ManifestTranslation(edited, snapshots, queries)


def _query_of(event: MetadataEvent) -> Sql | None:
    match event:
        case SetTransform():
            return event.transform
        case SetPollingSource() | AddPushSource():
            return event.preprocess
    return None


def _with_query(event: MetadataEvent, query: Sql) -> MetadataEvent:
    match event:
        case SetTransform():
            return replace(event, transform=query)
        case SetPollingSource() | AddPushSource():
            return replace(event, preprocess=query)
    return event


def _inputs_of(event: MetadataEvent, find_columns: FindColumns) -> dict[str, Columns]:
    if not isinstance(event, SetTransform):
        return {}
    known = {source.alias or source.dataset_ref: find_columns(source.dataset_ref) for source in event.inputs}
    return {alias: columns for alias, columns in known.items() if columns is not None}


def _query_text(query: Sql) -> str:
    if query.query is not None:
        return query.query.rstrip()
    steps = query.queries or []
    return "\n".join(f"-- {step.alias or 'result'}\n{step.query.rstrip()}" for step in steps)


def _comment(query: TranslatedQuery) -> Iterator[str]:
    yield f"# Translated from {query.engine} by `odf add --translate {TARGET}`. The original query:"
    for line in query.old.splitlines():
        yield f"#   {line}".rstrip()


_KEYS: Final = ("transform", "preprocess")


class _Edit(NamedTuple):
    start: int
    end: int
    text: str


def _edit(text: str, changes: Sequence[tuple[tuple[int, int], Sql, Sql]]) -> str | None:
    """Return the text with new queries, or None if its layout is not supported.

    Args:
        text: the manifest.
        changes: document and event, both from 0, with the old and the new query.
    """
    roots = [root for root in yaml.compose_all(text, yaml.SafeLoader) if isinstance(root, yaml.MappingNode)]
    edits: list[_Edit] = []
    for (document, event), old, new in changes:
        try:
            metadata = _entry(_entry(roots[document], "content")[1], "metadata")[1].value[event]
            key, node = next(entry for name in _KEYS if (entry := _entry(metadata, name, None)) is not None)
            edits += _query_edits(text, key, node, old, new)
        except (KeyError, IndexError, StopIteration, AttributeError):
            return None
    for edit in sorted(edits, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def _entry(node: Any, name: str, *default: Any) -> Any:
    """Return the key and the value of an entry of a mapping."""
    for key, value in node.value:
        if key.value == name:
            return key, value
    if default:
        return default[0]
    raise KeyError(name)


def _query_edits(text: str, key: Any, node: Any, old: Sql, new: Sql) -> Iterator[_Edit]:
    engine = _entry(node, "engine")[1]
    yield _Edit(engine.start_mark.index, engine.end_mark.index, TARGET)
    version = _entry(node, "version", None)
    if version is not None:
        yield _Edit(version[1].start_mark.index, version[1].end_mark.index, "null")
    described = TranslatedQuery("", old.engine, _query_text(old), "", ())
    first = key if node.flow_style else (_entry(node, "query", None) or _entry(node, "queries"))[0]
    start = text.rfind("\n", 0, first.start_mark.index) + 1
    indent = " " * (len(text[start:]) - len(text[start:].lstrip(" ")))
    yield _Edit(start, start, "".join(f"{indent}{line}\n" for line in _comment(described)))
    if new.query is not None:
        query_key, query = _entry(node, "query")
        yield _scalar_edit(text, query_key, query, new.query, flow=node.flow_style)
        return
    steps = _entry(node, "queries")[1]
    for item, before, after in zip(steps.value, old.queries or [], new.queries or [], strict=True):
        step_key, step = _entry(item, "query")
        flow = item.flow_style or steps.flow_style
        yield _scalar_edit(text, step_key, step, after.query, flow=flow)
        if after.alias != before.alias:
            if before.alias is not None:
                raise KeyError("alias")
            separator = ", " if flow else "\n" + " " * step_key.start_mark.column
            start = step_key.start_mark.index
            yield _Edit(start, start, f"alias: {after.alias}{separator}")


def _scalar_edit(text: str, key: Any, value: Any, query: str, *, flow: bool) -> _Edit:
    """Return the edit that replaces a query with a block scalar, or with a quoted text in flow style."""
    start, end = value.start_mark.index, value.end_mark.index
    if flow:
        escaped = query.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return _Edit(start, end, f'"{escaped}"')
    indent = " " * (key.start_mark.column + 2)
    block = "|-\n" + "".join(f"{indent}{line}".rstrip() + "\n" for line in query.splitlines())
    # The mark of a block scalar is the start of the next token, that of another scalar its own end.
    rest = text[start:end]
    kept = rest[len(rest.rstrip()) :]
    if "\n" not in kept:
        return _Edit(start, end, block.rstrip("\n"))
    return _Edit(start, end, block + kept.partition("\n")[2])
