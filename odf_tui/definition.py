"""What a dataset's definition says, in words: sources, transform, times, what is told about it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Final

from odf_engine.chain.state import ChainState
from odf_engine.metadata import model
from odf_tui.humane import count, moment
from odf_tui.state import Fact, Section, Sql

_READS: Final = {
    model.Csv: "CSV",
    model.Json: "JSON",
    model.NdJson: "NDJSON, a document a line",
    model.GeoJson: "GeoJSON",
    model.NdGeoJson: "GeoJSON, a feature a line",
    model.EsriShapefile: "Esri shapefile",
    model.Parquet: "Parquet",
}
_OPTIONS: Final = {
    "separator": "separator",
    "encoding": "encoding",
    "quote": "quote",
    "escape": "escape",
    "null_value": "null is",
    "date_format": "dates",
    "timestamp_format": "timestamps",
    "sub_path": "at",
}
_MERGES: Final = {
    model.Append: "Append: every row is new",
    model.Ledger: "Ledger: rows with a new key are added",
    model.Snapshot: "Snapshot: the whole list each time, compared by its key",
    model.ChangelogStream: "ChangelogStream: rows say themselves what they add, retract and correct",
    model.UpsertStream: "UpsertStream: rows add or replace by their key",
}
_STATES: Final = {"odf/etag": "ETag", "odf/last-modified": "last modified"}


def sections(state: ChainState, names: dict[str, str], alias: str, disabled: Sequence[str]) -> list[Section]:
    """Everything but columns and identity.

    Args:
        names: names of datasets by id, for inputs.
        alias: the dataset's name, for the commands that are shown.
        disabled: names of push sources, and ``polling source``, that were there once.
    """
    found: list[Section] = []
    if state.polling_source is not None:
        found.append(Section("Source", tuple(_polling(state.polling_source, state))))
    for name, source in state.push_sources.items():
        found.append(Section(f"Push source {name}", tuple(_push(name, source, state, alias))))
    if state.transform is not None:
        found.append(Section("Transform", tuple(_transform(state.transform, names))))
    unknown = [(key, f"block {number}") for key, number in state.not_understood.items()]
    if unknown:
        found.append(Section("From a newer specification", tuple(unknown)))
    if disabled:
        found.append(Section("Disabled", (("sources", ", ".join(disabled)),)))
    found.append(Section("Time", tuple(_time(state))))
    if about := tuple(_about(state)):
        found.append(Section("About", about))
    return found


# --- Sources -----------------------------------------------------------------------------------


def _polling(source: model.SetPollingSource, state: ChainState) -> Iterator[Fact]:
    yield from _fetch(source.fetch)
    if source.prepare:
        yield "prepare", "\n".join(map(_prepared, source.prepare))
    yield from _reading(source)
    if kept := state.source_state:
        yield "state", _kept(kept, isinstance(source.fetch, model.FilesGlob))
    else:
        silent = "none: the source does not say whether it changed"
        yield "state", silent if state.has_data_block else "nothing was taken yet"


def _push(name: str, source: model.AddPushSource, state: ChainState, alias: str) -> Iterator[Fact]:
    chosen = "" if len(state.push_sources) == 1 or name == "default" else f" --source {shlex.quote(name)}"
    yield "push", f"odf ingest {alias} FILE{chosen}\n… | odf ingest {alias} -{chosen}"
    yield from _reading(source)


def _reading(source: model.SetPollingSource | model.AddPushSource) -> Iterator[Fact]:
    yield "read", read_words(source.read)
    if source.preprocess is not None:
        yield from query_facts(source.preprocess)
    yield "merge", merge_words(source.merge)


def _fetch(fetch: Any) -> Iterator[Fact]:
    match fetch:
        case model.Url():
            yield "fetch", fetch.url
            if fetch.headers:
                yield "headers", ", ".join(header.name for header in fetch.headers)
        case model.FilesGlob():
            yield "fetch", f"files {fetch.path}, {_order(fetch.order)}, a commit each"
        case model.Container():
            yield "fetch", f"container {fetch.image}"
            if command := [*(fetch.command or ()), *(fetch.args or ())]:
                yield "command", shlex.join(command)
            if fetch.env:
                yield "variables", ", ".join(each.name for each in fetch.env)
        case model.Mqtt():
            yield "fetch", f"MQTT {fetch.host}:{fetch.port} " + ", ".join(each.path for each in fetch.topics)
        case _:
            yield "fetch", type(fetch).__name__
    if getattr(fetch, "cache", None) is not None:
        yield "cache", "fetched once, then never again"
    if (when := getattr(fetch, "event_time", None)) is not None:
        yield "event time", _when(when)


def fetch_words(fetch: Any) -> str:
    """Where data comes from, in a few words."""
    return next((value for name, value in _fetch(fetch) if name == "fetch"), "")


def _order(order: model.SourceOrdering | None) -> str:
    return "oldest event time first" if order is model.SourceOrdering.ByEventTime else "in order of names"


def _when(when: Any) -> str:
    match when:
        case model.FromPath():
            form = f", read as {when.timestamp_format}" if when.timestamp_format else ""
            return f"from the path, by {when.pattern}{form}"
        case model.FromMetadata():
            return "when the source says it was changed"
        case _:
            return "when it is pulled"


def _prepared(step: Any) -> str:
    if isinstance(step, model.Pipe):
        return f"pipe through {shlex.join(step.command)}"
    what = {"Gzip": "gzip", "Zip": "zip"}.get(step.format.value, step.format.value)
    return f"unpack {what}" + (f", of it {step.sub_path}" if step.sub_path else "")


def _kept(kept: model.SourceState, files: bool) -> str:
    value, *_ = kept.value.split("\t")
    if files:
        return f"files taken up to {value}"
    shown = moment(value) if kept.kind == "odf/last-modified" else value
    return f"{_STATES.get(kept.kind, kept.kind)} {shown}"


def read_words(read: Any) -> str:
    """How data is read: its format, the options that were set, how many columns are declared."""
    parts = [_READS.get(type(read), type(read).__name__)]
    if isinstance(read, model.Csv):
        parts.append("with a header" if read.header else "without a header")
    parts += [
        f"{word} {value!r}" if field not in ("sub_path", "encoding") else f"{word} {value}"
        for field, word in _OPTIONS.items()
        if (value := getattr(read, field, None)) is not None
    ]
    columns = read.schema
    if columns:
        parts.append(f"{count(len(columns))} column{'' if len(columns) == 1 else 's'} declared")
    elif read.odf_schema is None:
        parts.append("types inferred" if getattr(read, "infer_schema", None) else "columns as they come")
    return ", ".join(parts)


def merge_words(merge: Any) -> str:
    """How new rows meet old ones."""
    words = _MERGES.get(type(merge), type(merge).__name__)
    lines = [words]
    if keys := getattr(merge, "primary_key", None):
        lines.append("key " + ", ".join(keys))
    if compared := getattr(merge, "compare_columns", None):
        lines.append("compares " + ", ".join(compared))
    return "\n".join(lines)


# --- The rest ----------------------------------------------------------------------------------


def _transform(transform: model.SetTransform, names: dict[str, str]) -> Iterator[Fact]:
    inputs = []
    for each in transform.inputs:
        name = names.get(each.dataset_ref, each.dataset_ref)
        inputs.append(f"{name} as {each.alias}" if each.alias and each.alias != name else name)
    yield "inputs", "\n".join(inputs)
    yield from query_facts(transform.transform)


def query_facts(transform: Any) -> Iterator[Fact]:
    """Engine, steps, and what the query reads as tables that change over time."""
    version = f" {transform.version}" if getattr(transform, "version", None) else ""
    yield "engine", f"{getattr(transform, 'engine', type(transform).__name__)}{version}"
    if getattr(transform, "query", None):
        yield "query", Sql(transform.query.strip())
    for step in getattr(transform, "queries", None) or ():
        yield step.alias or "query", Sql(step.query.strip())
    for table in getattr(transform, "temporal_tables", None) or ():
        yield "as of", f"{table.name} by {', '.join(table.primary_key)}: the versions valid at the time"


def _time(state: ChainState) -> Iterator[Fact]:
    yield "watermark", moment(None if state.watermark is None else str(state.watermark)) or "none yet"
    yield "event time", f"column {state.vocabulary.event_time_column}"


def _about(state: ChainState) -> Iterator[Fact]:
    if state.info is not None and state.info.description:
        yield "about", state.info.description
    if state.info is not None and state.info.keywords:
        yield "keywords", ", ".join(state.info.keywords)
    if state.license is not None:
        yield "licence", f"{state.license.name} ({state.license.short_name})\n{state.license.website_url}"
    for item in getattr(state.attachments, "items", None) or ():
        lines = len(item.content.splitlines())
        yield "attached", f"{item.path}, {count(lines)} line{'' if lines == 1 else 's'}"
