"""Rows of a dataset or of a query, for Arrow, pandas, Polars, DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from odf_engine.base.html_text import table_html
from odf_engine.base.progress import Reporter
from odf_engine.base.terminal_text import escape_controls
from odf_engine.data.arrow_compute import python_values
from odf_engine.errors import Unsupported
from odf_engine.on_demand import row_export, row_scan

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_engine.metadata.model import DatasetVocabulary
    from odf_engine.rows.scan import Scan

_SHOWN: Final = 10
_COLUMNS: Final = 12
_WIDTH: Final = 24


class Rows:
    """Rows of a dataset or of a query. They are read from disk when they are used, batch by batch.

    Libraries with the Arrow PyCapsule interface read the rows as a stream, without copying the values::

        duckdb.sql("SELECT city, max(population) FROM rows GROUP BY city")  # bounded memory
        polars.DataFrame(rows)

    >>> rows = workspace["city.population"].scan(columns=["city", "population"])
    >>> rows
    city.population: 3 rows
    city  population
    Oslo  700000
    Rome  2800000
    Oslo  710000

    Attributes:
        title: what the rows are, in words.
    """

    def __init__(self, scan: Scan, title: str) -> None:
        self._scan = scan
        self.title = title

    @classmethod
    def of_file(cls, path: Path, title: str, names: DatasetVocabulary | None = None) -> Rows:
        """Return the rows of a Parquet file.

        Args:
            path: the file.
            title: what the rows are, in words.
            names: the names of the system columns, for rows of a dataset.
        """
        file = row_scan.Scan.of_file(path) if names is None else row_scan.Scan.of_file(path, names)
        return cls(file, title)

    @property
    def schema(self) -> pa.Schema:
        """The names and types of the columns.

        >>> workspace["city.population"].scan().schema.field("city").type
        DataType(string)
        """
        return self._scan.schema

    @property
    def columns(self) -> list[str]:
        """The names of the columns.

        >>> workspace["city.population"].scan().columns
        ['offset', 'op', 'system_time', 'event_time', 'city', 'population']
        """
        return list(self._scan.schema.names)

    def __len__(self) -> int:
        """Return the number of rows.

        >>> len(workspace["city.population"].scan())
        3
        """
        return self._scan.row_count

    def select(self, columns: Sequence[str]) -> Rows:
        """Return the rows with some columns, in this order.

        Raises:
            KeyError: there is no such column.

        >>> workspace["city.population"].scan().select(["population", "city"]).columns
        ['population', 'city']
        """
        return Rows(self._scan.select(columns), self.title)

    def __getitem__(self, rows: slice) -> Rows:
        """Return a range of the rows; the step must be 1. Other row groups are not read.

        >>> workspace["city.population"].scan()[1:].to_arrow()["city"].to_pylist()
        ['Rome', 'Oslo']
        """
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError("the step of a range of rows must be 1")
        return Rows(self._scan.rows([(start, stop)]), self.title)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, in batches of bounded size.

        Raises:
            NotFound: a file is missing.
            BadData: a file is damaged.

        >>> sum(batch.num_rows for batch in workspace["city.population"].scan().batches())
        3
        """
        return self._scan.batches()

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as an Arrow stream.

        >>> workspace["city.population"].scan().to_reader().read_next_batch().num_rows
        3
        """
        return self._scan.to_reader()

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table in memory.

        >>> workspace["city.population"].scan(columns=["city"]).to_arrow().to_pydict()
        {'city': ['Oslo', 'Rome', 'Oslo']}
        """
        return self._scan.to_arrow()

    def to_pandas(self) -> Any:
        """Return all rows as a pandas DataFrame.

        Raises:
            Unsupported: pandas is not installed.

        >>> workspace["city.population"].scan().to_pandas()["population"].max()
        np.int32(2800000)
        """
        _require("pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return all rows as a Polars DataFrame.

        Raises:
            Unsupported: Polars is not installed.

        >>> workspace["city.population"].scan().to_polars()["population"].max()
        2800000
        """
        return _require("polars").from_arrow(self.to_arrow())

    def write(
        self, path: Path, format: Literal["csv", "json", "ndjson", "parquet"], *, replace: bool = False
    ) -> int:
        """Write the rows to a file, and return its size in bytes. The file appears when it is complete.

        Args:
            path: the file.
            format: the format; ``json`` is an array of objects, ``ndjson`` one object on each line.
            replace: whether an existing file is replaced.

        Raises:
            AlreadyExists: the file exists.
            OdfError: the file cannot be written.

        >>> target = workspace.folder.parent / "rows.csv"
        >>> workspace["city.population"].scan(columns=["city"]).write(target, "csv") > 0
        True
        """
        return row_export.export(self._scan, path.absolute(), format, Reporter(), replace=replace).size

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows as an Arrow C stream (PyCapsule interface). Libraries call it.

        >>> import pyarrow
        >>> pyarrow.table(workspace["city.population"].scan()).num_rows
        3
        """
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def _preview(self) -> list[list[str]]:

        names = self.columns[:_COLUMNS]
        table = self[:_SHOWN].select(names).to_arrow()
        columns = [[escape_controls(_short(value)) for value in python_values(column)] for column in table]
        return [[escape_controls(name) for name in names], *(list(row) for row in zip(*columns, strict=True))]

    def _rest(self) -> str:
        rows, columns = len(self) - _SHOWN, len(self.columns) - _COLUMNS
        parts = [f"{_count(rows)} more"] if rows > 0 else []
        parts += [f"{_count(columns, 'column')} more"] if columns > 0 else []
        return ", ".join(parts)

    def __repr__(self) -> str:
        lines = self._preview()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
                for line in lines]  # fmt: skip
        rest = self._rest()
        return "\n".join([f"{self.title}: {_count(len(self))}", *text, *([f"… {rest}"] if rest else [])])

    def _repr_html_(self) -> str:
        head, *body = self._preview()
        return table_html(head, body, f"{self.title}: {_count(len(self))}", self._rest())


def _require(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise Unsupported(f"{module} is not installed", hint=f"pip install {module}") from None


def _count(number: int, noun: str = "row") -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _short(value: object) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
