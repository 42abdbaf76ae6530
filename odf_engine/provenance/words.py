"""What the chain says of a source and of the way of its data, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, Final

from odf_engine.chain.places import folder_of
from odf_engine.data.changelog import Op
from odf_engine.ingest.fetch import ETAG, LAST_MODIFIED
from odf_engine.ingest.files_glob import read_state
from odf_engine.metadata import model

Source = model.SetPollingSource | model.AddPushSource

_FORMATS: Final = {
    "Csv": "CSV",
    "GeoJson": "GeoJSON",
    "EsriShapefile": "an ESRI shapefile",
    "Parquet": "Parquet",
    "Json": "JSON",
    "NdJson": "JSON, an object a line",
    "NdGeoJson": "GeoJSON, a feature a line",
}
_NEWER: Final = "in a way that only a newer version understands"


def place_of(fetch: Any, state: model.SourceState | None) -> str:
    """Where data came from: a URL, a file, a command, a topic.

    Args:
        fetch: the fetch step of a source.
        state: what its block says of the source; of sources with many files it names the one.
    """
    match fetch:
        case model.Url():
            return fetch.url
        case model.FilesGlob():
            name = _file_of(state)
            return fetch.path if name is None else str(PurePath(folder_of(fetch.path), name))
        case model.Container():
            return " ".join(["container", fetch.image, *(fetch.command or ()), *(fetch.args or ())])
        case model.Mqtt():
            topics = ", ".join(topic.path for topic in fetch.topics)
            return f"mqtt://{fetch.host}:{fetch.port} {topics}"
        case model.EthereumLogs():
            return f"logs of the Ethereum chain {fetch.chain_id or ''} {fetch.filter or ''}".strip()
        case _:
            return ""


def state_of(fetch: Any, state: model.SourceState | None) -> str:
    """What a source said of its version; empty where it said nothing."""
    if state is None:
        return ""
    if isinstance(fetch, model.FilesGlob) and state.kind == ETAG:
        name, digest = read_state(state.value)
        return f"file {name}" + (f", SHA2-256 {digest.removeprefix('f1220')}" if digest else "")
    known = {ETAG: "ETag", LAST_MODIFIED: "changed at"}
    return f"{known.get(state.kind, state.kind)} {state.value}"


def _file_of(state: model.SourceState | None) -> str | None:
    return read_state(state.value)[0] if state is not None and state.kind == ETAG else None


def steps_of(source: Source) -> list[str]:
    """What is done to the data of a source, a line each: fetch, prepare, read, preprocess, merge."""
    steps: list[str] = []
    if isinstance(source, model.SetPollingSource):
        steps += [_fetched(source.fetch), *map(_prepared, source.prepare or ())]
    else:
        steps.append(f"pushed into the source '{source.source_name}'")
    steps.append(_read(source.read))
    steps += _preprocessed(source.preprocess)
    steps.append(_merged(source.merge))
    return steps


def _fetched(fetch: Any) -> str:
    match fetch:
        case model.Url():
            text = f"fetched from {fetch.url}"
        case model.FilesGlob():
            text = f"one of the files {fetch.path}"
        case model.Container():
            text = f"printed by the {place_of(fetch, None)}"
        case model.Mqtt() | model.EthereumLogs():
            text = f"received from {place_of(fetch, None)}"
        case _:
            return f"fetched {_NEWER}"
    match getattr(fetch, "event_time", None):
        case model.FromPath() as time:
            return f"{text}; its name says the event time ({time.pattern})"
        case model.FromMetadata():
            return f"{text}; the event time is when it was changed"
        case _:
            return text


def _prepared(step: Any) -> str:
    match step:
        case model.Decompress():
            inner = f", of it {step.sub_path}" if step.sub_path else ""
            return f"unpacked ({step.format.value.lower()}){inner}"
        case model.Pipe():
            return f"piped through: {' '.join(step.command)}"
        case _:
            return f"prepared {_NEWER}"


def _read(step: Any) -> str:
    name = _FORMATS.get(model.kind_of(step))
    if name is None:
        return f"read {_NEWER}"
    given = (
        (field.replace("_", " "), getattr(step, field))
        for field in step.__struct_fields__
        if field not in ("schema", "odf_schema")
    )
    options = [field if value is True else f"{field} {value!r}" for field, value in given if value]
    return ", ".join([f"read as {name}", *options])


def _preprocessed(query: Any) -> Iterator[str]:
    if query is None:
        return
    if not isinstance(query, model.Sql):
        yield f"preprocessed {_NEWER}"
        return
    for step in query.queries or ():
        name = f" {step.alias}" if step.alias else ""
        yield f"query{name} ({query.engine}): {' '.join(step.query.split())}"


def _merged(strategy: Any) -> str:
    key = ", ".join(getattr(strategy, "primary_key", ()))
    match strategy:
        case model.Append():
            return "added to what was there"
        case model.Ledger():
            return f"added where {key} was not there yet"
        case model.Snapshot():
            compared = f" in {', '.join(strategy.compare_columns)}" if strategy.compare_columns else ""
            return f"compared by {key} with what was there{compared}: the differences were added"
        case model.ChangelogStream():
            return f"added as the changes that they are, by {key}"
        case model.UpsertStream():
            return f"set in place of what was there, by {key}"
        case _:
            return f"merged {_NEWER}"


_DONE: Final = {
    Op.APPEND: "added",
    Op.RETRACT: "taken back",
    Op.CORRECT_FROM: "as it was before a correction",
    Op.CORRECT_TO: "as it was corrected",
}


def operations(counts: Sequence[tuple[int, int]]) -> list[str]:
    """What rows do, such as ``2 rows added (+A)``; ``counts`` are operations and how many rows have each."""
    return [
        f"{count:,} {'row' if count == 1 else 'rows'} {_DONE[Op(op)]} ({Op(op).code})"
        if op in _DONE
        else f"{count:,} of an unknown operation {op}"
        for op, count in counts
    ]


def listed(values: Sequence[str]) -> str:
    """Texts as in a sentence: ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(values[:-1]), *values[-1:]]))
