"""Apache Iceberg: the metadata of a table whose data files are the slices of a dataset.

A block with rows is a snapshot. Its id and sequence number are the number of the block. The table has its own
folder, since programs may remove files in it that the table does not use. The locations of files are
absolute; if the workspace was moved, the table is written again.
"""

from __future__ import annotations

import operator
import re
import uuid
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from odf_engine.chain.block_summary import SliceSummary
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.schema_evolution import read_declaration
from odf_engine.chain.state import ChainState
from odf_engine.errors import Conflict
from odf_engine.metadata.model import SetDataSchema
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.tables.avro_file import split_records
from odf_engine.tables.iceberg_manifests import Manifest, ManifestWriter, read_manifests
from odf_engine.tables.iceberg_types import IcebergSchemas
from odf_engine.tables.table_files import (
    OnProgress,
    describe_slice_file,
    first_schema,
    slice_name,
    with_fetched_slices,
)
from odf_engine.tables.table_folder import TableFolder

VERSION_HINT: Final = "version-hint.text"
"""File with the number of the newest metadata file."""
_METADATA: Final = re.compile(r"v(\d+)\.metadata\.json")
_MANIFEST: Final = re.compile(r"(\d{8,})-.+\.avro")
_HEAD: Final = "odf.head"
_HEAD_NUMBER: Final = "odf.head-sequence-number"
_BLOCK: Final = "odf.block"


class _Metadata(msgspec.Struct, rename="kebab"):
    """The parts of a metadata file that the next one depends on. Snapshots are not decoded."""

    location: str = ""
    properties: dict[str, str] = {}
    snapshots: list[msgspec.Raw] = []
    snapshot_log: list[msgspec.Raw] = []


class IcebergTable:
    """The Iceberg table of a dataset. Changes require a lock of the caller.

    Args:
        dataset: the dataset.
        folder: the folder of the metadata.
        location: the location of the table, whose metadata are in that folder.
        data: the location of the folder of the dataset.
    """

    def __init__(self, dataset: Dataset, folder: TableFolder, location: str, data: str) -> None:
        self._dataset, self._folder = dataset, folder
        self._location, self._data = location, data

    def update(self, on_progress: OnProgress, *, thorough: bool = False) -> int:
        """Add the snapshots that the table lacks; return the number of the newest block.

        Args:
            on_progress: receives the numbers of added snapshots and of snapshots to add.
            thorough: whether all files are read. If one is damaged, all are written again.

        Raises:
            NotFound, BadData: a block or a slice is missing or damaged.
            Unsupported: Iceberg does not have the type of a column.
            Conflict: the history was replaced in the meantime.
            OdfError: the metadata cannot be written.
        """
        version, old = self._read()
        # The table was read before: if it is newer than the head, it is outdated, not another machine's.
        self._dataset.refresh()
        head = self._dataset.state()
        kept = self._count_common(old, head)
        if thorough and not self._are_intact(old.snapshots[:kept]):
            kept = 0
        elif self._head_of(old) == (head.sequence_number, str(head.head)):
            return head.sequence_number
        snapshots = old.snapshots[:kept]
        log = old.snapshot_log[:kept]
        last = msgspec.json.decode(snapshots[-1]) if snapshots else None
        common = -1 if last is None else None if kept == len(old.snapshots) else last["snapshot-id"]
        schemas, writer = self._schemas(), ManifestWriter(self._folder, f"{self._location}/metadata")
        for snapshot in self._new_snapshots(last, head, schemas, writer, on_progress):
            last = snapshot
            snapshots.append(msgspec.Raw(msgspec.json.encode(last)))
            entry = {key: last[key] for key in ("snapshot-id", "timestamp-ms")}
            log.append(msgspec.Raw(msgspec.json.encode(entry)))
        if not self._dataset.contains_block(head.head):
            raise Conflict("the history was replaced in the meantime", hint="write the table again")
        self._folder.sync(writer.written)
        name = str(head.dataset_id)
        document = {
            **table_document(name, self._location, head.system_time, schemas[1], last),
            "snapshots": snapshots,
            "snapshot-log": log,
        }
        document["properties"] |= {_HEAD: str(head.head), _HEAD_NUMBER: str(head.sequence_number)}
        self._folder.write(metadata_name(version + 1), msgspec.json.encode(document))
        self._folder.write(VERSION_HINT, str(version + 1).encode())
        self._remove_unused(version, common, writer.written)
        return head.sequence_number

    def _new_snapshots(
        self,
        last: dict[str, Any] | None,
        head: ChainState,
        schemas: tuple[Sequence[int], IcebergSchemas],
        writer: ManifestWriter,
        on_progress: OnProgress,
    ) -> Iterator[dict[str, Any]]:
        """Write the manifests of the slices after a snapshot, and yield their snapshots."""
        manifests = self._manifests(last)
        new = self._new_slices(last, head)
        for done, row in enumerate(with_fetched_slices(self._dataset, new, lambda row: row), 1):
            number, block = row.sequence_number, self._dataset.block_hash(row.sequence_number)
            schema = schemas[1].schemas[max(bisect_left(schemas[0], number) - 1, 0)]
            file = describe_slice_file(self._dataset, row)
            path = f"{self._data}/{file.path}"
            manifests = writer.add_file(manifests, file, path, number, block.abbreviated, schema)
            parent = None if last is None else last["snapshot-id"]
            last = {
                "snapshot-id": number,
                **({} if parent is None else {"parent-snapshot-id": parent}),
                "sequence-number": number,
                "timestamp-ms": row.system_time.ms,
                "manifest-list": writer.write_list(manifests, number, parent, block.abbreviated),
                "summary": {
                    "operation": "append",
                    "added-data-files": "1",
                    "added-records": str(file.rows),
                    "total-data-files": str(sum(item.files for item in manifests)),
                    "total-records": str(sum(item.rows for item in manifests)),
                    _BLOCK: str(block),
                    "odf.sequence-number": str(number),
                    "odf.last-offset": str(row.end),
                },
                "schema-id": schema["schema-id"],
            }
            yield last
            on_progress(done, len(new))

    def is_intact(self) -> bool:
        """Return whether the table is at the head of the chain, and all files are complete."""
        _, metadata = self._read()
        self._dataset.refresh()
        head = self._dataset.state()
        is_current = self._head_of(metadata) == (head.sequence_number, str(head.head))
        return is_current and self._are_intact(metadata.snapshots)

    def _are_intact(self, snapshots: Sequence[msgspec.Raw]) -> bool:
        """Return whether snapshots are the first slices of the chain, and their manifests are complete."""
        slices = self._dataset.slices()
        locations = [f"{self._data}/{slice_name(self._dataset, row)}".encode() for row in slices]
        numbers = [row.sequence_number for row in slices]
        intact = set[bytes]()
        self._folder.prefetch([name for name in self._folder.names() if _MANIFEST.fullmatch(name)])
        try:
            for count, raw in enumerate(snapshots, 1):
                snapshot, number = msgspec.json.decode(raw), numbers[count - 1]
                manifests = self._manifests(snapshot)
                if snapshot["summary"][_BLOCK] != str(self._dataset.block_hash(number)):
                    return False
                if sum(manifest.files for manifest in manifests) != count:
                    return False
                for manifest in manifests:
                    first = bisect_left(numbers, manifest.first)
                    expected = locations[first : first + manifest.files]
                    if manifest.record not in intact and not self._has_files(manifest, expected):
                        return False
                    intact.add(manifest.record)
        except (OSError, LookupError, TypeError, ValueError):
            return False
        return True

    def _has_files(self, manifest: Manifest, locations: Sequence[bytes]) -> bool:
        entries = list(split_records(self._folder.read(manifest.name)))
        return len(entries) == len(locations) and all(map(operator.contains, entries, locations))

    def _read(self) -> tuple[int, _Metadata]:
        """Return the version of the metadata, and the metadata, empty if they have to be written again."""
        try:
            version = int(self._folder.read(VERSION_HINT))
        except (OSError, ValueError):
            matches = filter(None, map(_METADATA.fullmatch, self._folder.names()))
            return max((int(match[1]) for match in matches), default=0), _Metadata()
        try:
            metadata = msgspec.json.decode(self._folder.read(metadata_name(version)), type=_Metadata)
        except (OSError, msgspec.MsgspecError):
            return version, _Metadata()
        return version, metadata if metadata.location == self._location else _Metadata()

    def _head_of(self, metadata: _Metadata) -> tuple[int, str]:
        properties = metadata.properties
        return int(properties.get(_HEAD_NUMBER, -1)), properties.get(_HEAD, "")

    def _count_common(self, metadata: _Metadata, head: ChainState) -> int:
        """Return the number of snapshots whose blocks are in the chain."""
        number, block = self._head_of(metadata)
        if 0 <= number <= head.sequence_number and str(self._dataset.block_hash(number)) == block:
            return len(metadata.snapshots)

        def differs(raw: msgspec.Raw) -> bool:
            snapshot = msgspec.json.decode(raw)
            known = snapshot["snapshot-id"]
            if known > head.sequence_number:
                return True
            return snapshot["summary"].get(_BLOCK) != str(self._dataset.block_hash(known))

        return bisect_left(metadata.snapshots, True, key=differs)

    def _schemas(self) -> tuple[Sequence[int], IcebergSchemas]:
        """Return the numbers of the blocks with schemas, and the schemas."""
        schemas, numbers = IcebergSchemas(), list[int]()
        for row in self._dataset.list_blocks(self._dataset.state().blocks, kinds=("SetDataSchema",))[::-1]:
            event = self._dataset.block(row.hash).block.event
            if isinstance(event, SetDataSchema) and (schema := read_declaration(event)) is not None:
                schemas.add(schema)
                numbers.append(row.sequence_number)
        if not numbers:
            schemas.add(first_schema(self._dataset))
            numbers.append(0)
        return numbers, schemas

    def _manifests(self, snapshot: dict[str, Any] | None) -> list[Manifest]:
        if snapshot is None:
            return []
        name = snapshot["manifest-list"].rpartition("/")[2]
        return read_manifests(self._folder.read(name))

    def _new_slices(self, last: dict[str, Any] | None, head: ChainState) -> list[SliceSummary]:
        first = 0 if last is None else int(last["summary"]["odf.last-offset"]) + 1
        return [row for row in self._dataset.slices(first) if row.sequence_number <= head.sequence_number]

    def _remove_unused(self, version: int, common: int | None, written: Sequence[str]) -> None:
        """Remove the metadata before a version, and the manifests after the last common block.

        ``common`` is None if no snapshot was replaced.
        """
        self._folder.remove(metadata_name(version - 1))
        if common is None:
            return
        for name in self._folder.names():
            manifest = _MANIFEST.fullmatch(name)
            if manifest is not None and int(manifest[1]) > common and name not in written:
                self._folder.remove(name)


def metadata_name(version: int) -> str:
    """Return the name of a metadata file."""
    return f"v{version}.metadata.json"


def table_document(
    name: str, location: str, time: Timestamp, schemas: IcebergSchemas, last: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the content of a metadata file, without snapshots.

    Args:
        name: a text that identifies the table.
        location: the location of the table.
        time: when it was updated.
        schemas: its schemas.
        last: the current snapshot, or None if there is none.
    """
    mapping = msgspec.json.encode(schemas.name_mapping()).decode()
    current = {} if last is None else {"current-snapshot-id": last["snapshot-id"]}
    main = {"main": {"snapshot-id": last["snapshot-id"], "type": "branch"}} if last is not None else {}
    return {
        "format-version": 2,
        "table-uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, name)),
        "location": location,
        "last-sequence-number": 0 if last is None else last["sequence-number"],
        "last-updated-ms": time.ms,
        "last-column-id": schemas.last_id,
        "current-schema-id": schemas.schemas[-1]["schema-id"],
        "schemas": schemas.schemas,
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {
            "schema.name-mapping.default": mapping,
            "gc.enabled": "false",  # other programs must not delete data files
        },
        **current,
        "refs": main,
        "metadata-log": [],
    }
