"""Reads a dataset with other programs, and compares their rows with ours: ``python -m tests.bench.peers``.

Prints the table of ``odf help peers`` in Markdown. With ``--write``, it replaces the table in the page.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

import odf_engine
from odf_engine.api.dataset import Dataset
from odf_engine.workspace.workspace import Workspace
from tests.sync import builders

PAGE: Final = Path(odf_engine.__file__).parent.parent / "odf_tui/help/peers.md"
_SLICES: Final = 4
_HEADER: Final = "| program | version | what was read | result |\n|---|---|---|---|\n"


class Peer(NamedTuple):
    """A program that reads what odf writes.

    Attributes:
        name: its name.
        package: the distribution whose version is shown.
        what: what is read.
        read: returns the number of rows.
    """

    name: str
    package: str
    what: str
    read: Callable[[Dataset], int]


def _slices(dataset: Dataset) -> list[str]:
    return sorted(str(path) for path in (dataset.folder / "data").iterdir())


def _duckdb(dataset: Dataset) -> int:
    import duckdb

    return duckdb.read_parquet(_slices(dataset)).aggregate("count(*)").fetchall()[0][0]


def _polars(dataset: Dataset) -> int:
    import polars

    return polars.scan_parquet(_slices(dataset)).collect().height


def _pandas(dataset: Dataset) -> int:
    import pandas

    return sum(len(pandas.read_parquet(path)) for path in _slices(dataset))


def _pyarrow(dataset: Dataset) -> int:
    import pyarrow.dataset

    return pyarrow.dataset.dataset(_slices(dataset), format="parquet").count_rows()


def _spark(dataset: Dataset) -> int:
    from odf_engine.spark.runtime.session import SparkRuntime
    from odf_engine.spark.runtime.spark_conf import SparkOptions

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = SparkOptions(master="local[1]", driver_memory="768m")
        runtime = SparkRuntime(options, folder / "spark.log", folder / "cache")
        runtime.start()
        try:
            return runtime.session().read.parquet(*_slices(dataset)).count()
        finally:
            runtime.stop()


def _delta(dataset: Dataset) -> int:
    from deltalake import DeltaTable

    table = DeltaTable(dataset.write_table("delta").path)
    assert table.version() == dataset.state.sequence_number
    return table.to_pyarrow_table().num_rows


def _iceberg(dataset: Dataset) -> int:
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(dataset.write_table("iceberg").path).scan().to_arrow().num_rows


def _adbc(dataset: Dataset) -> int:
    import adbc_driver_flightsql.dbapi as flightsql

    with (
        _served(dataset, "--flight") as url,
        flightsql.connect(url, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(f'SELECT * FROM "{dataset.name}"')
        return cursor.fetch_arrow_table().num_rows


def _rocrate(dataset: Dataset) -> int:
    from rocrate.rocrate import ROCrate

    with _crate(dataset) as folder:
        crate = ROCrate(folder)
        assert crate.root_dataset["identifier"] == dataset.id
        document = json.loads((folder / "version.json").read_text())
        return document["rows"]


def _prov(dataset: Dataset) -> int:
    from prov.model import ProvDocument

    with _crate(dataset) as folder:
        document: Any = ProvDocument.deserialize(str(folder / "prov.json"))
        assert len(list(document.get_records())) > 0
    return dataset.state.records


def _rdflib(dataset: Dataset) -> int:
    from rdflib import Graph
    from rdflib.namespace import DCAT, RDF

    with odf_engine.open(dataset.folder.parents[2], progress=False) as workspace:
        graph = Graph().parse(data=workspace.catalog().decode(), format="json-ld")
    assert len(list(graph.subjects(RDF.type, DCAT.Dataset))) == 1
    return dataset.state.records


@contextlib.contextmanager
def _served(dataset: Dataset, *options: str) -> Iterator[str]:
    command = [sys.executable, "-m", "odf_tui", "serve", "--port", "0", "--json", *options]
    process = subprocess.Popen(command, cwd=dataset.folder.parents[2], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.communicate()


@contextlib.contextmanager
def _crate(dataset: Dataset) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "crate.zip"
        dataset.write_crate(archive)
        zipfile.ZipFile(archive).extractall(Path(folder) / "crate")
        yield Path(folder) / "crate"


PEERS: Final = (
    Peer("DuckDB", "duckdb", "the slices", _duckdb),
    Peer("Polars", "polars", "the slices", _polars),
    Peer("pandas", "pandas", "the slices", _pandas),
    Peer("PyArrow", "pyarrow", "the slices", _pyarrow),
    Peer("Spark", "pyspark", "the slices", _spark),
    Peer("deltalake", "deltalake", "`odf view --format delta`", _delta),
    Peer("PyIceberg", "pyiceberg", "`odf view --format iceberg`", _iceberg),
    Peer("ADBC", "adbc-driver-flightsql", "`odf serve --flight`", _adbc),
    Peer("RO-Crate", "rocrate", "`odf cite -o crate.zip`", _rocrate),
    Peer("PROV", "prov", "the lineage in a crate", _prov),
    Peer("RDFLib", "rdflib", "`odf catalog`", _rdflib),
)


def read_all(folder: Path) -> list[tuple[Peer, str]]:
    """Read one dataset with all peers; return the result of each: ``N rows``, or what went wrong."""
    workspace = Workspace.init(folder / "workspace")
    builders.make_root(workspace, "city.people", slices=_SLICES)
    workspace.close()
    results: list[tuple[Peer, str]] = []
    with odf_engine.open(folder / "workspace", progress=False) as opened:
        dataset = opened["city.people"]
        for peer in PEERS:
            try:
                rows = peer.read(dataset)
                result = f"{rows} rows" if rows == dataset.state.records else f"differs: {rows} rows"
            except Exception as error:  # one peer that fails does not hide the others
                result = f"failed: {type(error).__name__}: {error}"
            results.append((peer, result.replace("|", "/").splitlines()[0]))
    return results


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        results = read_all(Path(folder))
    rows = [
        f"| {peer.name} | {version(peer.package)} | {peer.what} | {result} |\n" for peer, result in results
    ]
    table = _HEADER + "".join(rows)
    if "--write" in sys.argv:
        before, _, rest = PAGE.read_text().partition(_HEADER)
        after = re.sub(r"\A(\|.*\n)*", "", rest)  # the rows of the last run
        PAGE.write_text(before + table + after)
    print(table, end="")
    return int(any(not result.endswith(" rows") or ":" in result for _, result in results))


if __name__ == "__main__":
    sys.exit(main())
