"""Targets of the fuzzing that read files: data files, archives, checkpoints, and files of a workspace."""

from __future__ import annotations

import gzip
import io
import re
import struct
import zipfile
import zlib
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import shapefile

from odf_engine.api.readers import query_history
from odf_engine.base import settings
from odf_engine.base.config import Config
from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.state import decode_state, encode_state
from odf_engine.data.digest import digest_file
from odf_engine.derive.verify.integrity import verify
from odf_engine.engines.output_contract import EmittedRows
from odf_engine.engines.stateful.checkpoint import (
    CheckpointMetadata,
    read_checkpoint,
    write_checkpoint,
)
from odf_engine.errors import MalformedBlock, OdfError
from odf_engine.ingest.merge.key_file import KEY, OFFSET, SECOND, KeyFile, KeySorter
from odf_engine.ingest.prep_step import PreparedFile, prepare
from odf_engine.ingest.read.dbf import DbfTable
from odf_engine.ingest.read.error_location import locate_csv_error
from odf_engine.ingest.read.json_lines import (
    JsonSource,
    array_to_lines,
    feature_lines_to_lines,
    features_to_lines,
)
from odf_engine.ingest.read.shapefile import shapefile_to_lines
from odf_engine.ingest.read.text_file import csv_file, first_row
from odf_engine.metadata import model
from odf_engine.metadata.flatbuffers import decode_block, encode_table
from odf_engine.metadata.yaml import read_manifests
from odf_engine.rows.scan import Scan
from odf_engine.rows.statistics import statistics_from_footers
from odf_engine.spark.csv_records import Dialect
from odf_engine.spark.errors import RejectedRow
from odf_engine.spark.text_files import JsonScan, detect_encoding, prepare_text_file
from odf_engine.workspace.fsck import check_workspace
from odf_engine.workspace.workspace import Workspace
from odf_tui.actions import user_keys
from odf_tui.state import saved_session
from odf_tui.theming import themes
from tests.cli.conftest import call_odf
from tests.faults.fuzz_scene import Scene, Target, find_file, run_each
from tests.sync import builders
from tests.tui.data_files import infer_manifest

_TABLE: Final = pa.table(
    {
        "t": pa.array([0, 1, None, 3], pa.timestamp("ms", "UTC")),
        "n": pa.array([1, 2, 3, None], pa.int64()),
        "s": ["a", "bb", None, "a"],
        "l": pa.array([[1], [], None, [2, 3]], pa.list_(pa.int32())),
        "r": pa.array([{"x": 1.5}, None, {"x": None}, {"x": 2.0}], pa.struct([("x", pa.float64())])),
        "d": pa.array([1, 2, 3, 4]).cast(pa.decimal128(22, 2)),
    }
)


def parquet_files(scene: Scene) -> list[bytes]:
    found = []
    options: Any
    for options in ({}, {"compression": "none", "use_dictionary": False}, {"data_page_version": "2.0"}):
        sink = io.BytesIO()
        pq.write_table(_TABLE, sink, **options)
        found.append(sink.getvalue())
    datasets = Workspace(scene.workspace).resolve("numbers").dataset
    return found + [datasets.slice_path(row).read_bytes() for row in datasets.slices()]


def run_parquet(data: bytes, scene: Scene) -> None:
    path = scene.write("x.parquet", data)
    run_each(
        digest_file,
        lambda path: Scan.of_file(path).to_arrow(),
        lambda path: statistics_from_footers(Scan.of_file(path)),
    )(path, scene)


def arrow_files(scene: Scene) -> list[bytes]:
    found = []
    for new in (pa.ipc.new_file, pa.ipc.new_stream):
        sink = io.BytesIO()
        with new(sink, _TABLE.schema) as writer:
            writer.write_table(_TABLE)
        found.append(sink.getvalue())
    return found


def run_arrow(data: bytes, scene: Scene) -> None:
    digest_file(scene.write("x.arrow", data))


def zipped(files: dict[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return sink.getvalue()


def _shapes() -> dict[str, bytes]:
    parts = {suffix: io.BytesIO() for suffix in ("shp", "shx", "dbf")}
    writer: Any
    with shapefile.Writer(shapeType=shapefile.POLYGONZ, **parts) as writer:  # type: ignore[arg-type]
        for kind, size, decimals in (("C", 10, 0), ("N", 9, 0), ("F", 12, 3), ("D", 8, 0), ("L", 1, 0)):
            writer.field(f"f{kind}", kind, size, decimals)
        ring = [(0.0, 0.0, 1.0), (0.0, 9.0, 1.0), (9.0, 9.0, 1.0), (0.0, 0.0, 1.0)]
        for number in range(3):
            writer.polyz([ring, [(each[0] / 2 + 1, each[1] / 2 + 1, 2.0) for each in ring[::-1]]])
            writer.record("abc", number, 1.5, "20240131", True)
    return {f"a.{suffix}": part.getvalue() for suffix, part in parts.items()} | {"a.cpg": b"1252"}


SHAPES: Final = _shapes()


def run_shapes(data: bytes, scene: Scene) -> None:
    path = scene.write("in.zip", data)
    shapefile_to_lines(path, "in.zip", None, path.parent, scene.reporter)


def run_shape_file(data: bytes, scene: Scene) -> None:
    run_shapes(zipped(SHAPES | {"a.shp": data}), scene)


def _run_prepare(kind: model.CompressionFormat, data: bytes, scene: Scene) -> None:
    path = scene.write("in.csv", data)
    prepare(
        [model.Decompress(format=kind)],
        PreparedFile(path, path.name),
        path.parent,
        path.parent,
        scene.reporter,
    )


run_zip: Final = partial(_run_prepare, model.CompressionFormat.Zip)
run_gzip: Final = partial(_run_prepare, model.CompressionFormat.Gzip)


def run_dbf(data: bytes, scene: Scene) -> None:
    for _ in DbfTable.open(scene.write("a.dbf", data), "a.dbf", None).rows():
        pass


DOCUMENTS: Final = [
    b'{"type": "FeatureCollection", "features": [{"type": "Feature", "id": 7, "properties": {"n": 10.50},'
    b' "geometry": {"type": "Point", "coordinates": [1.0, -2]}}, {"type": "Feature", "properties": null,'
    b' "geometry": null}]}',
    b'{"type": "Feature", "properties": {"n": "x"}, "geometry": {"type": "Point", "coordinates": [1]}}\n' * 2,
    b'[{"a": 1, "b": [true, null, "x"]}, {"a": 1e3, "c": {"d": "2024-01-01"}}]',
    b'{"event_time": "2024-01-01T00:00:00Z", "N": 1}\n{"n": "2", "s": {"x": 1}}\n',
    '[{"größe": "\\u00e4"}]'.encode("utf-16"),
]  # fmt: skip


def run_json(data: bytes, scene: Scene) -> None:
    path = scene.write("a.json", data)
    source, target = JsonSource(path, "a"), path.with_name("lines")
    scan = JsonScan("a", pa.schema([("n", pa.int64()), ("s", pa.struct([("x", pa.int64())]))]))
    run_each(
        lambda path: array_to_lines(source, None, target, scene.reporter),
        lambda path: array_to_lines(
            JsonSource(path, "a", detect_encoding(path, "utf-16") or "utf-8"),
            "features",
            target,
            scene.reporter,
        ),
        lambda path: features_to_lines(source, target, scene.reporter, with_id=True),
        lambda path: feature_lines_to_lines(source, target, scene.reporter),
        lambda path: prepare_text_file(path, path.parent, name="a", objects=scan),
    )(path, scene)


CSV: Final = [
    b'city,people\nBern,1\n"Z\xc3\xbcrich ""x""",2\n"a\nb",3\n',
    b"a;b;c\r\n1;2;3\r\n", "a,b\n1,ä\n".encode("utf-16"), "a,b\n1,ä\n".encode("latin-1"),
    b"\xef\xbb\xbfa\tb\n1\t2\n",
]  # fmt: skip


def run_csv(data: bytes, scene: Scene) -> None:
    path = scene.write("a.csv", data)
    prepared, step = PreparedFile(path, "a.csv"), model.Csv(header=True)
    error = RejectedRow("bad", column="city", value="x")

    def locate(path: Path) -> None:
        file = csv_file(step, prepared)
        first_row(file)
        prepare_text_file(path, path.parent, name="a.csv", dialect=Dialect())  # it checks the encoding first
        str(locate_csv_error(error, file, scene.reporter))

    run_each(
        locate,
        lambda path: prepare_text_file(
            path, path.parent, name="a.csv", encoding="utf-16", dialect=Dialect(";")
        ),
    )(path, scene)


_FILES: Final = ("csv", "json", "ndjson", "geojson", "parquet", "csv.gz", "zip")


def data_files(scene: Scene) -> list[bytes]:
    return [*CSV, *DOCUMENTS, *parquet_files(scene), gzip.compress(CSV[0]), zipped({"a.csv": CSV[0]})]


def run_data_file(data: bytes, scene: Scene) -> None:
    """The manifest for a data file of a user: it is valid, whatever is in the file."""
    for suffix in _FILES:
        path = scene.write(f"a.{suffix}", data)
        read_manifests(infer_manifest(path.name, path.parent, "name"), "f")


def run_emitted_rows(data: bytes, scene: Scene) -> None:
    rows = EmittedRows(_TABLE.schema, ["s"], "t")
    rows.load(scene.write("rows", data))
    rows.update(_TABLE, [True] * len(_TABLE))


def checkpoints(scene: Scene) -> list[bytes]:
    folder = scene.write("state", b"x" * 1000).parent
    path = scene.folder / "checkpoint"
    facts = CheckpointMetadata(
        format=2, engine="odf-workstation", query="q", state="s", watermarks={"a": 7}, watermark=7
    )
    write_checkpoint(path, facts, folder)
    with pa.input_stream(str(path), compression="zstd") as stream:
        return [stream.read(), path.read_bytes()]


def run_checkpoint(data: bytes, scene: Scene) -> None:
    path = scene.write("checkpoint", data)
    run_each(
        lambda data: read_checkpoint(path, path.with_name("raw")),
        lambda data: (
            path.write_bytes(pa.compress(data, "zstd", asbytes=True)),
            read_checkpoint(path, path.with_name("unpacked")),
        ),
    )(data, scene)


def _key_file(scene: Scene) -> bytes:
    path = scene.write("keys", b"")
    sorter = KeySorter([KEY, SECOND, OFFSET], path.parent, unique=True)
    sorter.add([pa.array(range(start, start + 600), pa.int64()) for start in (-5, 7, 9)])
    sorter.finish(path, form="x")
    return path.read_bytes()


def descriptions(scene: Scene) -> list[bytes]:
    data = _key_file(scene)
    return [data[-12 - struct.unpack("<QI", data[-12:])[0] : -12]]


def run_key_file(description: bytes, scene: Scene) -> None:
    """The checksum fits: the file was written so."""
    data = _key_file(scene)
    length, _ = struct.unpack("<QI", data[-12:])
    pages = data[: -12 - length]
    sums = pages[3 * 8 * 1024 :] if len(pages) > 3 * 8 * 1024 else b""
    tail = struct.pack("<QI", len(description), zlib.crc32(description, zlib.crc32(sums)))
    path = scene.write("keys", pages + description + tail)
    file = KeyFile(path)
    numbers = pa.array(range(-9, 20), pa.int64())
    file.find(numbers, numbers)
    list(file.ranges([3]))


def workspace_file(pattern: str, *commands: str) -> Target:
    """A file in ``.odf``; each command ends in an answer, or in an error in words."""

    def run(data: bytes, scene: Scene) -> None:
        folder = scene.damaged(pattern, data)
        for command in commands:
            ran = call_odf(*command.split(), cwd=folder)
            assert ran.code in (0, 1, 2, 3, 4), f"odf {command} exits with {ran.code}"
            assert ran.code == 0 or len(ran.err) <= _MAX_ERROR, f"odf {command}: {len(ran.err):,} characters"
            assert "Traceback" not in ran.err and "internal" not in ran.err, f"odf {command}: {ran.err}"
        workspace = Workspace(folder)
        with suppress(OdfError):
            check_workspace(workspace, scene.reporter, repair=True, now=True)
        workspace.index.close()

    name = re.sub(r"\W+", "-", pattern.removesuffix(".json")).strip("-")
    return Target(
        f"file-{name}", lambda scene: [find_file(scene.workspace, pattern).read_bytes()], run, cost=100
    )


_MAX_ERROR: Final = 7000


def run_chain(data: bytes, scene: Scene) -> None:
    """Any event, in a block that was adopted without checks."""
    folder = scene.damaged("version", b"1\n")
    workspace = Workspace(folder)
    dataset = workspace.resolve("numbers").dataset
    try:
        event = decode_block(encode_table(model.Manifest(kind=0x400000, version=3, content=data))).block.event
    except MalformedBlock:
        return
    builders.forge(dataset, event)
    for command in ("list", "show numbers", "log numbers", "tail numbers", "schema numbers"):
        ran = call_odf(*command.split(), cwd=folder)
        assert ran.code in (0, 1) and "Traceback" not in ran.err, f"odf {command}: {ran.err}"
    verify(Dataset(dataset.folder, BlockIndex(":memory:")), scene.reporter)
    with suppress(OdfError):
        state = dataset.state()
        assert decode_state(encode_state(state)) == state
    workspace.index.close()


SETTINGS: Final = [settings.render(Config()).encode(), b"pull: ctrl+l\nquit: [q, x]\n"]


def run_settings(data: bytes, scene: Scene) -> None:
    path = scene.write("config.yaml", data)
    run_each(settings.load_config, lambda path: settings.load_workspace(path.parent))(path, scene)
    _, problems = user_keys.load({}, path)
    assert all(len(problem) <= 2000 for problem in problems), "a problem of keys.yaml is long"


def theme_files(scene: Scene) -> list[bytes]:
    return [path.read_bytes() for path in sorted(themes.folder().glob("*.toml"))[:3]]


def run_theme(data: bytes, scene: Scene) -> None:
    themes._read("x", scene.write("x.toml", data))


def sessions(scene: Scene) -> list[bytes]:
    layout = saved_session.SavedLayout(theme="tide", recent=["numbers"])
    return [saved_session.encode_layout(layout), b'{"sql": "SELECT 1"}\n' * 2]


def run_session(data: bytes, scene: Scene) -> None:
    """The saved layout, history and snapshot: whatever is in them, the workstation starts."""
    odf = scene.write("x", data).parent / ".odf"
    (odf / "cache").mkdir(parents=True)
    for name in ("ui.json", "sql-history.jsonl", "screen.msgpack"):
        (odf / "cache" / name).write_bytes(data)
    saved_session.load_layout(odf.parent)
    saved_session.load_snapshot(odf.parent)
    assert all(isinstance(each, str) for each in query_history.load_history(odf))
