"""A query over files, without state, offsets or system columns (specification: Raw Query)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from odf_engine.errors import NotFound
from odf_engine.metadata.model import RawQueryRequest
from odf_engine.progress import Reporter
from odf_engine.spark.errors import translated
from odf_engine.spark.frames import arrow_batches
from odf_engine.spark.query import run_query
from odf_engine.spark.readers import spark_path

if TYPE_CHECKING:
    from odf_engine.spark.session import SparkSession

INPUT: Final = "input"


def raw_query(session: SparkSession, request: RawQueryRequest, reporter: Reporter) -> int:
    """Writes the result to the request's output path; how many records it has. Without any there is no file.

    Raises:
        NotFound: an input file is missing.
        InvalidQuery: the query is wrong.
        BadData: a value that cannot be computed.
        Cancelled: nothing is left.
    """
    for path in request.input_data_paths:
        if not Path(path).is_file():
            raise NotFound("there is no such input file", where=path)
    with translated():
        frame = session.read.parquet(*(spark_path(Path(path)) for path in request.input_data_paths))
    result = run_query(session, {INPUT: frame}, request.transform.queries or [])
    schema, batches = arrow_batches(result, reporter)
    output = Path(request.output_data_path)
    rows = 0
    try:
        with pq.ParquetWriter(output, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
    except BaseException:
        output.unlink(missing_ok=True)
        raise
    if not rows:
        output.unlink()
    return rows
