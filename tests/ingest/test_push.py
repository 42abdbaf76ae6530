"""Rows that are pushed: which source takes them, in which format, with which columns."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapefile
from msgspec.structs import replace

from odf_engine.base.progress import Reporter
from odf_engine.base.settings import save, set_value
from odf_engine.chain.state import ChainUpdate
from odf_engine.data.arrow_schema import decode_schema, encode_schema
from odf_engine.derive.verify.integrity import verify
from odf_engine.errors import (
    BadData,
    InvalidSchema,
    NotSynced,
    OdfError,
    SourceUnavailable,
    Unsupported,
    UsageError,
)
from odf_engine.ingest import push_source
from odf_engine.ingest.push_source import PushOptions, push
from odf_engine.metadata.model import (
    AddPushSource,
    Append,
    DisablePollingSource,
    DisablePushSource,
    MetadataEvent,
    NdJson,
    SetDataSchema,
    SetPollingSource,
    SourceState,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_folders import read_rejects
from odf_engine.workspace.workspace import Workspace
from tests.ingest.pulling import Pulled
from tests.ingest.recorder import Recorder

SOURCE = """
    - kind: AddPushSource
      sourceName: {name}
      read: {read}
      merge: {merge}
"""
NDJSON = '{kind: NdJson, schema: ["at TIMESTAMP", "id BIGINT NOT NULL", "note STRING"]}'
LEDGER = "{kind: Ledger, primaryKey: [id]}"
VOCAB = "    - {kind: SetVocab, eventTimeColumn: at}\n"
HEAD = "kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: {name}\n  kind: Root\n  metadata:\n"


class Pushed(Pulled):
    """Datasets that are pushed to."""

    def define(self, *sources: str, name: str = "data") -> None:
        """A dataset of these events."""
        text = HEAD.format(name=name) + VOCAB + "".join(sources)
        (self.entry,) = self.workspace.add(read_manifests(text, "test.yaml"))

    def push(self, *names: str, **options: Any) -> ChainUpdate:
        """Pushes files of the workspace's folder; nothing temporary may be left."""
        self.reporter = Recorder()
        files = [self.workspace.folder / name for name in names]
        try:
            result = push(
                self.workspace, self.entry, self.runtime, self.reporter, files, PushOptions(**options)
            )
            self.already_ingested = result.already_ingested
            return result.update
        finally:
            assert list((self.workspace.odf / "cache").glob("pull-*")) == []
            assert [path.name for path in self.dataset.folder.glob("*/.pending*")] == []

    def refuses(self, kind: type[OdfError], names: str, *texts: str, **options: Any) -> OdfError:
        """Pushes and expects an error whose text and hint have these parts; the head stays."""
        head = self.dataset.head()
        with pytest.raises(kind) as caught:
            self.push(*names.split(), **options)
        said = f"{caught.value} {caught.value.hint}"
        for text in texts:
            assert text in said, said
        assert self.dataset.head() == head
        return caught.value

    def append(self, event: MetadataEvent) -> None:
        """A block."""
        state = self.dataset.state()
        self.dataset.commit([event], system_time=state.system_time, expected_head=state.head, block_version=3)

    def said(self, text: str) -> bool:
        return any(text in line for _, line in self.reporter.lines)


@pytest.fixture
def pushed(workspace: Workspace, runtime: SparkRuntime) -> Pushed:
    return Pushed(workspace, runtime)


def source(name: str = "main", read: str = NDJSON, merge: str = LEDGER) -> str:
    return SOURCE.format(name=name, read=read, merge=merge)


def shapes(rows: list[dict[str, Any]]) -> bytes:
    """A zipped shapefile with a point for each row."""
    parts = {kind: io.BytesIO() for kind in ("shp", "shx", "dbf")}
    with shapefile.Writer(**parts) as writer:  # type: ignore[arg-type]
        writer.field("ID", "N")
        writer.field("NOTE", "C")
        for row in rows:
            writer.point(1, 2)
            writer.record(row["id"], row["note"])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for kind, part in parts.items():
            archive.writestr(f"areas.{kind}", part.getvalue())
    return packed.getvalue()


def state_of(source: str, pushed: Pushed, name: str, event_time: str = "") -> SourceState:
    """What a push of a file records."""
    path = pushed.workspace.folder / name
    digest, status = hashlib.sha256(path.read_bytes()).hexdigest(), path.stat()
    version = hashlib.sha3_256(f"{path}\n{status.st_size}\n{status.st_mtime_ns}".encode()).hexdigest()
    return SourceState(source, "odf/payload-hash", f"f1220{digest}\t{event_time}\tf1620{version}")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_pushed_files_are_committed_one_after_the_other(pushed: Pushed) -> None:
    pushed.define(source())
    pushed.write("a.ndjson", '{"at": "2024-01-02", "id": 1, "note": "x"}\n{"at": "2024-01-01", "id": 2}\n')
    pushed.write("b.ndjson", '{"at": null, "id": 3, "note": "y"}\n{"at": "2023-05-05", "id": 4}\n')
    result = pushed.push("a.ndjson", "b.ndjson", event_time=Timestamp.parse("2024-03-01T00:00:00Z"))
    assert (result.status, result.blocks, result.records) == ("updated", 3, 4)
    assert pushed.kinds()[-3:] == ["SetDataSchema", "AddData", "AddData"]
    assert pushed.rows("id", "at") == [
        (2, at("2024-01-01")), (1, at("2024-01-02")), (4, at("2023-05-05")), (3, at("2024-03-01")),
    ]  # fmt: skip
    event = pushed.newest()
    assert event.prev_offset == 1
    assert event.new_source_state == state_of("main", pushed, "b.ndjson", "2024-03-01T00:00:00Z")
    assert str(event.new_watermark) == "2024-03-01T00:00:00Z"
    # There is no state of a source: the same file again is looked at again, and the ledger knows its rows.
    again = pushed.push("a.ndjson")
    assert (again.status, again.blocks) == ("up-to-date", 0)
    # A late row is taken, and the watermark stays; one without a time gets that of now.
    pushed.write("late.ndjson", '{"at": "2001-01-01", "id": 5, "note": "late"}')
    pushed.push("late.ndjson")
    assert str(pushed.newest().new_watermark) == "2024-03-01T00:00:00Z"
    pushed.write("now.ndjson", '{"at": null, "id": 6, "note": null}')
    pushed.push("now.ndjson")
    assert pushed.rows("at")[-1][0].timestamp() == pytest.approx(datetime.now(UTC).timestamp(), abs=60)
    # What a ledger has with other values: a warning, or an error.
    pushed.write("other.ndjson", '{"at": "2001-01-01", "id": 5, "note": "changed"}')
    assert pushed.push("other.ndjson").status == "up-to-date"
    assert "id=5" in pushed.reporter.warnings[0]
    pushed.refuses(BadData, "other.ndjson", "1 row with", "id=5", strict=True)
    # The first file stays when the second fails, and the error says so.
    pushed.write("good.ndjson", '{"at": null, "id": 7, "note": null}')
    pushed.write("bad.ndjson", '{"at": null, "id": 8, "note": null}\n{"at": 1, "id": \n')
    with pytest.raises(BadData, match=r"bad.ndjson: line 2") as caught:
        pushed.push("good.ndjson", "bad.ndjson")
    assert "good.ndjson" in (caught.value.hint or "")
    assert caught.value.excerpt == ('2 | {"at": 1, "id":',)
    assert pushed.rows("id")[-1] == (7,)


def test_file_whose_commit_was_not_synced_is_in_the_dataset(
    pushed: Pushed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed.define(SOURCE.format(name="default", read=NDJSON, merge="{kind: Append}"))
    for number in (1, 2):
        (pushed.workspace.folder / f"{number}.ndjson").write_text(
            f'{{"at": "2026-05-0{number}T00:00:00Z", "id": {number}, "note": "one row"}}\n'
        )
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == pushed.dataset.folder / "refs":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(NotSynced, match="committed, but could not be synced to disk") as caught:
        pushed.push("1.ndjson", "2.ndjson")
    assert "already committed: 1.ndjson; push the remaining files only" in (caught.value.hint or "")
    monkeypatch.undo()
    assert pushed.dataset.state().records == 1
    pushed.push("2.ndjson")
    assert pushed.dataset.state().records == 2


def test_push_requires_a_source_name_if_several_exist(pushed: Pushed) -> None:
    pushed.write("a.ndjson", '{"at": null, "id": 1, "note": null}')
    pushed.define(source("one"), source("two", merge="{kind: Append}"))
    pushed.refuses(UsageError, "a.ndjson", "2 push sources: 'one', 'two'", "--source")
    pushed.refuses(UsageError, "a.ndjson", "no push source 'three'", "'one', 'two'", source="three")
    pushed.refuses(SourceUnavailable, "a.ndjson b.ndjson", "b.ndjson", source="one")
    assert pushed.push("a.ndjson", source="two").records == 1
    assert pushed.push("a.ndjson", source="one").records == 0
    assert pushed.push("a.ndjson", source="two", force=True).records == 1  # appends, whatever is there
    pushed.append(DisablePushSource("one"))
    assert pushed.push("a.ndjson", force=True).records == 1  # the only one now
    pushed.refuses(UsageError, "a.ndjson", "'one' was disabled by block", source="one")
    pushed.append(DisablePushSource("two"))
    pushed.refuses(Unsupported, "a.ndjson", "has no push source: 'two' was disabled")


def test_dataset_can_switch_between_polling_and_push_sources(pushed: Pushed) -> None:
    pushed.write("in.csv", "id\n1\n")
    poll = """
    - kind: SetPollingSource
      fetch: {kind: Url, url: in.csv}
      read: {kind: Csv, header: true, schema: ["id BIGINT"]}
      merge: {kind: Append}
"""
    pushed.define(poll)
    pushed.write("a.ndjson", '{"id": 2}')
    pushed.refuses(Unsupported, "a.ndjson", "has a polling source", "odf pull data")
    pushed.pull()
    state = pushed.dataset.state()
    assert state.source_state is not None
    pushed.pull(set_watermark=Timestamp.parse("2030-01-01T00:00:00Z"))
    old = state.polling_source
    assert isinstance(old, SetPollingSource)
    pushed.append(DisablePollingSource())
    assert pushed.pull().status == "up-to-date"
    assert pushed.said("the polling source was disabled by block 6")
    pushed.refuses(Unsupported, "a.ndjson", "no push source")
    pushed.append(AddPushSource(source_name="main", read=NdJson(schema=["id BIGINT"]), merge=Append()))
    assert pushed.pull().status == "up-to-date"
    assert pushed.said("it has a push source")
    assert pushed.push("a.ndjson").records == 1
    event = pushed.newest()
    assert str(event.new_watermark) == "2030-01-01T00:00:00Z"
    assert event.new_source_state == state_of("main", pushed, "a.ndjson")
    pushed.append(DisablePushSource("main"))
    pushed.append(old)
    assert pushed.pull(fetch_uncacheable=True, force=True).records == 1
    assert pushed.rows("id") == [(1,), (2,), (1,)]
    assert str(pushed.newest().new_watermark) == "2030-01-01T00:00:00Z"
    # What data blocks carry is carried over blocks of other kinds too.
    state = pushed.dataset.state()
    assert state.schema is not None
    grown = decode_schema(state.schema).append(pa.field("more", pa.string()))
    pushed.append(SetDataSchema(schema=encode_schema(grown)))
    assert pushed.pull(set_watermark=Timestamp.parse("2020-01-01T00:00:00Z")).status == "up-to-date"
    assert pushed.pull(set_watermark=Timestamp.parse("2031-01-01T00:00:00Z")).blocks == 1
    event = pushed.newest()
    assert (event.prev_offset, event.new_data) == (2, None)
    assert event.new_source_state == state.source_state is not None


def test_pushed_format_comes_from_file_name_or_option(pushed: Pushed) -> None:
    csv = '{kind: Csv, separator: ";", header: true, schema: ["id BIGINT NOT NULL", "note STRING"]}'
    pushed.define(source(read=csv, merge="{kind: Append}"))
    rows = [{"id": 1, "note": "x"}, {"id": 2, "note": "y"}]
    pushed.write("own.csv", "note;id\nx;1\ny;2\n")  # by name, whatever their order
    pushed.write("plain.txt", "id,note\n1,x\n2,y\n")
    pushed.write("bare.txt", "1,x\n2,y\n")
    pushed.write("lines.ndjson", "\n".join(map(json.dumps, rows)))
    pushed.write("lines.json", "\ufeff" + "\n".join(map(json.dumps, rows)))
    pushed.write("array.json", json.dumps(rows))
    features = [{"type": "Feature", "properties": row, "geometry": {"type": "Point", "coordinates": [1, 2]}}
                for row in rows]  # fmt: skip
    pushed.write("shapes.geojson", json.dumps({"type": "FeatureCollection", "features": features}))
    pushed.write("shapes.txt", "\n".join(map(json.dumps, features)))
    pq.write_table(pa.Table.from_pylist(rows), pushed.workspace.folder / "packed.parquet")
    pushed.write("areas.zip", shapes(rows))
    expected = [(1, "x"), (2, "y")]
    for name, options in {
        "own.csv": {}, "lines.ndjson": {}, "lines.json": {}, "array.json": {}, "packed.parquet": {},
        "shapes.geojson": {}, "shapes.txt": {"format": "NdGeoJson"}, "areas.zip": {"format": "esrishapefile"},
    }.items():  # fmt: skip
        assert pushed.push(name, **options).records == 2, name
        assert pushed.rows("id", "note")[-2:] == expected, name
        assert pushed.said("according to its file name") == (not options and name != "own.csv"), name
    pushed.refuses(UsageError, "own.csv", "unknown format 'cvs'", "ndgeojson", format="cvs")
    pushed.refuses(InvalidSchema, "plain.txt", "unknown columns: id,note")  # the source's separator is ';'
    # Another format than the source's knows nothing of its options.
    pushed.define(source(merge="{kind: Append}", read='{kind: NdJson, schema: ["id BIGINT", "note STRING"]}'),
                  name="other")  # fmt: skip
    for name in ("plain.txt", "bare.txt"):
        assert pushed.push(name, format="csv").records == 2, name
        assert pushed.rows("id", "note")[-2:] == expected, name
    pushed.write("empty.ndjson", "")
    assert pushed.push("empty.ndjson").status == "up-to-date"
    pushed.write("packed.csv.gz", gzip.compress(b"1,x\n"))
    pushed.refuses(BadData, "packed.csv.gz", "packed", "gzip -dc packed.csv.gz | odf ingest other -")


def test_unknown_and_missing_columns_are_rejected_unless_ignored(pushed: Pushed) -> None:
    pushed.define(source(merge="{kind: Append}"))
    late = "\n".join(['{"at": null, "id": 1, "note": "n"}'] * 20_000 + ['{"id": 2, "nota": "n"}'])
    pushed.write("typo.ndjson", late)  # far behind the first lines
    error = pushed.refuses(InvalidSchema, "typo.ndjson", "unknown columns: nota", "at, id, note")
    assert "missing" not in error.message
    assert error.excerpt == ('20001 | {"id": 2, "nota": "n"}',)
    pushed.write("some.ndjson", '{"id": 1, "nott": "n"}\n')
    pushed.refuses(
        InvalidSchema,
        "some.ndjson",
        "unknown columns: nott; missing columns: at, note",
        "did you mean 'note' instead of 'nott'?",
    )
    assert pushed.push("some.ndjson", ignore_unknown=True).records == 1
    assert [text.partition(": ")[2] for text in pushed.reporter.warnings] == [
        "unknown columns are dropped: nott", "missing columns are null: at, note",
    ]  # fmt: skip
    pushed.write("none.ndjson", '{"note": "n"}\n')
    pushed.refuses(
        InvalidSchema, "none.ndjson", "missing columns: at, id", "not nullable: id", ignore_unknown=True
    )
    pushed.write("case.ndjson", '{"at": null, "ID": 1, "note": null}\n')
    assert pushed.push("case.ndjson").records == 1
    pushed.write("some.csv", "ID,extra,NOTE\n7,x,seven\n")
    pushed.refuses(
        InvalidSchema, "some.csv", "unknown columns: extra; missing columns: at", "--ignore-unknown"
    )
    assert pushed.push("some.csv", ignore_unknown=True).records == 1
    assert pushed.rows("id", "note")[-1] == (7, "seven")
    pushed.write("twice.csv", "id,at,note,Id\n7,,seven,8\n")
    pushed.refuses(InvalidSchema, "twice.csv", "twice.csv: line 1", "duplicate column 'Id'")
    table = pa.table({"Note": ["n"], "ID": [8], "more": [1.5]})
    pq.write_table(table, pushed.workspace.folder / "some.parquet")
    pushed.refuses(InvalidSchema, "some.parquet", "unknown columns: more; missing columns: at")
    for suffix, text in (("csv", "{},at\n1,2024-01-01\n"), ("ndjson", '{{"{}": 1}}\n')):
        pushed.write(f"unseen.{suffix}", text.format("i\u200bd"))
        pushed.refuses(OdfError, f"unseen.{suffix}", "'i\\u200bd' in the file looks like the column 'id'")
    assert pushed.push("some.parquet", ignore_unknown=True).records == 1
    assert pushed.rows("id", "note")[-1] == (8, "n")


def test_source_without_declared_columns_uses_the_dataset_columns(pushed: Pushed) -> None:
    pushed.define(source(read="{kind: Parquet}", merge="{kind: Append}"))
    folder = pushed.workspace.folder
    pq.write_table(pa.table({"id": [1], "note": ["n"]}), folder / "a.parquet")
    assert pushed.push("a.parquet").records == 1
    pq.write_table(pa.table({"note": ["m"], "id": pa.array([2], pa.int32())}), folder / "b.parquet")
    assert pushed.push("b.parquet").records == 1
    pq.write_table(pa.table({"ID": [7], "id": [3], "note": ["x"], "Note": ["y"]}), folder / "c.parquet")
    assert pushed.push("c.parquet").records == 1
    pq.write_table(pa.table({"id": [1], "more": ["n"]}), folder / "c.parquet")
    pushed.refuses(InvalidSchema, "c.parquet", "unknown columns: more; missing columns: note")
    assert pushed.push("c.parquet", ignore_unknown=True).records == 1
    assert pushed.rows("id", "note") == [(1, "n"), (2, "m"), (3, "x"), (1, None)]


@pytest.mark.complete
def test_first_pushed_file_decides_undeclared_columns(pushed: Pushed) -> None:
    """The first file decides the columns; later files have to have them, in its types."""
    pushed.define(source(read="{kind: NdJson}"))
    pushed.write("t.ndjson", '{"at": "2024-01-01", "id": 1, "note": "a"}')
    pushed.refuses(InvalidSchema, "t.ndjson", "'at' is a STRING", "cast it in the preprocess query")
    pushed.write("a.ndjson", '{"id": 1, "note": "a"}\n{"id": 2, "note": "b"}')
    assert pushed.push("a.ndjson", event_time=Timestamp.parse("2024-01-01T00:00:00Z")).records == 2
    pushed.write("b.ndjson", '{"at": "2024-01-03", "id": "x", "note": "c"}')
    pushed.refuses(BadData, "b.ndjson", "'x'")
    pushed.write("c.ndjson", '{"at": "2024-01-03", "id": 3, "more": "c"}')
    pushed.refuses(InvalidSchema, "c.ndjson", "unknown columns: more; missing columns: note")
    lines = [
        '{"op": "-C", "at": "2024-01-01", "id": 1, "note": "a"}',
        '{"op": "+C", "at": "2024-01-05", "id": 1, "note": "A"}',
        '{"op": 1, "id": 2, "note": "b"}',
    ]
    pushed.write("d.ndjson", "\n".join(lines))
    assert pushed.push("d.ndjson").records == 3
    pushed.write("e.csv", "id,note,at\n4,d,2024-01-04\n")
    assert pushed.push("e.csv").records == 1
    assert pushed.rows("op", "id", "note", "at") == [
        (0, 1, "a", at("2024-01-01")), (0, 2, "b", at("2024-01-01")), (2, 1, "a", at("2024-01-01")),
        (3, 1, "A", at("2024-01-05")), (1, 2, "b", at("2024-01-01")), (0, 4, "d", at("2024-01-04")),
    ]  # fmt: skip
    pushed.write("j.csv", "4,d,2024-01-04\n")
    pushed.refuses(InvalidSchema, "j.csv", "j.csv: line 1", "no column of the dataset", "add a header line")
    # A source without a header: columns are matched by position, and have the types of the dataset.
    pushed.define(source(read="{kind: Csv, inferSchema: true}", merge="{kind: Append}"), name="plain")
    pushed.write("g.csv", "1,a\n2,b\n")
    pushed.write("h.csv", "3,4\n")
    assert pushed.push("g.csv").records == 2 and pushed.push("h.csv").records == 1
    assert pushed.rows("_c0", "_c1") == [(1, "a"), (2, "b"), (3, "4")]
    pushed.write("i.csv", "x,4\n")
    pushed.refuses(BadData, "i.csv", "'x'")
    # A file of another format can be the first: its columns are named in its header.
    pushed.define(source(read="{kind: NdJson}", merge="{kind: Append}"), name="other")
    pushed.write("f.csv", "id,note\n4,d\n")
    assert pushed.push("f.csv").records == 1
    assert pushed.rows("id", "note") == [("4", "d")]


def test_pushed_operations_retract_and_correct_rows(pushed: Pushed) -> None:
    read = '{kind: NdJson, schema: ["op STRING", "at TIMESTAMP", "id BIGINT NOT NULL", "note STRING"]}'
    pushed.define(source(read=read))
    lines = ['{"at": "2024-01-01", "id": 1, "note": "a"}', '{"at": "2024-01-02", "id": 2, "note": "b"}']
    pushed.write("plain.ndjson", "\n".join(lines))
    assert pushed.push("plain.ndjson").records == 2  # without operations: a ledger's rows, as ever
    pushed.write("wrong.csv", "op,id,note,at\n-R,2,other,\n")
    error = pushed.refuses(BadData, "wrong.csv", "the values differ from those of the existing row")
    assert "wrong.csv" in str(error)
    pushed.write("half.csv", "op,id,note,at\n2,1,a,2024-01-01\n")
    pushed.refuses(BadData, "half.csv", "a -C must be followed by the +C")
    pushed.write(
        "right.csv", "op,id,note,at\n-C,1,a,2024-01-01\n+C,1,A,2024-01-05\n-R,2,b,\n+A,3,c,2024-01-03\n"
    )
    assert pushed.push("right.csv").records == 4
    assert pushed.rows("op", "id", "note", "at")[2:] == [
        (2, 1, "a", at("2024-01-01")), (3, 1, "A", at("2024-01-05")), (1, 2, "b", at("2024-01-02")),
        (0, 3, "c", at("2024-01-03")),
    ]  # fmt: skip
    # Where the source does not take them they are not left out either: what is taken back would be added.
    pushed.define(source(merge="{kind: Append}"), name="plain")
    pushed.refuses(InvalidSchema, "right.csv", "in column 'op'", "add op STRING", ignore_unknown=True)
    # What is polled brings no operations.
    pushed.write("in.csv", "op,id\n+A,1\n")
    pushed.add(
        "fetch: {kind: Url, url: in.csv}\nread: {kind: Csv, header: true}\nmerge: {kind: Append}", name="p"
    )
    pushed.fails(InvalidSchema, "'op', which is a system column")


POLLED = """
    - kind: SetPollingSource
      fetch: {kind: Url, url: in.csv}
      read: {kind: Csv, header: true, schema: ["at TIMESTAMP", "id BIGINT", "note STRING"]}
      merge: {kind: Ledger, primaryKey: [id]}
    - kind: AddPushSource
      sourceName: corrections
      read: {kind: NdJson, schema: ["op STRING", "at TIMESTAMP", "id BIGINT", "note STRING"]}
      merge: {kind: Ledger, primaryKey: [id]}
"""


def test_polled_rows_are_corrected_by_push_or_on_conflict(pushed: Pushed) -> None:
    """By push, and by the polling source itself where the workspace says so."""
    pushed.define(POLLED)
    rows = "at,id,note\n2024-01-01T00:00:00Z,1,a\n2024-01-01T00:00:00Z,2,b\n"
    pushed.write("in.csv", rows)
    pushed.write(
        "a.ndjson",
        '{"op": "-C", "id": 1, "note": "a"}\n{"op": "+C", "at": "2024-01-01T00:00:00Z", "id": 1, '
        '"note": "A"}\n{"op": "-R", "id": 2, "note": "b"}',
    )
    pushed.refuses(Unsupported, "a.ndjson", "was not pulled yet", "odf pull data")
    assert pushed.pull().records == 2
    state = pushed.dataset.state()
    assert pushed.push("a.ndjson").records == 3
    assert pushed.pull().status == "up-to-date"  # the push keeps the state of the polling source
    assert pushed.dataset.state().source_state == state.source_state is not None
    pushed.refuses(BadData, "a.ndjson", "the values differ from those of the existing row", force=True)
    changed = rows.replace("1,a", "1,z").replace("2,b", "2,z")
    pushed.write("in.csv", changed)
    pushed.pull()
    assert pushed.said("2 rows with an existing primary key and different values")
    for setting in ("fail", "correct"):
        config = set_value(pushed.workspace.config, "onConflict.Data", setting)
        save(config, pushed.workspace.odf / "config.yaml")
        pushed.workspace = Workspace(pushed.workspace.folder)
        pushed.write("in.csv", changed + f"2024-01-02T00:00:00Z,3,{setting}\n")
        if setting == "fail":
            with pytest.raises(BadData, match="2 rows with an existing primary key"):
                pushed.pull()
    assert pushed.pull().records == 3
    assert pushed.said("1 changed row corrected") and pushed.said("1 row with an existing primary key")
    assert pushed.rows("op", "id", "note")[2:] == [
        (2, 1, "a"), (3, 1, "A"), (1, 2, "b"), (0, 3, "correct"), (2, 1, "A"), (3, 1, "z")
    ]  # fmt: skip
    assert verify(pushed.dataset, Reporter()).valid


def test_future_event_times_do_not_advance_the_watermark(pushed: Pushed) -> None:
    pushed.define(source(), name="sensors")
    row = '{{"at": "{}", "id": {}, "note": null}}\n'
    pushed.write("a.ndjson", row.format("2024-01-01", 1) + row.format("9999-12-31", 2))
    assert pushed.push("a.ndjson").records == 2
    assert str(pushed.newest().new_watermark) == "2024-01-01T00:00:00Z"
    (warning,) = pushed.reporter.warnings
    assert "1 of 2 rows with an event time later than the system time" in warning
    assert "(latest: 9999-12-31T00:00:00Z)" in warning
    assert "if these times are right, run" in warning
    assert "odf config set watermark.maxAhead.sensors none" in warning
    # Rows that are all ahead leave the watermark as it is.
    pushed.write("b.ndjson", row.format("9999-12-31", 3))
    pushed.push("b.ndjson")
    assert "1 of 1 row with an event time later than" in pushed.reporter.warnings[-1]
    assert "if the rows are forecasts, run odf config set" in pushed.reporter.warnings[-1]
    assert str(pushed.newest().new_watermark) == "2024-01-01T00:00:00Z"
    # A delay never lowers it.
    pushed.workspace.config = set_value(pushed.workspace.config, "watermark.delay.%", "1d")
    pushed.write("c.ndjson", row.format("2024-01-01T12:00:00Z", 4))
    pushed.push("c.ndjson")
    assert str(pushed.newest().new_watermark) == "2024-01-01T00:00:00Z"
    pushed.write("d.ndjson", row.format("2024-03-02", 5))
    pushed.push("d.ndjson")
    assert str(pushed.newest().new_watermark) == "2024-03-01T00:00:00Z" and not pushed.reporter.warnings
    pushed.workspace.config = set_value(pushed.workspace.config, "watermark.maxAhead.sensors", "none")
    pushed.write("e.ndjson", row.format("2999-01-02", 6))
    pushed.push("e.ndjson")
    assert str(pushed.newest().new_watermark) == "2999-01-01T00:00:00Z" and not pushed.reporter.warnings


def test_equal_content_of_another_file_is_appended(pushed: Pushed) -> None:
    pushed.define(source(merge="{kind: Append}"))
    reading = '{"at": null, "id": 1, "note": "20.5"}'
    path = pushed.write("a.ndjson", reading)
    pushed.write("b.ndjson", reading)
    assert pushed.push("a.ndjson", "b.ndjson").records == 2
    assert pushed.push("a.ndjson", "b.ndjson").status == "up-to-date"
    pushed.write("a.ndjson", reading)
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
    assert pushed.push("a.ndjson", "b.ndjson").records == 1
    assert pushed.already_ingested == 1
    assert pushed.rows("id") == [(1,)] * 3


def test_file_of_an_earlier_version_is_ingested_once(pushed: Pushed, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed.define(source(merge="{kind: Append}"))
    path = pushed.write("a.ndjson", '{"at": null, "id": 1, "note": "x"}')
    pushed.write("b.ndjson", '{"at": null, "id": 2, "note": "y"}')
    recorded = push_source._push_state

    def push_state(*arguments: Any) -> SourceState:
        contents, event_time, _ = (state := recorded(*arguments)).value.split("\t")
        return replace(state, value=contents + (event_time and f"\t{event_time}"))

    time = Timestamp.parse("2024-01-01T00:00:00Z")
    with monkeypatch.context() as patched:
        patched.setattr(push_source, "_push_state", push_state)
        assert pushed.push("a.ndjson").records == 1
        assert pushed.push("b.ndjson", event_time=time).records == 1
    assert pushed.push("a.ndjson").records == pushed.push("b.ndjson", event_time=time).records == 0
    path.touch()  # equal contents that were written after the block
    assert pushed.push("a.ndjson").records == 1


def test_an_unchanged_file_is_pushed_once_per_source(pushed: Pushed) -> None:
    append = "{kind: Append}"
    pushed.define(source("one", merge=append), source("two", merge=append))
    pushed.write("a.ndjson", '{"at": null, "id": 1, "note": "x"}')
    pushed.write("b.ndjson", '{"at": null, "id": 2, "note": "y"}')
    assert pushed.push("a.ndjson", source="one").records == 1
    assert pushed.newest().new_source_state == state_of("one", pushed, "a.ndjson")
    assert pushed.push("b.ndjson", source="one").records == 1
    # Other files of the same push are ingested.
    pushed.write("c.ndjson", '{"at": null, "id": 3, "note": "z"}')
    assert pushed.push("a.ndjson", "c.ndjson", "c.ndjson", source="one").records == 1
    assert pushed.already_ingested == 2
    assert pushed.reporter.warnings[0] == (
        "a.ndjson: already ingested: block 5 has this unchanged file; use --force to ingest it again"
    )
    head = pushed.dataset.head()
    assert pushed.push("a.ndjson", source="one").status == "up-to-date" and pushed.dataset.head() == head
    # Another source, another event time, or force.
    assert pushed.push("a.ndjson", source="two").records == 1
    assert pushed.newest().new_source_state == state_of("two", pushed, "a.ndjson")
    time = Timestamp.parse("2024-01-01T00:00:00Z")
    assert [pushed.push("a.ndjson", source="one", event_time=time).records for _ in "12"] == [1, 0]
    assert pushed.push("a.ndjson", source="one", force=True).records == 1
    # A key identifies the push instead of the contents.
    assert pushed.push("a.ndjson", source="one", idempotency_key="k").records == 1
    assert pushed.newest().new_source_state == SourceState("one", "odf/idempotency-key", "k")
    assert pushed.push("b.ndjson", source="one", idempotency_key="k").records == 0
    assert pushed.said("b.ndjson: already ingested: block 11 has the same idempotency key")
    assert pushed.push("b.ndjson", source="two", idempotency_key="k").records == 1
    pushed.refuses(UsageError, "a.ndjson b.ndjson", "identifies one file", source="one", idempotency_key="k")
    pushed.refuses(UsageError, "a.ndjson", "printable text", source="one", idempotency_key="\x1b[2J")
    # The chain says it too: without the index, and to an index that is made anew.
    pushed.workspace.index.reset()
    assert pushed.push("a.ndjson", source="one").records == 0
    assert verify(pushed.dataset, pushed.reporter).valid


def test_an_earlier_snapshot_is_a_change(pushed: Pushed) -> None:
    pushed.define(source(merge="{kind: Snapshot, primaryKey: [id]}"))
    pushed.write("a.ndjson", '{"at": null, "id": 1, "note": "x"}')
    pushed.write("b.ndjson", '{"at": null, "id": 1, "note": "y"}')
    assert [pushed.push(name).records for name in ("a.ndjson", "a.ndjson")] == [1, 0]
    assert pushed.already_ingested == 1
    assert [pushed.push(name).records for name in ("b.ndjson", "a.ndjson", "b.ndjson")] == [2, 2, 2]


def test_invalid_rows_are_listed_or_rejected(pushed: Pushed) -> None:
    pushed.define(source())
    pushed.write("a.csv", "at,note,id\n,x,1\n,y,many\n,z,3,4\n,v,\n,w,5\n")
    error = pushed.refuses(BadData, "a.csv", "3 invalid rows, the first in line 3", "onBadRows.data reject")
    assert error.excerpt == (
        "line 3, column \"id\": 'many' is not a BIGINT",
        "line 4: 4 values for 3 columns: ,z,3,4",
        'line 5, column "id": no value in a column declared NOT NULL',
    )
    (pushed.workspace.odf / "config.yaml").write_text("onBadRows: {'da%': reject}\n")
    pushed.workspace = Workspace(pushed.workspace.folder)
    assert pushed.push("a.csv").records == 2
    assert pushed.rows("id", "note") == [(1, "x"), (5, "w")]
    (rejects,) = read_rejects(pushed.dataset.folder).values()
    assert rejects.rows == 3
    pushed.write("b.ndjson", '{"id": 6, "note": "a", "at": null}\n{"id": "x"}\n{"id": 7, "note": "b"}\n')
    assert pushed.push("b.ndjson").records == 2
