"""What a dataset holds already, as a frame for the merges by key.

After many commits the slices are many small files of mostly superseded rows. Then the newest row of
every key is written to ``info/newest.parquet`` of the dataset, and further merges read that and only
the slices after it. The file is a cache: it says which slice it goes up to and for which key, and is
made anew when it does not fit the chain, is damaged or missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.chain.chain import Dataset, SliceRow
from odf_engine.data.changelog import Op
from odf_engine.errors import NotFound
from odf_engine.ingest import sql
from odf_engine.metadata.model import DatasetVocabulary, SqlQueryStep
from odf_engine.progress import Reporter
from odf_engine.spark.frames import arrow_batches
from odf_engine.spark.query import run_query
from odf_engine.spark.readers import spark_path
from odf_engine.spark.types import spark_schema

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame
    from odf_engine.spark.session import SparkSession

_MOST_SLICES: Final = 32
"""So many slices are read one by one before they are summed up."""
_VIEW: Final = "odf_history"
_META: Final = b"odf"
_FORM: Final = 1


@dataclass(frozen=True)
class History:
    """How to read it.

    Attributes:
        schema: of the slices.
        scratch: folder for temporary files.
    """

    session: SparkSession
    dataset: Dataset
    schema: pa.Schema
    vocab: DatasetVocabulary
    scratch: Path
    reporter: Reporter

    def frame(self, keys: Sequence[str], live: bool) -> DataFrame | None:
        """Offset, operation, event time and data of all rows that matter; None when there are none.

        Args:
            keys: the primary key.
            live: only keys that were not taken back matter; a ledger never forgets one.

        Raises:
            NotFound: a slice is missing.
        """
        form = self._form(keys, live)
        upto, newer = self._remembered(form)
        if not upto and not newer:
            return None
        if len(newer) > _MOST_SLICES:
            self._sum_up(self._read(upto, newer), newer[-1], keys, live)
            upto, newer = self._remembered(form)
        return self._read(upto, newer)

    @property
    def _path(self) -> Path:
        return self.dataset.folder / "info" / "newest.parquet"

    def _form(self, keys: Sequence[str], live: bool) -> str:
        """Says for which question the file is the answer."""
        parts = [_FORM, list(keys), live, [[field.name, str(field.type)] for field in self.schema]]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _remembered(self, form: str) -> tuple[list[Path], list[SliceRow]]:
        """The file, if it goes with the chain, and the slices after it."""
        known = _facts(self._path)
        if known is not None and known.get("form") == form:
            offset = known["offset"]
            covered = self.dataset.slices(first_offset=offset, last_offset=offset)
            if covered and covered[-1].end == offset and str(covered[-1].physical_hash) == known["slice"]:
                return [self._path], self.dataset.slices(first_offset=offset + 1)
        return [], self.dataset.slices()

    def _read(self, upto: list[Path], newer: list[SliceRow]) -> DataFrame:
        paths = [*upto, *(self.dataset.slice_path(row) for row in newer)]
        for path in paths:
            if not path.exists():
                raise NotFound("a data slice is missing", where=str(path), hint="see: odf verify")
        # Spark has no unsigned integers, and reads these columns best as what they are in the file.
        plain = {self.vocab.offset_column: pa.int64(), self.vocab.operation_type_column: pa.int32()}
        fields = [
            field.with_type(plain.get(field.name, field.type))
            for field in self.schema
            if field.name != self.vocab.system_time_column
        ]
        reader = self.session.read.schema(spark_schema(pa.schema(fields)))
        return reader.parquet(*map(spark_path, paths))

    def _sum_up(self, history: DataFrame, last: SliceRow, keys: Sequence[str], live: bool) -> None:
        """Writes the newest row of every key up to a slice."""
        everything = sql.struct([(name, sql.column(name)) for name in history.columns])
        listed, offset = sql.columns(keys), sql.column(self.vocab.offset_column)
        latest = f"SELECT max_by({everything}, {offset}) AS odf_row FROM {_VIEW} GROUP BY {listed}"
        op = sql.column(self.vocab.operation_type_column, "odf_row")
        stays = f"WHERE {op} IN ({Op.APPEND:d}, {Op.CORRECT_TO:d})" if live else ""
        query = f"SELECT odf_row.* FROM ({latest}) {stays}"
        frame = run_query(self.session, {_VIEW: history}, [SqlQueryStep(query=query)])
        schema, batches = arrow_batches(frame, self.reporter, progress=False)
        facts = {"form": self._form(keys, live), "offset": last.end, "slice": str(last.physical_hash)}
        made = self.scratch / self._path.name
        with pq.ParquetWriter(made, schema.with_metadata({_META: json.dumps(facts).encode()})) as writer:
            for batch in batches:
                writer.write_batch(batch.replace_schema_metadata(writer.schema.metadata))
        self._path.parent.mkdir(exist_ok=True)
        made.replace(self._path)
        self.reporter.line(f"summed up the rows up to offset {last.end:,}", "debug")


def _facts(path: Path) -> dict[str, Any] | None:
    try:
        metadata = pq.read_metadata(path).metadata or {}
        return json.loads(metadata[_META])
    except (OSError, pa.ArrowInvalid, KeyError, ValueError):
        return None
