"""Manifests and manifest lists of Apache Iceberg, format version 2, for tables without partitions.

A snapshot adds one file. Ten manifests with the same number of files are merged into one, so that a manifest
list has few manifests, and a file is merged once for each power of ten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

import msgspec

from odf_engine.tables.avro_file import decode_long, encode_file, encode_record, split_records
from odf_engine.tables.iceberg_types import encode_bounds
from odf_engine.tables.table_files import TableFile
from odf_engine.tables.table_folder import TableFolder

_MERGED: Final = 10
_EXISTING: Final = b"\0"
"""The first byte of an entry whose file an earlier snapshot has added."""


def _field(number: int, name: str, data_type: Any) -> dict[str, Any]:
    return {"name": name, "type": data_type, "field-id": number}


def _optional(number: int, name: str, data_type: Any) -> dict[str, Any]:
    return {**_field(number, name, ["null", data_type]), "default": None}


def _map(key: int, value: int, data_type: str) -> dict[str, Any]:
    fields = [_field(key, "key", "int"), _field(value, "value", data_type)]
    items = {"type": "record", "name": f"k{key}_v{value}", "fields": fields}
    return {"type": "array", "logicalType": "map", "items": items}


_DATA_FILE: Final = {
    "type": "record",
    "name": "r2",
    "fields": [
        _field(134, "content", "int"),
        _field(100, "file_path", "string"),
        _field(101, "file_format", "string"),
        _field(102, "partition", {"type": "record", "name": "r102", "fields": []}),
        _field(103, "record_count", "long"),
        _field(104, "file_size_in_bytes", "long"),
        _optional(109, "value_counts", _map(119, 120, "long")),
        _optional(110, "null_value_counts", _map(121, 122, "long")),
        _optional(125, "lower_bounds", _map(126, 127, "bytes")),
        _optional(128, "upper_bounds", _map(129, 130, "bytes")),
    ],
}
_ENTRY: Final = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [
        _field(0, "status", "int"),
        _optional(1, "snapshot_id", "long"),
        _optional(3, "sequence_number", "long"),
        _optional(4, "file_sequence_number", "long"),
        _field(2, "data_file", _DATA_FILE),
    ],
}
_MANIFEST: Final = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _field(500, "manifest_path", "string"),
        _field(501, "manifest_length", "long"),
        _field(502, "partition_spec_id", "int"),
        _field(517, "content", "int"),
        _field(515, "sequence_number", "long"),
        _field(516, "min_sequence_number", "long"),
        _field(503, "added_snapshot_id", "long"),
        _field(504, "added_files_count", "int"),
        _field(505, "existing_files_count", "int"),
        _field(506, "deleted_files_count", "int"),
        _field(512, "added_rows_count", "long"),
        _field(513, "existing_rows_count", "long"),
        _field(514, "deleted_rows_count", "long"),
    ],
}

_ONE_ADDED_FILE: Final = {
    "partition_spec_id": 0,
    "content": 0,
    "added_files_count": 1,
    "deleted_files_count": 0,
    "deleted_rows_count": 0,
}


class Manifest(NamedTuple):
    """A manifest in a manifest list.

    Attributes:
        name: its file name, which has the attributes below.
        record: its record in the list.
        first: the number of the first block whose file it has.
        files: the number of its files.
        rows: the number of their rows.
    """

    name: str
    record: bytes
    first: int
    files: int
    rows: int


def read_manifests(data: bytes) -> list[Manifest]:
    """Return the manifests of a manifest list."""
    manifests: list[Manifest] = []
    for record in split_records(data):
        length, start = decode_long(record, 0)
        name = PurePosixPath(record[start : start + length].decode()).name
        _, first, files, rows, _ = name.split("-", 4)
        manifests.append(Manifest(name, record, int(first), int(files), int(rows)))
    return manifests


class ManifestWriter:
    """Writes the manifests of snapshots.

    Attributes:
        written: the names of the written files.
    """

    def __init__(self, folder: TableFolder, location: str) -> None:
        self._folder, self._location = folder, location
        self.written: list[str] = []

    def add_file(
        self,
        manifests: Sequence[Manifest],
        file: TableFile,
        path: str,
        number: int,
        suffix: str,
        schema: Mapping[str, Any],
    ) -> list[Manifest]:
        """Write the manifest of a snapshot with a new file; return the manifests of the snapshot.

        Args:
            manifests: the manifests of the snapshot before.
            file: the new file.
            path: its location.
            number: the number of the block, and of the snapshot.
            suffix: a part of the name of the manifest that identifies the block.
            schema: the schema of the table.
        """
        entry = encode_record(_ENTRY, _entry(file, path, number, schema))
        kept, size = list(manifests), 1
        merged: list[Manifest] = []
        while [manifest.files for manifest in kept[1 - _MERGED :]] == [size] * (_MERGED - 1):
            merged = kept[1 - _MERGED :] + merged
            kept, size = kept[: 1 - _MERGED], size * _MERGED
        existing = [
            _EXISTING + record[1:]
            for manifest in merged
            for record in split_records(self._folder.read(manifest.name))
        ]
        rows = sum(manifest.rows for manifest in merged)
        first = merged[0].first if merged else number
        name = f"{number:08}-{first}-{size}-{rows + file.rows}-{suffix}.avro"
        header = {
            "schema": msgspec.json.encode(schema).decode(),
            "schema-id": str(schema["schema-id"]),
            "partition-spec": "[]",
            "partition-spec-id": "0",
            "format-version": "2",
            "content": "data",
        }
        data = encode_file(_ENTRY, header, [*existing, entry])
        self._write(name, data)
        counts = {
            "manifest_path": f"{self._location}/{name}",
            "manifest_length": len(data),
            "sequence_number": number,
            "min_sequence_number": first,
            "added_snapshot_id": number,
            "existing_files_count": size - 1,
            "added_rows_count": file.rows,
            "existing_rows_count": rows,
        }
        record = encode_record(_MANIFEST, _ONE_ADDED_FILE | counts)
        return [*kept, Manifest(name, record, first, size, rows + file.rows)]

    def write_list(self, manifests: Sequence[Manifest], number: int, parent: int | None, suffix: str) -> str:
        """Write the manifest list of a snapshot; return its location."""
        header = {
            "snapshot-id": str(number),
            "parent-snapshot-id": "null" if parent is None else str(parent),
            "sequence-number": str(number),
            "format-version": "2",
        }
        name = f"{number:08}-snapshot-{suffix}.avro"
        self._write(name, encode_file(_MANIFEST, header, [manifest.record for manifest in manifests]))
        return f"{self._location}/{name}"

    def _write(self, name: str, data: bytes) -> None:
        self._folder.write(name, data, sync=False)
        self.written.append(name)


def _entry(file: TableFile, path: str, number: int, schema: Mapping[str, Any]) -> dict[str, Any]:
    fields = {field["name"]: field for field in schema["fields"]}
    counts: list[dict[str, Any]] = []
    nulls: list[dict[str, Any]] = []
    lower: list[dict[str, Any]] = []
    upper: list[dict[str, Any]] = []
    for name, column in file.bounds.items():
        if (field := fields.get(name)) is None:
            continue
        counts.append({"key": field["id"], "value": file.rows})
        if column.nulls is not None:
            nulls.append({"key": field["id"], "value": column.nulls})
        if (bounds := encode_bounds(column, field["type"])) is not None:
            lower.append({"key": field["id"], "value": bounds[0]})
            upper.append({"key": field["id"], "value": bounds[1]})
    data_file = {
        "content": 0,
        "file_path": path,
        "file_format": "PARQUET",
        "partition": {},
        "record_count": file.rows,
        "file_size_in_bytes": file.size,
        "value_counts": counts,
        "null_value_counts": nulls,
        "lower_bounds": lower,
        "upper_bounds": upper,
    }
    return {
        "status": 1,
        "snapshot_id": number,
        "sequence_number": number,
        "file_sequence_number": number,
        "data_file": data_file,
    }
