"""Port Haven, a small workspace with the datasets of a town, which tests of the workstation copy."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch
from zlib import crc32

import pyarrow as pa
from Crypto.PublicKey import ECC

from odf_engine.api.model import DatasetRow
from odf_engine.base.config import MetadataConfig
from odf_engine.base.progress import Reporter
from odf_engine.chain.dataset import Dataset
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.parquet.slice_rows import SliceProperties
from odf_engine.data.parquet.slices import slice_schema, write_slice
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    AddData,
    Checkpoint,
    DataSlice,
    ExecuteTransform,
    ExecuteTransformInput,
    MetadataEvent,
    SetDataSchema,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.mirror.catalog import ORIGIN_FILE
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.definition import plan_datasets
from odf_engine.workspace.workspace import Workspace

REMARKS = ["fine", "foggy, wind from the west all day and the night before", "a\tb\x1b[31m", None]
SYSTEM = ("offset", "op", "system_time", "event_time")
WATERMARK = Timestamp.parse("2024-03-10T00:00:00Z")
_PLACES = ["Quay", "Old Town", "Lighthouse Hill", "Fish Market"]
_DAY = 1_709_251_200_000
_SLICE = 1000
ROOT = """\
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: Url, url: "file:sources/{name}.csv"}}
      read: {{kind: Csv, header: true}}
      merge: {{kind: Ledger, primaryKey: [station, event_time]}}
    - kind: SetInfo
      description: Hourly air quality at the stations of Port Haven, a small harbour town
"""
_DERIVATIVE = """\
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{inputs}]
      transform: {{kind: Sql, engine: spark, query: "{query}"}}
    - kind: SetInfo
      description: Daily air quality at the stations of Port Haven, a small harbour town
"""


@cache
def _key(name: str) -> tuple[DatasetId, str]:
    key = ECC.construct(curve="ed25519", seed=sha256(name.encode()).digest())
    return DatasetId(key.public_key().export_key(format="raw")), key.export_key(format="PEM")


def did(name: str) -> str:
    """Return the id of a dataset with a name."""
    return str(_key(name)[0])


AIR, STATIONS, DAYS = did("port-haven.air-readings"), did("port-haven.stations"), did("air-by-day")
TIDES = did("harbour.tides")


def dataset(name: str, *inputs: str, records: int = 0, **more: object) -> DatasetRow:
    """Return a dataset as lists show it."""
    known = {
        "id": did(name),
        "name": name,
        "derivative": bool(inputs),
        "inputs": tuple(map(did, inputs)),
        "head": f"f1620{crc32(name.encode()):08x}{records:08x}",
        "blocks": 4 + (records + _SLICE - 1) // _SLICE,
        "records": records,
        "size": records * 37,
        "watermark": "2024-03-10T00:00:00Z" if records else None,
        "last_pulled": "2024-03-11T08:15:00Z" if records else None,
        "polls": not inputs,
    }
    return DatasetRow(**{**known, **more})  # type: ignore[arg-type]


HAVEN = [
    dataset("port-haven.air-readings", records=7200),
    dataset("port-haven.stations", records=31),
    dataset("port-haven.clinic-visits", records=12480),
    dataset("port-haven.clinics"),
    dataset("air-by-day", "port-haven.air-readings", "port-haven.stations", records=240),
    dataset("visits-by-day", "port-haven.clinic-visits"),
    dataset("smoke-and-breath", "air-by-day", "visits-by-day"),
    dataset("harbour.tides", records=96),
]


def table(start: int, count: int) -> pa.Table:
    """Return the operations, event times and data of rows."""
    numbers = range(start, start + count)
    return pa.table(
        {
            "op": pa.array([[0, 0, 0, 1, 2, 3][n % 6] for n in numbers], pa.uint8()),
            "event_time": pa.array([_DAY + n * 3_600_000 for n in numbers], pa.timestamp("ms", "UTC")),
            "station": pa.array([_PLACES[n % 4] for n in numbers], pa.string()),
            "pm25": pa.array([None if n % 7 == 3 else 3.25 + n % 40 for n in numbers], pa.float64()),
            "no2": pa.array([n * 7 % 50 for n in numbers], pa.int32()),
            "sensor": pa.array([f"[red]s-{n % 12:02d}" for n in numbers], pa.string()),
            "remark": pa.array([REMARKS[n % 4] for n in numbers], pa.string()),
        }
    )


COLUMNS = table(0, 0).drop(["op"]).schema


def _time(dataset: Dataset | None) -> Timestamp:
    """Return the time of the next block: each day at 8 o'clock, and a minute for each block."""
    number = 0 if dataset is None else dataset.state().blocks
    time = datetime(2024, 3, 1, 8, tzinfo=UTC) + timedelta(days=number, minutes=number)
    return Timestamp.parse(time.isoformat().replace("+00:00", "Z"))


def commit(
    dataset: Dataset, event: MetadataEvent, data: Path | None = None, checkpoint: Path | None = None
) -> None:
    """Append a block."""
    time, head = _time(dataset), dataset.head()
    dataset.commit([event], system_time=time, expected_head=head, data=data, checkpoint=checkpoint)


def _write(dataset: Dataset, rows: pa.Table) -> tuple[DataSlice, Path]:
    state = dataset.state()
    written = write_slice(
        rows.to_batches(),
        SliceProperties(
            schema=slice_schema(COLUMNS, DEFAULT_VOCABULARY),
            vocab=DEFAULT_VOCABULARY,
            first_offset=state.records,
            system_time=_time(dataset),
            fallback_event_time=_time(dataset),
        ),
        path=dataset.staging_path("data"),
        reporter=Reporter(),
    )
    assert written is not None
    data = DataSlice(written.logical_hash, written.physical_hash, written.offset_interval, written.size)
    return data, written.path


def append(dataset: Dataset, count: int) -> None:
    """Append rows to a root dataset, a block for each thousand."""
    while count > 0:
        state = dataset.state()
        data, path = _write(dataset, table(state.records, min(count, _SLICE)))
        commit(dataset, AddData(prev_offset=state.last_offset, new_data=data, new_watermark=WATERMARK), path)
        count -= _SLICE


def derive(derivative: Dataset, inputs: Sequence[DatasetEntry], count: int) -> None:
    """Append a transaction that processed all rows of the inputs, and wrote some."""
    state = derivative.state()
    data, path = _write(derivative, table(state.records, count))
    before = {item.dataset_id: item for item in state.last_inputs or [] if item is not None}
    read = [
        ExecuteTransformInput(
            entry.id,
            prev_block_hash=before[entry.id].last_block if before else None,
            new_block_hash=entry.dataset.head(),
            prev_offset=before[entry.id].new_offset if before else None,
            new_offset=entry.dataset.state().last_offset,
        )
        for entry in inputs
    ]
    checkpoint = derivative.staging_path("checkpoints")
    checkpoint.write_bytes(b"what a query keeps" * 100)
    event = ExecuteTransform(
        query_inputs=read,
        prev_offset=state.last_offset,
        new_data=data,
        prev_checkpoint=state.last_checkpoint.physical_hash if state.last_checkpoint else None,
        new_checkpoint=Checkpoint(Multihash.sha3_256(checkpoint.read_bytes()), checkpoint.stat().st_size),
        new_watermark=WATERMARK,
    )
    commit(derivative, event, path, checkpoint)


def create(workspace: Workspace, manifest: str, columns: pa.Schema | None = None) -> DatasetEntry:
    """Create the dataset of a manifest with the id and key that belong to its name, and with columns."""
    (snapshot,) = read_manifests(manifest, "manifest")
    existing = {entry.alias: entry.id for entry in workspace.datasets()}
    name = str(snapshot.name)
    (plan,) = plan_datasets(existing, [snapshot], lambda: _key(name)[0], MetadataConfig())
    with patch("odf_engine.workspace.workspace.generate_key", lambda: _key(name)):
        entry = workspace.create_dataset(plan.alias, snapshot.kind, (), _time(None))
    for event in plan.events[1:]:
        commit(entry.dataset, event)
    if columns is not None:
        commit(entry.dataset, SetDataSchema(encode_schema(slice_schema(columns, DEFAULT_VOCABULARY))))
    return entry


def create_root(workspace: Workspace, name: str, records: int = 0) -> DatasetEntry:
    """Create a root dataset with rows."""
    entry = create(workspace, ROOT.format(name=name), COLUMNS)
    append(entry.dataset, records)
    return entry


def create_derivative(
    workspace: Workspace, name: str, inputs: Sequence[DatasetEntry], records: int
) -> DatasetEntry:
    """Create a derivative dataset with rows, which has processed its inputs, or one that was not run yet."""
    listed = ", ".join(f"{{datasetRef: {entry.alias}}}" for entry in inputs)
    query = f"SELECT * FROM `{inputs[0].alias}`"
    entry = create(workspace, _DERIVATIVE.format(name=name, inputs=listed, query=query), COLUMNS)
    if records:
        derive(entry.dataset, inputs, records)
    return entry


def distrust(entry: DatasetEntry) -> None:
    """Make a dataset one whose definition comes from somebody else."""
    (entry.dataset.folder / ORIGIN_FILE).write_text("https://elsewhere.example/tides.yaml")


def mask_hashes(text: str) -> str:
    """Return a text without the hashes, which depend on the version of PyArrow."""
    return re.sub(r"\b[0-9a-f]{8}\b", "x" * 8, text)


def _build_haven(workspace: Workspace) -> None:
    readings = create_root(workspace, "port-haven.air-readings", 7200)
    stations = create_root(workspace, "port-haven.stations", 31)
    visits = create_root(workspace, "port-haven.clinic-visits", 2480)
    create_root(workspace, "port-haven.clinics")
    days = create_derivative(workspace, "air-by-day", [readings, stations], 240)
    daily = create_derivative(workspace, "visits-by-day", [visits], 0)
    create_derivative(workspace, "smoke-and-breath", [days, daily], 0)
    create_root(workspace, "harbour.tides", 96)


@cache
def _template(build: Callable[[Workspace], None]) -> TemporaryDirectory[str]:
    """Build a workspace once in each process of tests."""
    folder = TemporaryDirectory()
    with patch("os.fsync", lambda _: None):
        workspace = Workspace.init(Path(folder.name))
        build(workspace)
        workspace.summaries()
        workspace.close()
    return folder


def copy_haven(folder: Path, build: Callable[[Workspace], None] = _build_haven) -> Workspace:
    """Copy Port Haven, or another small workspace, to a new folder.

    Blocks, slices and keys, which are never changed, are links.
    """

    template = _template(build).name
    for parent, _, files in os.walk(template):
        target = f"{folder}{parent.removeprefix(template)}"
        os.makedirs(target, exist_ok=True)  # noqa: PTH103 (hundreds of files for each test)
        is_immutable = parent.endswith(("/blocks", "/data", "/keys"))
        for file in files:
            (_link if is_immutable else shutil.copyfile)(f"{parent}/{file}", f"{target}/{file}")
    return Workspace(folder)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # the folders are on different file systems
        shutil.copy(source, target)
