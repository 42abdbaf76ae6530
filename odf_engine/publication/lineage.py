"""The lineage of a version as W3C PROV: versions, the transactions that wrote them, sources, engines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar

from odf_engine.base.progress import Reporter
from odf_engine.chain.block_summary import StoredBlock
from odf_engine.chain.compacted_history import find_current_number
from odf_engine.chain.normal_form import query_of
from odf_engine.chain.state import push_state, record_count
from odf_engine.derive.provenance.root_origins import describe_location, describe_source_state
from odf_engine.errors import NotFound
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata import model
from odf_engine.net.urls import without_login
from odf_engine.publication.citation import CitedVersion, pin
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

_NAMESPACES: Final = {
    "did": "did:odf:",
    "odf": "urn:odf-workstation:terms:",
    "block": "urn:odf-workstation:block:",
    "transaction": "urn:odf-workstation:transaction:",
    "source": "urn:odf-workstation:source:",
    "engine": "urn:odf-workstation:engine:",
}
"""Prefixes of the identifiers. Versions and transactions are identified by the hash of their block."""

_PHASE: Final = "lineage"


class Upstream(NamedTuple):
    """Everything that a version is derived from.

    Attributes:
        versions: the upstream datasets of the workspace by id, each with the chain that ends at the last
            block that was read.
        missing: ids of upstream datasets that are not in the workspace.
    """

    versions: Mapping[DatasetId, DatasetEntry]
    missing: list[DatasetId]


_T = TypeVar("_T")


def find_upstream(workspace: Workspace, version: CitedVersion, reporter: Reporter) -> Upstream:
    """Return the upstream datasets of a version.

    An input that was never read, or was compacted since, is returned with its present chain. An input that
    was reset is missing.

    Raises:
        OdfError: a chain cannot be read.
        Cancelled: the operation was cancelled.
    """
    reporter.phase(_PHASE)
    numbers = count(1)
    versions: dict[DatasetId, DatasetEntry] = {}
    missing: dict[DatasetId, None] = {}
    waiting = [version.entry]
    while waiting:
        for dataset_id, block in _read_blocks(waiting.pop(), reporter, numbers).items():
            try:
                entry = workspace.resolve(str(dataset_id))
            except NotFound:
                missing[dataset_id] = None
                continue
            if block is not None and entry.dataset.contains_block(block):
                entry = pin(entry, block)
            elif block is not None and find_current_number(entry.dataset, block) is None:
                missing[dataset_id] = None  # it was reset: the version that was read is gone
                continue
            known = versions.get(dataset_id)
            if known is None or _height(known) < _height(entry):
                versions[dataset_id] = entry
                waiting.append(entry)
    return Upstream(versions, list(missing))


def _height(entry: DatasetEntry) -> int:
    return entry.dataset.state().sequence_number


def _read_blocks(
    entry: DatasetEntry, reporter: Reporter, numbers: Iterator[int]
) -> dict[DatasetId, Multihash | None]:
    """Return the inputs of a chain with the last blocks that its transactions read, or None for none."""
    if entry.dataset.state().kind is model.DatasetKind.Root:
        return {}
    blocks: dict[DatasetId, Multihash | None] = dict.fromkeys(entry.dataset.state().inputs())
    for stored in _counted(entry.dataset.blocks(), reporter, numbers):
        if isinstance(event := stored.block.event, model.ExecuteTransform):
            for item in event.query_inputs:
                blocks[item.dataset_id] = blocks.get(item.dataset_id) or item.last_block
    return blocks


def _counted(
    blocks: Iterable[_T], reporter: Reporter, numbers: Iterator[int], total: int | None = None
) -> Iterator[_T]:
    """Yield the blocks of a chain, and report how many blocks of all chains were read."""
    for block in blocks:
        reporter.raise_if_cancelled()
        yield block
        reporter.set_amounts(files=next(numbers), total_files=total)


def write_prov(version: CitedVersion, upstream: Upstream, reporter: Reporter) -> str:
    """Return the lineage of a version and of everything upstream of it, as PROV-JSON.

    Raises:
        OdfError: a chain cannot be read.
        Cancelled: the operation was cancelled.
    """
    from prov.serializers.provjson import encode_json_document  # an optional package

    lineage = _Lineage()
    entries = (*upstream.versions.values(), version.entry)
    total = sum(entry.dataset.state().blocks for entry in entries)
    reporter.phase(_PHASE)
    numbers = count(1)
    for entry in entries:
        lineage.add_chain(entry, _counted(_with_declarations(entry), reporter, numbers, total))
    reporter.raise_if_cancelled()
    # ProvDocument.serialize takes three times as long.
    return json.dumps(encode_json_document(lineage.document))


class _Lineage:
    """Adds chains to a document. Each entity and agent is added once."""

    def __init__(self) -> None:
        from prov.model import ProvDocument  # an optional package

        self.document = ProvDocument()
        for prefix, uri in _NAMESPACES.items():
            self.document.add_namespace(prefix, uri)
        self._known: set[str] = set()

    def add_chain(self, entry: DatasetEntry, blocks: Iterable[tuple[StoredBlock, _Declared]]) -> None:
        """Add the data blocks of a chain, and its newest block."""
        state = entry.dataset.state()
        attributes = {
            "prov:label": str(entry.alias),
            "prov:type": self._type("odf:Dataset"),
            "odf:kind": state.kind.value,
            "odf:description": (state.info and state.info.description) or None,
        }
        self._add_entity(_dataset_name(state.dataset_id), attributes)
        previous = ""
        for stored, declared in blocks:
            event = stored.block.event
            name = f"block:{stored.hash}"
            if isinstance(event, model.AddData | model.ExecuteTransform):
                self._add_version(name, state.dataset_id, stored)
                self._add_transaction(name, stored, declared, state.dataset_id)
            elif stored.hash == state.head:
                self._add_version(name, state.dataset_id, stored)
            else:
                continue
            if previous:
                self.document.wasRevisionOf(name, previous)
            previous = name

    def _type(self, name: str) -> Any:
        return self.document.valid_qualified_name(name)

    def _add_entity(self, name: str, attributes: Mapping[str, Any]) -> None:
        if name not in self._known:
            self._known.add(name)
            self.document.entity(name, _present(attributes))

    def _add_version(self, name: str, dataset: DatasetId, stored: StoredBlock | None = None) -> None:
        """Add a version; one of a chain that is not in the workspace has no ``stored`` block."""
        if name in self._known:
            return
        attributes: dict[str, Any] = {"prov:type": self._type("odf:Version")}
        if stored is not None:
            attributes["odf:sequenceNumber"] = stored.block.sequence_number
            data = getattr(stored.block.event, "new_data", None)
            if data is not None:
                attributes |= {
                    "odf:rows": record_count(data),
                    "odf:firstOffset": data.offset_interval.start,
                    "odf:lastOffset": data.offset_interval.end,
                    "odf:logicalHash": str(data.logical_hash),
                    "odf:physicalHash": str(data.physical_hash),
                }
        self._add_entity(name, attributes)
        self._add_entity(_dataset_name(dataset), {"prov:type": self._type("odf:Dataset")})
        self.document.specializationOf(name, _dataset_name(dataset))

    def _add_transaction(
        self, version: str, stored: StoredBlock, declared: _Declared, dataset: DatasetId
    ) -> None:
        event, moment = stored.block.event, stored.block.system_time.to_datetime()
        activity = f"transaction:{stored.hash}"
        is_ingest = isinstance(event, model.AddData)
        kind = "odf:Ingest" if is_ingest else "odf:Transform"
        self.document.activity(activity, None, moment, {"prov:type": self._type(kind)})
        self.document.wasGeneratedBy(version, activity, moment)
        if isinstance(event, model.ExecuteTransform):
            query = declared.transform and declared.transform.transform
            for item in event.query_inputs:
                if item.last_block is not None:
                    used = f"block:{item.last_block}"
                    self._add_version(used, item.dataset_id)
                    self.document.used(activity, used)
                    self.document.wasDerivedFrom(version, used, activity)
        else:
            assert isinstance(event, model.AddData)
            source = declared.source_of(event)
            query = None if source is None else query_of(source)
            used = self._add_source(event, source, dataset)
            self.document.used(activity, used)
            self.document.wasDerivedFrom(version, used, activity)
        if query is not None:
            self.document.wasAssociatedWith(activity, self._add_engine(query))

    def _add_source(self, event: model.AddData, source: _Source | None, dataset: DatasetId) -> str:
        """Add the data that were ingested: a URL or file in the version of the source's state."""
        fetch = source.fetch if isinstance(source, model.SetPollingSource) else None
        is_push = fetch is None
        source_name = source.source_name if isinstance(source, model.AddPushSource) else ""
        state = push_state(event) if is_push else event.new_source_state
        place = "" if is_push else without_login(describe_location(fetch, state))
        version = describe_source_state(fetch, state)
        key = "\n".join((str(dataset), source_name, place, version))
        name = f"source:{hashlib.sha256(key.encode()).hexdigest()[:32]}"
        self._add_entity(
            name,
            {
                "prov:type": self._type("odf:Source"),
                "prov:location": place or None,
                "prov:label": source_name or None,
                "odf:state": version or None,
            },
        )
        return name

    def _add_engine(self, query: model.Sql) -> str:
        local = f"{query.engine.lower()}-{query.version or 'unknown'}"
        name = f"engine:{local}"
        if not _is_local_name(local):  # third-party text
            name = f"engine:{hashlib.sha256(local.encode()).hexdigest()[:32]}"
        if name not in self._known:
            self._known.add(name)
            attributes = {"prov:label": query.engine, "odf:version": query.version}
            self.document.agent(name, {"prov:type": self._type("prov:SoftwareAgent"), **_present(attributes)})
        return name


_Source = model.SetPollingSource | model.AddPushSource


class _Declared:
    """The sources and the query that a block of a chain uses."""

    def __init__(self) -> None:
        self.transform: model.SetTransform | None = None
        self._polling: model.SetPollingSource | None = None
        self._push: dict[str, model.AddPushSource] = {}

    def apply(self, event: Any) -> None:
        """Follow an event."""
        match event:
            case model.SetTransform():
                self.transform = event
            case model.SetPollingSource():
                self._polling = event
            case model.DisablePollingSource():
                self._polling = None
            case model.AddPushSource():
                self._push[event.source_name] = event
            case model.DisablePushSource():
                self._push.pop(event.source_name, None)

    def source_of(self, event: model.AddData) -> _Source | None:
        """Return the source of ingested rows, or None if the chain does not tell it."""
        if (state := push_state(event)) is not None:
            return self._push.get(state.source_name)
        if self._polling is not None:
            return self._polling
        if event.new_source_state is not None:
            return None  # of a source outside the chain
        return next(iter(self._push.values())) if len(self._push) == 1 else None


def _with_declarations(entry: DatasetEntry) -> Iterator[tuple[StoredBlock, _Declared]]:
    declared = _Declared()
    for stored in entry.dataset.blocks(newest_first=False):
        declared.apply(stored.block.event)
        yield stored, declared


def _dataset_name(dataset: DatasetId) -> str:
    return f"did:{dataset.multibase}"


def _present(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _is_local_name(text: str) -> bool:
    return text.isascii() and all(character.isalnum() or character in "-.+_" for character in text)
