"""Delta Lake: the transaction log of a table whose data files are the slices of a dataset.

The version N of the table is the block N of the chain. A block without rows is a version without actions. The
log is in the folder of the dataset, since readers require paths relative to it.

After a change of history, such as a reset, the versions after the last common block are removed, newest
first, and the new ones are added. The log is complete up to its last version at any time.
"""

from __future__ import annotations

import io
import re
import uuid
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import count, takewhile
from typing import Any, Final

import msgspec

from odf_engine.base.arrow import pa, pc, pq
from odf_engine.chain.block_summary import SliceSummary, StoredBlock, summarize_slice
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.schema_evolution import read_declaration
from odf_engine.data.parquet.parquet_reader import parquet_errors
from odf_engine.errors import BadData, Conflict
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import Seed, SetDataSchema, kind_of
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.tables.delta_types import delta_schema, delta_statistics
from odf_engine.tables.table_files import (
    OnProgress,
    TableFile,
    describe_slice_file,
    first_schema,
    slice_name,
    with_fetched_slices,
)
from odf_engine.tables.table_folder import TableFolder

_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")
LAST_CHECKPOINT: Final = "_last_checkpoint"
"""File with the number of the newest checkpoint."""
_FEATURE: Final = "odfReadOnly"
"""Feature of writers that no other program has: they must not write, compact or vacuum the table."""
_MIN_INTERVAL: Final = 100
"""Versions between two checkpoints; at least a tenth of all versions, to limit their total size."""


class DeltaTable:
    """The Delta table of a dataset. Changes require a lock of the caller."""

    def __init__(self, dataset: Dataset, folder: TableFolder) -> None:
        self._dataset, self._folder = dataset, folder

    def update(self, on_progress: OnProgress, *, thorough: bool = False) -> int:
        """Add the versions that the log lacks; return the newest version.

        Args:
            on_progress: receives the numbers of added versions and of versions to add.
            thorough: whether all versions are read, so that damaged ones are replaced.

        Raises:
            NotFound, BadData: a block or a slice is missing or damaged.
            Unsupported: Delta Lake does not have the type of a column.
            Conflict: the history was replaced in the meantime.
            OdfError: the log cannot be written.
        """
        versions, checkpoints = self._list()
        # The log was listed before: versions newer than the head are outdated, not another machine's commits.
        self._dataset.refresh()
        head = self._dataset.state()
        last = next(number for number in count() if number not in versions) - 1
        common = self._last_common(min(last, head.sequence_number))
        if thorough:
            common = self._last_intact(common, checkpoints)
        if max(versions, default=-1) > common or (checkpoints and checkpoints[-1] > common):
            if common < self._first_declaration():  # the first version has the columns of that block
                common = -1
            checkpoints = self._truncate(common, versions, checkpoints)
        if thorough and not self._is_last_checkpoint_current(checkpoints):
            self._write_last_checkpoint(checkpoints)
        newer = takewhile(lambda stored: stored.block.sequence_number > common, self._dataset.blocks())
        blocks = list(newer)[::-1]
        if blocks and common >= 0 and str(blocks[0].block.prev_block_hash) != self._block_of(common):
            raise Conflict("the history was replaced in the meantime", hint="write the table again")
        self._add(blocks, checkpoints, on_progress)
        return common + len(blocks)

    def _add(self, blocks: Sequence[StoredBlock], checkpoints: list[int], on_progress: OnProgress) -> None:
        """Add the versions of blocks."""
        for number, stored in enumerate(with_fetched_slices(self._dataset, blocks, summarize_slice), 1):
            version = stored.block.sequence_number
            data = b"\n".join(map(msgspec.json.encode, self._actions(stored)))
            is_last = number == len(blocks)
            if is_last and blocks[:-1]:  # a version after a power failure implies all earlier ones
                self._folder.sync([commit_name(item.block.sequence_number) for item in blocks[:-1]])
            self._folder.write(commit_name(version), data, stored.block.system_time, sync=is_last)
            since = version - (checkpoints[-1] if checkpoints else 0)
            if since >= max(_MIN_INTERVAL, version // 10):
                self._write_checkpoint(version, checkpoints[-1] if checkpoints else None)
                checkpoints.append(version)
            on_progress(number, len(blocks))

    def is_intact(self) -> bool:
        """Return whether the versions are the blocks of the chain, and all files are complete."""
        versions, checkpoints = self._list()
        self._dataset.refresh()
        head = self._dataset.state().sequence_number
        is_whole = versions == set(range(head + 1)) and self._is_last_checkpoint_current(checkpoints)
        return is_whole and self._last_intact(head, checkpoints) == head

    def _list(self) -> tuple[set[int], list[int]]:
        """Return the versions and the checkpoints in the log."""
        names = self._folder.names()
        versions = {int(match[1]) for name in names if (match := _COMMIT.fullmatch(name))}
        return versions, sorted(int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name)))

    def _last_intact(self, last: int, checkpoints: Sequence[int]) -> int:
        """Return the last version up to ``last`` whose files are complete, as are all before it."""
        slices = {row.sequence_number: row for row in self._dataset.slices()}
        self._folder.prefetch([commit_name(number) for number in range(last + 1)])
        for block in self._dataset.list_blocks(last + 1, last + 1)[::-1]:
            version = block.sequence_number
            if not self._is_version_intact(version, block.hash, slices.get(version)):
                return version - 1
            if version in checkpoints:
                expected = sum(number <= version for number in slices)
                if not self._is_checkpoint_intact(version, expected):
                    return version - 1
        return last

    def _is_version_intact(self, version: int, block: Multihash, row: SliceSummary | None) -> bool:
        """Return whether a log file has the actions of a block. Statistics are not compared."""
        try:
            actions = list(self._read_actions(version))
            if actions[0]["commitInfo"]["odfBlock"] != str(block):
                return False
            if row is not None:
                return actions[1]["add"]["path"] == slice_name(self._dataset, row)
        except (OSError, BadData, LookupError, TypeError):
            return False
        # An error here is not the log's: a slice is damaged.
        expected = list(self._actions(self._dataset.block(block)))
        return actions[1:] == expected[1:] or (version == 0 and len(actions) == len(expected))

    def _is_checkpoint_intact(self, version: int, files: int) -> bool:
        try:
            rows = pq.read_table(io.BytesIO(self._folder.read(checkpoint_name(version))))
            return len(rows) - rows.column("add").null_count == files
        except parquet_errors():
            return False

    def _is_last_checkpoint_current(self, checkpoints: Sequence[int]) -> bool:
        """Return whether the newest checkpoint is the one that readers begin with."""
        try:
            named = msgspec.json.decode(self._folder.read(LAST_CHECKPOINT))["version"]
        except FileNotFoundError:
            named = None
        except (OSError, msgspec.MsgspecError, LookupError, TypeError):
            return False
        return named == (checkpoints[-1] if checkpoints else None)

    def _first_declaration(self) -> int:
        """Return the number of the first block that declares columns, or 0 if there is none."""
        declared = self._dataset.list_blocks(self._dataset.state().blocks, kinds=("SetDataSchema",))
        return declared[-1].sequence_number if declared else 0

    def _last_common(self, last: int) -> int:
        """Return the last version up to ``last`` whose block is in the chain, or -1 if there is none."""

        def differs(version: int) -> bool:
            return self._block_of(version) != str(self._dataset.block_hash(version))

        if last < 0 or not differs(last):
            return last
        return bisect_left(range(last), True, key=differs) - 1

    def _block_of(self, version: int) -> str | None:
        """Return the hash of the block of a version, or None if another program has written the version."""
        try:
            first, _, _ = self._folder.read(commit_name(version)).partition(b"\n")
            return msgspec.json.decode(first)["commitInfo"]["odfBlock"]
        except (OSError, msgspec.MsgspecError, KeyError, TypeError):
            return None

    def _truncate(self, common: int, versions: set[int], checkpoints: Sequence[int]) -> list[int]:
        """Remove the versions after a common one; return the remaining checkpoints."""
        remaining = [version for version in checkpoints if version <= common]
        self._write_last_checkpoint(remaining)
        for version in checkpoints[len(remaining) :]:
            self._folder.remove(checkpoint_name(version))
        for version in sorted(versions, reverse=True):
            if version > common:
                self._folder.remove(commit_name(version))
        return remaining

    def _actions(self, stored: StoredBlock) -> Iterator[dict[str, Any]]:
        """Yield the actions of the version of a block."""
        block, event = stored.block, stored.block.event
        yield commit_info(stored.hash, block.sequence_number, block.system_time, kind_of(event), {})
        if isinstance(event, Seed):
            yield from self._declare(first_schema(self._dataset), stored)
        elif isinstance(event, SetDataSchema) and (schema := read_declaration(event)) is not None:
            yield from self._declare(schema, stored)
        if (row := summarize_slice(stored)) is not None:
            yield add_action(describe_slice_file(self._dataset, row), row.system_time)

    def _declare(self, schema: pa.Schema, stored: StoredBlock) -> Iterator[dict[str, Any]]:
        return declare_table(schema, str(self._dataset.state().dataset_id), stored.block.system_time)

    def _write_checkpoint(self, version: int, previous: int | None) -> None:
        """Write all files of a version to one file, from the previous one and the versions since."""
        first = 0 if previous is None else previous + 1
        self._folder.prefetch([commit_name(number) for number in range(first, version)])
        actions = [action for number in range(first, version + 1) for action in self._read_actions(number)]
        tables: list[pa.Table] = []
        if previous is not None:
            old = pq.read_table(io.BytesIO(self._folder.read(checkpoint_name(previous))))
            tables.append(old.filter(pc.is_valid(old.column("add"))))
            settings = old.filter(pc.is_null(old.column("add"))).to_pylist()
            actions = [action for row in settings for action in _split_row(row)] + actions
        newest = {kind: action for action in actions for kind in action if kind in ("protocol", "metaData")}
        added = [action for action in actions if "add" in action]
        tables.append(pa.Table.from_pylist([*newest.values(), *added], checkpoint_schema()))
        rows = pa.concat_tables(tables)
        self._folder.write(checkpoint_name(version), encode_checkpoint(rows))
        self._write_last_checkpoint([version])

    def _write_last_checkpoint(self, checkpoints: Sequence[int]) -> None:
        """Let readers begin with the newest checkpoint."""
        if not checkpoints:
            self._folder.remove(LAST_CHECKPOINT)
            return
        data = self._folder.read(checkpoint_name(checkpoints[-1]))
        last = {"version": checkpoints[-1], "size": pq.read_metadata(io.BytesIO(data)).num_rows}
        self._folder.write(LAST_CHECKPOINT, msgspec.json.encode(last))

    def _read_actions(self, version: int) -> Iterator[dict[str, Any]]:
        name = commit_name(version)
        for line in self._folder.read(name).splitlines():
            try:
                yield msgspec.json.decode(line)
            except msgspec.MsgspecError as error:
                hint = "remove the table with odf view --remove, and write it again"
                raise BadData(f"the log cannot be read: {error}", where=name, hint=hint) from error


def declare_table(schema: pa.Schema, name: str, time: Timestamp) -> Iterator[dict[str, Any]]:
    """Yield the actions that declare the columns of a table.

    Args:
        schema: the columns.
        name: a text that identifies the table.
        time: when it was created.

    Raises:
        Unsupported: Delta Lake does not have the type of a column.
    """
    text = delta_schema(schema)
    extra = ["timestampNtz"] if '"timestamp_ntz"' in text else []
    protocol: dict[str, Any] = {
        "minReaderVersion": 3 if extra else 1,
        "minWriterVersion": 7,
        "writerFeatures": [_FEATURE, *extra],
    }
    yield {"protocol": protocol | ({"readerFeatures": extra} if extra else {})}
    yield {
        "metaData": {
            "id": str(uuid.uuid5(uuid.NAMESPACE_URL, name)),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": text,
            "partitionColumns": [],
            "configuration": {},
            "createdTime": time.ms,
        }
    }


def commit_info(
    block: Multihash, number: int, time: Timestamp, operation: str, parameters: dict[str, str]
) -> dict[str, Any]:
    """Return the action that describes a version.

    Args:
        block: the hash of its block.
        number: the sequence number of the block.
        time: the system time of the block.
        operation, parameters: what has changed.
    """
    return {
        "commitInfo": {
            "timestamp": time.ms,
            "operation": operation,
            "operationParameters": parameters,
            "engineInfo": "odf",
            "odfBlock": str(block),
            "odfSequenceNumber": number,
        }
    }


def add_action(file: TableFile, time: Timestamp) -> dict[str, Any]:
    """Return the action that adds a data file."""
    return {
        "add": {
            "path": file.path,
            "partitionValues": {},
            "size": file.size,
            "modificationTime": time.ms,
            "dataChange": True,
            "stats": delta_statistics(file),
        }
    }


def encode_checkpoint(rows: pa.Table) -> bytes:
    """Return the content of a checkpoint."""
    file = io.BytesIO()
    pq.write_table(rows, file)
    return file.getvalue()


def _split_row(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from ({kind: action} for kind, action in row.items() if action is not None)


def checkpoint_schema() -> pa.Schema:
    """Return the columns of a checkpoint."""
    texts, options = pa.list_(pa.string()), pa.map_(pa.string(), pa.string())
    format_ = pa.struct([("provider", pa.string()), ("options", options)])
    return pa.schema(
        {
            "txn": pa.struct([("appId", pa.string()), ("version", pa.int64())]),
            "add": pa.struct(
                [
                    ("path", pa.string()),
                    ("partitionValues", options),
                    ("size", pa.int64()),
                    ("modificationTime", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("stats", pa.string()),
                ]
            ),
            "remove": pa.struct([("path", pa.string()), ("dataChange", pa.bool_())]),
            "metaData": pa.struct(
                [
                    ("id", pa.string()),
                    ("format", format_),
                    ("schemaString", pa.string()),
                    ("partitionColumns", texts),
                    ("configuration", options),
                    ("createdTime", pa.int64()),
                ]
            ),
            "protocol": pa.struct(
                [
                    ("minReaderVersion", pa.int32()),
                    ("minWriterVersion", pa.int32()),
                    ("readerFeatures", texts),
                    ("writerFeatures", texts),
                ]
            ),
        }
    )


def commit_name(version: int) -> str:
    """Return the name of the log file of a version."""
    return f"{version:020}.json"


def checkpoint_name(version: int) -> str:
    """Return the name of the checkpoint of a version."""
    return f"{version:020}.checkpoint.parquet"
