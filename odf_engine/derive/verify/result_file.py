"""Compares a file with the rows that a query proof describes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyarrow import csv

from odf_engine.base.arrow import pa, types
from odf_engine.base.progress import Reporter
from odf_engine.data.ddl import parse_ddl
from odf_engine.data.digest import LogicalHasher, digest_file
from odf_engine.derive.verify.finding_kinds import ProofFinding
from odf_engine.errors import BadData, NotFound, Unsupported
from odf_engine.rows.query_proof import ResultSummary

_BLOCK_BYTES: Final = 4 << 20


def check_result_file(path: Path, result: ResultSummary, reporter: Reporter) -> ProofFinding | None:
    """Return how a CSV or Parquet file differs from the rows of a proof, or None if it has these rows.

    The file must have the row order of the output of ``odf sql``.

    Raises:
        NotFound: there is no such file.
        BadData: the file is damaged.
        Unsupported: the file has another format, or a column whose values CSV cannot express.
    """
    if not path.is_file():
        raise NotFound("file not found", where=str(path))
    match path.suffix.lower():
        case ".parquet":
            digest = digest_file(path)
            rows, computed = digest.rows, str(digest.logical_hash)
        case ".csv":
            rows, computed = _hash_csv(path, _schema(result), reporter)
        case _:
            raise Unsupported(
                "only CSV and Parquet files can be compared with a proof",
                where=str(path),
                hint="write the result with odf sql --proof FILE -o RESULT.csv or RESULT.parquet",
            )
    if computed == result.hash:
        return None
    amounts = f": {rows:,} instead of {result.rows:,}" if rows != result.rows else " or their order"
    return ProofFinding("file", f"the rows of {path.name} differ from the rows of the proof{amounts}")


def _schema(result: ResultSummary) -> pa.Schema:
    names = ["`" + column.name.replace("`", "``") + "`" for column in result.columns]
    return parse_ddl([f"{name} {column.type}" for name, column in zip(names, result.columns, strict=True)])


def _hash_csv(path: Path, schema: pa.Schema, reporter: Reporter) -> tuple[int, str]:
    """Return the number of rows of a CSV file, and the logical hash of its values."""
    rows = 0
    with LogicalHasher(schema) as hasher:
        for batch in _batches(path, schema):
            reporter.raise_if_cancelled()
            hasher.update(batch)
            rows += batch.num_rows
            reporter.set_amounts(rows=rows)
        return rows, str(hasher.finish())


def _batches(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    texts = dict.fromkeys(schema.names, pa.string())
    # As `odf sql` writes them: null is empty, an empty text is a pair of quotes.
    convert = csv.ConvertOptions(
        column_types=texts, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    parse = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)  # a row of one null
    try:
        read = csv.ReadOptions(block_size=_BLOCK_BYTES)
        with csv.open_csv(path, read, parse, convert) as reader:
            if reader.schema.names != schema.names:
                raise BadData("the file has other columns than the proof", where=str(path))
            for batch in reader:
                columns = [
                    _parse_texts(column, field, path)
                    for column, field in zip(batch.columns, schema, strict=True)
                ]
                yield pa.record_batch(columns, schema=schema)
    except pa.ArrowInvalid as error:
        raise BadData(f"the file cannot be read: {str(error).splitlines()[0]}", where=str(path)) from None


def _parse_texts(texts: pa.Array, field: pa.Field, path: Path) -> pa.Array:
    try:
        if types.is_binary(field.type) or types.is_fixed_size_binary(field.type):
            raise pa.ArrowNotImplementedError  # Arrow would take the text as bytes
        return texts.cast(field.type)
    except pa.ArrowNotImplementedError:
        raise Unsupported(
            f"column '{field.name}' cannot be compared with CSV",
            where=str(path),
            hint="write the result to a Parquet file",
        ) from None
