"""Whether what an engine elsewhere wrote is what the contract asks for (specification: Engine Contract)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from odf_engine.data.changelog import Op
from odf_engine.data.digest import digest_file, physical_hash
from odf_engine.data.kernels import pc
from odf_engine.data.parquet_reader import read_parquet_schema
from odf_engine.data.slices import WrittenSlice, read_batches
from odf_engine.errors import BadData
from odf_engine.metadata.model import Checkpoint, DatasetVocabulary, OffsetInterval, TransformRequest
from odf_engine.transform.contract import Result


def accepted(
    request: TransformRequest, interval: OffsetInterval | None, declared: pa.Schema | None
) -> Result:
    """What the engine wrote, read once and found to be right.

    Args:
        request: says where the files are, and what they have to be.
        interval: the offsets that the engine says it wrote; None for no rows.
        declared: the schema of the dataset; None before it has one.

    Raises:
        BadData: what it wrote is not what the contract asks for, in one sentence.
    """
    path = Path(request.new_data_path)
    if interval is None:
        if path.exists() and pq.read_metadata(path).num_rows:
            raise BadData("it wrote rows, and says that there are none")
        schema = declared if declared is not None else pa.schema([])
        return Result(None, schema, _checkpoint(request))
    if path.is_symlink() or not path.is_file():
        raise BadData("it says that there are rows, and wrote no file")
    schema = read_parquet_schema(path).remove_metadata()
    _check_schema(schema, request.vocab, declared)
    end = _check_rows(path, schema, request)
    if (interval.start, interval.end) != (request.next_offset, end):
        raise BadData(f"it says offsets {interval.start} to {interval.end}, and wrote others")
    found = digest_file(path)
    written = WrittenSlice(
        path, found.logical_hash, found.physical_hash, found.size, found.rows, interval, None, None
    )
    return Result(written, schema if declared is None else declared, _checkpoint(request))


def _check_schema(schema: pa.Schema, vocab: DatasetVocabulary, declared: pa.Schema | None) -> None:
    checks: dict[str, Callable[[pa.DataType], bool]] = {
        vocab.offset_column: types.is_integer,
        vocab.operation_type_column: types.is_integer,
        vocab.system_time_column: _is_moment,
        vocab.event_time_column: lambda kind: types.is_date(kind) or _is_moment(kind),
    }
    if schema.names[: len(checks)] != list(checks):
        there, wanted = ", ".join(schema.names[: len(checks)]), ", ".join(checks)
        raise BadData(f"its columns begin with {there}, not {wanted}")
    for name, check in checks.items():
        if not check(schema.field(name).type):
            raise BadData(f"its column '{name}' is of the type {schema.field(name).type}")
    if declared is not None and [(each.name, each.type) for each in schema] != [
        (each.name, each.type) for each in declared
    ]:
        raise BadData(f"its columns are not those of the dataset: {', '.join(schema.names)}")


def _is_moment(kind: pa.DataType) -> bool:
    return types.is_timestamp(kind) and kind.unit == "ms" and kind.tz in ("UTC", "+00:00")


def _check_rows(path: Path, schema: pa.Schema, request: TransformRequest) -> int:
    """Looks at the system columns of each row; the last offset."""
    expected, before = request.next_offset, int(Op.APPEND)
    latest = request.system_time.ms
    for batch in read_batches(path, schema.names[:4]):
        offsets, operations, system_times, event_times = batch.columns
        wanted = pa.array(range(expected, expected + batch.num_rows), pa.int64())
        if offsets.null_count or not pc.all(pc.equal(offsets.cast(pa.int64()), wanted)).as_py():
            raise BadData("its offsets do not go on from those of the dataset")
        if event_times.null_count:
            raise BadData("it wrote rows without an event time")
        if system_times.null_count or pc.any(pc.greater(system_times.cast(pa.int64()), latest)).as_py():
            raise BadData("it wrote rows with a later system time than that of the transaction")
        before = _check_operations(operations, before)
        expected += batch.num_rows
    if before == Op.CORRECT_FROM:
        raise BadData("it wrote the old row of a correction without the new one")
    return expected - 1


def _check_operations(operations: pa.Array, before: int) -> int:
    """Corrections are pairs, the new row directly after the old one; the last operation."""
    codes = operations.cast(pa.int64())
    known = pa.array([int(each) for each in Op], pa.int64())
    if codes.null_count or not pc.all(pc.is_in(codes, value_set=known)).as_py():
        raise BadData("it wrote rows with an operation that there is not")
    previous = pa.concat_arrays([pa.array([before], pa.int64()), codes.slice(0, len(codes) - 1)])
    after_old, is_new = pc.equal(previous, int(Op.CORRECT_FROM)), pc.equal(codes, int(Op.CORRECT_TO))
    if not pc.all(pc.equal(after_old, is_new)).as_py():
        raise BadData("it wrote a correction whose old and new row are not next to each other")
    return codes[-1].as_py()


def _checkpoint(request: TransformRequest) -> Checkpoint | None:
    """What the engine left of its state, if anything."""
    path = Path(request.new_checkpoint_path)
    if not path.exists() and not path.is_symlink():
        return None
    if path.is_symlink() or not path.is_file():
        raise BadData("its checkpoint is no file")
    found, size = physical_hash(path)
    return Checkpoint(physical_hash=found, size=size)
