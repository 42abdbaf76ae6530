"""What differs in what describes two versions of datasets: columns, licence, sources, query, attachments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from odf_engine.chain.chain import Dataset
from odf_engine.chain.state import ChainState, fold
from odf_engine.errors import OdfError
from odf_engine.metadata import model
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.definitions import Change, Names, change_of

_PAGE: Final = 200
_DATA: Final = ("AddData", "ExecuteTransform")
_SETTINGS: Final = (
    "Seed", "SetVocab", "SetDataSchema", "SetPollingSource", "DisablePollingSource", "AddPushSource",
    "DisablePushSource", "SetTransform", "SetLicense", "SetInfo", "SetAttachments",
)  # fmt: skip
_FLIPPED: Final = {"+": "-", "-": "+"}


class ColumnChange(msgspec.Struct, frozen=True):
    """A column that is new (``old`` is None), gone (``new`` is None), or of another type; types as in DDL."""

    name: str
    old: str | None
    new: str | None


class _Pair(NamedTuple):
    old: model.MetadataEvent | None
    new: model.MetadataEvent | None


def settings_at(dataset: Dataset, number: int) -> ChainState:
    """What describes a dataset as of a block; the state's offsets, totals and watermark are not filled in.

    Only the blocks that say something of it are read, however many of data there are.

    Raises:
        OdfError: a block cannot be read.
    """
    rows = []
    before = number + 1
    while page := dataset.page(_PAGE, before=before, kinds=_SETTINGS):
        rows += page
        before = page[-1].sequence_number
    state: ChainState | None = None
    for row in reversed(rows):
        state = fold(state, dataset.block(row.hash).block, row.hash)
    assert state is not None  # a chain begins with its Seed
    return state


def watermark_at(dataset: Dataset, number: int) -> Timestamp | None:
    """The newest watermark that a dataset had at a block."""
    before = number + 1
    while page := dataset.page(_PAGE, before=before, kinds=_DATA):
        for row in page:
            event = dataset.block(row.hash).block.event
            if isinstance(event, model.AddData | model.ExecuteTransform) and event.new_watermark is not None:
                return event.new_watermark
        before = page[-1].sequence_number
    return None


# --- Columns -----------------------------------------------------------------------------------------


def column_changes(old: ChainState, new: ChainState) -> list[ColumnChange]:
    """Columns that only one side has or that are of other types, in the newer order, then what is gone.

    Raises:
        OdfError: a schema that cannot be read.
    """
    before, after = dict(_columns(old)), dict(_columns(new))
    found = [ColumnChange(name, before.get(name), kind) for name, kind in after.items()]
    found += [ColumnChange(name, kind, None) for name, kind in before.items() if name not in after]
    return [each for each in found if each.old != each.new]


def _columns(state: ChainState) -> Iterator[tuple[str, str]]:
    if state.schema is not None:
        from odf_engine.chain.evolution import read_schema
        from odf_engine.data.ddl import type_ddl

        for field in read_schema(state.schema):
            yield field.name, type_ddl(field.type) + ("" if field.nullable else " NOT NULL")
    elif state.odf_schema is not None:
        from odf_engine.metadata.yaml import to_plain

        for each in state.odf_schema.fields:
            plain = to_plain(each.type)
            yield each.name, str(plain.get("kind", plain) if isinstance(plain, dict) else plain)


# --- All else ----------------------------------------------------------------------------------------


def setting_changes(old: ChainState, new: ChainState, names: Names) -> list[Change]:
    """What else differs, one entry a kind of event; each line begins with ``+``, ``-`` or a space."""
    found: list[Change] = []
    if old.kind is not new.kind:
        found.append(Change("Seed", [f"- kind: {old.kind.value}", f"+ kind: {new.kind.value}"]))
    if _schema(old) != _schema(new) and not _columns_differ(old, new):
        found.append(Change("SetDataSchema", ["  only the order of columns, or what is said of them"]))
    found += [_change(pair, names) for pair in _pairs(old, new) if pair.old != pair.new]
    for key in sorted({*old.not_understood, *new.not_understood}):
        if old.not_understood.get(key) != new.not_understood.get(key):
            found.append(Change(key, ["  parts of a newer specification, which are not understood here"]))
    return found


def _schema(state: ChainState) -> object:
    return state.odf_schema if state.schema is None else state.schema


def _columns_differ(old: ChainState, new: ChainState) -> bool:
    try:
        return bool(column_changes(old, new))
    except OdfError:
        return False


def _pairs(old: ChainState, new: ChainState) -> Iterator[_Pair]:
    yield _Pair(_vocabulary(old), _vocabulary(new))
    yield _Pair(old.polling_source, new.polling_source)
    for name in dict.fromkeys([*old.push_sources, *new.push_sources]):
        yield _Pair(old.push_sources.get(name), new.push_sources.get(name))
    yield _Pair(old.transform, new.transform)
    yield _Pair(old.license, new.license)
    yield _Pair(old.info, new.info)
    yield _Pair(_attachments(old), _attachments(new))


def _vocabulary(state: ChainState) -> model.SetVocab:
    return model.SetVocab(**msgspec.structs.asdict(state.vocabulary))


def _attachments(state: ChainState) -> model.SetAttachments | None:
    return None if state.attachments is None else model.SetAttachments(state.attachments)


def _change(pair: _Pair, names: Names) -> Change:
    if pair.new is not None:
        return change_of(pair.new, pair.old, names)
    assert pair.old is not None
    gone = change_of(pair.old, None, names)
    return Change(gone.title, [_FLIPPED.get(line[:1], line[:1]) + line[1:] for line in gone.lines])
