"""Reading what was pushed: its columns go by name, and have to be those that the source takes.

A person or a device that pushes learns at once that a name was misspelt; a source that is polled is
only warned of, since nobody waits there. CSV without a header has no names: its columns go by position.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from msgspec.structs import replace

from odf_engine.data.conform import find_columns
from odf_engine.data.parquet_reader import UNREADABLE, read_parquet_schema
from odf_engine.errors import InvalidSchema
from odf_engine.ingest import sql
from odf_engine.ingest.diagnose import TextFile, shown
from odf_engine.ingest.prepare import Limits, Prepared
from odf_engine.ingest.read import Reading, csv_file, first_row, read
from odf_engine.metadata.model import Csv, EsriShapefile, GeoJson, NdGeoJson, NdJson, Parquet, ReadStep
from odf_engine.progress import Reporter
from odf_engine.spark.types import arrow_schema

if TYPE_CHECKING:
    from odf_engine.spark.session import SparkSession

_MANY: Final = 50
"""So many names are listed."""
_SHAPES: Final = (GeoJson, NdGeoJson, EsriShapefile)
_GEOMETRY: Final = "geometry"


@dataclass(frozen=True)
class PushedColumns:
    """Reads files with the columns that a push source takes.

    Attributes:
        step: how to read.
        plain: the step is not the source's own: CSV has a header if its first line has a column's name.
        columns: that the source takes; None where any will do.
        optional: of them those that a push may always leave out.
        operations: the name of the column that says what is done with a row.
        ignore_unknown: leave out what is unknown, and make null what is missing.
        limits: of what a format that is an archive may unpack to.
    """

    step: ReadStep
    plain: bool
    columns: pa.Schema | None
    optional: tuple[str, ...]
    operations: str
    ignore_unknown: bool
    limits: Limits

    def read(
        self, session: SparkSession, prepared: Prepared, folder: Path, reporter: Reporter
    ) -> Reading | None:
        """Begins to read; None when there is nothing in the file at all.

        Raises:
            InvalidSchema: columns that are unknown, or missing; the message lists them.
            BadData: the file is not of its format.
        """
        columns, step = self.columns, self.step
        if columns is None or prepared.path.stat().st_size == 0:
            return read(session, step, prepared, folder, reporter, limits=self.limits)
        found: list[str] | None = None
        if isinstance(step, Csv):
            found = self._header(step, prepared)
            step = step if found is None else replace(step, header=True)
        elif isinstance(step, Parquet):
            found = _parquet_names(prepared.path)
        if found is None:
            return self._read_keys(session, step, columns, prepared, folder, reporter)
        places = find_columns(columns.names, found)
        self._check(columns, found, prepared.name, reporter)
        held = [
            pa.field(name, pa.string()) if place is None else columns.field(place)
            for name, place in zip(found, places, strict=True)
        ]
        if isinstance(step, Parquet):
            held = [field for field, place in zip(held, places, strict=True) if place is not None]
        step = replace(step, schema=None, odf_schema=None)
        reading = read(session, step, prepared, folder, reporter, pa.schema(held))
        return reading and self._in_order(reading, columns)

    def _header(self, step: Csv, prepared: Prepared) -> list[str] | None:
        """The names in the first line; None when it has none."""
        if not step.header and not self.plain:
            return None
        names = [name.strip() for name in first_row(csv_file(step, prepared))]
        folded = [name.casefold() for name in names]
        if not step.header:
            assert self.columns is not None
            if not {name.casefold() for name in self.columns.names} & set(folded):
                return None
        double = next((name for at, name in enumerate(names) if folded[at] in folded[:at]), None)
        if double is not None or "" in names:
            raise InvalidSchema(
                "the header lacks a name" if double is None else f"the header has '{double}' twice",
                where=f"{prepared.name}: line 1",
            )
        return names or None

    def _read_keys(
        self,
        session: SparkSession,
        step: ReadStep,
        columns: pa.Schema,
        prepared: Prepared,
        folder: Path,
        reporter: Reporter,
    ) -> Reading | None:
        """Files whose every row has names of its own, or none at all."""
        absent: list[str] = []

        def compare(file: TextFile, reporter: Reporter, keys: Mapping[str, int]) -> None:
            if keys:
                absent.extend(self._check(columns, keys, file.name, reporter))

        reading = read(session, step, prepared, folder, reporter, columns, compare, self.limits)
        gone = [name for name in absent if name in self.optional]
        if reading is None or not gone:
            return reading
        return self._in_order(reading, pa.schema([field for field in columns if field.name not in gone]))

    def _check(self, columns: pa.Schema, found: Collection[str], file: str, reporter: Reporter) -> list[str]:
        """Compares names, in whatever case.

        Returns: the columns that are not there.
        """
        there, known = {name.casefold() for name in found}, {name.casefold() for name in columns.names}
        # Shapes are always there, and a source need not want them.
        tacit = [_GEOMETRY] if isinstance(self.step, _SHAPES) else []
        unknown = [name for name in found if name.casefold() not in known and name not in tacit]
        missing = [name for name in columns.names if name.casefold() not in there]
        wanted = [name for name in missing if name not in self.optional]
        required = [name for name in wanted if not columns.field(name).nullable]
        if any(name.casefold() == self.operations.casefold() for name in unknown):
            # Without it, rows that take others back would be added.
            raise InvalidSchema(
                f"the rows say in a column '{self.operations}' what is done with each, and the source does"
                " not take that column",
                where=file,
                hint=f"declare it in the source's read.schema, as {self.operations} STRING: odf add --update",
            )
        if required or ((unknown or wanted) and not self.ignore_unknown):
            if unknown and isinstance(found, Mapping) and isinstance(self.step, NdJson):
                file = f"{file}: line {found[unknown[0]]}"
            raise self._mismatch(columns, unknown, wanted, required, file)
        if unknown:
            reporter.line(f"{file}: unknown columns are left out: {_listed(unknown)}", "warning")
        if wanted:
            reporter.line(f"{file}: missing columns are null: {_listed(wanted)}", "warning")
        return missing

    def _mismatch(
        self, columns: pa.Schema, unknown: list[str], missing: list[str], required: list[str], where: str
    ) -> InvalidSchema:
        problems = [f"unknown: {_listed(unknown)}"] if unknown else []
        problems += [f"missing: {_listed(missing)}"] if missing else []
        hint = f"the source takes {_listed(columns.names)}"
        folded = {name.casefold(): name for name in missing}
        pairs = {
            name: folded[close[0]]
            for name in unknown
            if (close := get_close_matches(name.casefold(), folded, n=1))
        }
        if pairs:
            hint += "; is " + ", ".join(f"'{name}' '{close}'" for name, close in pairs.items()) + "?"
        elif self.ignore_unknown:
            hint += f"; {_listed(required)} may not be null"
        elif not required:
            hint += "; --ignore-unknown leaves out what is unknown and makes null what is missing"
        return InvalidSchema(
            "the columns are not those that the source takes; " + "; ".join(problems), where=where, hint=hint
        )

    def _in_order(self, reading: Reading, columns: pa.Schema) -> Reading:
        """The rows with the columns of the source, what is missing as null; without what may be left out."""
        held = arrow_schema(reading.frame.schema)
        parts: list[str] = []
        fields: list[pa.Field] = []
        for field, place in zip(columns, find_columns(held.names, columns.names), strict=True):
            if place is None and field.name in self.optional:
                continue
            value = sql.null(field.type, field.name) if place is None else sql.column(held.names[place])
            parts.append(f"{value} AS {sql.column(field.name)}")
            fields.append(field)
        return Reading(reading.frame.selectExpr(*parts), pa.schema(fields), reading.explain)


def _parquet_names(path: Path) -> list[str] | None:
    try:
        return list(read_parquet_schema(path).names)
    except (*UNREADABLE, InvalidSchema):
        return None  # reading it says what is wrong


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
    return ", ".join(map(shown, names[:_MANY])) + more
