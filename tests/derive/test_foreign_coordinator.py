"""A coordinator of another implementation: it writes FlatBuffers itself, and passes whole input files."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flatbuffers
import grpc
import pyarrow.parquet as pq
import pytest

from odf_engine.engines.grpc_server import EngineServer
from odf_engine.spark.runtime.session import SparkRuntime
from tests.derive.deriving import Deriving

METHOD = "/engine.Engine/ExecuteTransform"
SUCCESS = 2
Interval = tuple[int, int] | None


class Fields:
    """Writes the tables of a request as the schema of the specification declares their slots."""

    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(1024)

    def text(self, value: str | None) -> int | None:
        return None if value is None else self.builder.CreateString(value)

    def table(self, slots: int, offsets: dict[int, int | None], **plain: Any) -> int:
        builder = self.builder
        builder.StartObject(slots)
        for slot, offset in offsets.items():
            if offset is not None:
                builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
        for name, value in plain.items():
            kind, slot = name[0], int(name[1:])
            if kind == "n":
                builder.PrependUint64Slot(slot, value, 0)
            elif kind == "u":
                builder.PrependUint8Slot(slot, value, 0)
            else:  # an instant: year, day of the year, second of the day, nanosecond
                builder.Prep(4, 16)
                for byte in reversed(struct.pack("<iHxxII", *value)):
                    builder.PrependByte(byte)
                builder.PrependStructSlot(slot, builder.Offset(), 0)
        return builder.EndObject()

    def vector(self, items: list[int]) -> int:
        self.builder.StartVector(4, len(items), 4)
        for item in reversed(items):
            self.builder.PrependUOffsetTRelative(item)
        return self.builder.EndVector()

    def vocabulary(self) -> int:
        names = [self.text(name) for name in ("offset", "op", "system_time", "event_time")]
        return self.table(4, dict(enumerate(names)))


@dataclass
class Coordinator:
    """Runs transactions of one query over one input, whose files it passes whole."""

    address: str
    folder: Path
    files: list[Path]
    query: str
    checkpoint: Path | None = None
    next_offset: int = 0
    as_list: bool = True

    def run(self, interval: Interval, day: int) -> list[dict[str, Any]]:
        """The rows of one transaction; the watermark of the input is a day of January 2024."""
        data, state = (self.folder / f"{kind}-{day}" for kind in ("data", "state"))
        with grpc.insecure_channel(self.address) as channel:
            body = self.request(interval, day, data, state)
            length = bytes([len(body) & 0x7F | 0x80, len(body) >> 7 & 0x7F | 0x80, len(body) >> 14])
            *_, answer = channel.unary_stream(METHOD)(b"\x0a" + length + body)
        assert self.kind_of(answer) == SUCCESS, answer
        if state.exists():
            self.checkpoint = state
        rows = pq.read_table(data).to_pylist() if data.exists() else []
        self.next_offset += len(rows)
        return rows

    def request(self, interval: Interval, day: int, data: Path, state: Path) -> bytes:
        make = Fields()
        if self.as_list:
            step = make.table(2, {1: make.text(self.query)})
            transform = make.table(5, {0: make.text("spark"), 3: make.vector([step])})
        else:
            transform = make.table(5, {0: make.text("spark"), 2: make.text(self.query)})
        schema = self.folder / "schema.parquet"
        pq.write_table(pq.read_table(self.files[0]).slice(0, 0), schema)
        watermark = make.table(2, {}, t0=(2024, 100, day, 0), t1=(2024, day, 0, 0))
        read = None if interval is None else make.table(2, {}, n0=interval[0], n1=interval[1])
        own_id, input_id = (
            make.builder.CreateByteVector(b"\xed\x01" + bytes([number] * 32)) for number in (1, 2)
        )
        paths = make.vector([make.builder.CreateString(str(path)) for path in self.files])
        offsets = {
            0: input_id, 1: make.text("their.input"), 2: make.text("input"), 3: make.vocabulary(),
            4: read, 5: paths, 6: make.text(str(schema)), 7: make.vector([watermark]),
        }  # fmt: skip
        inputs = make.vector([make.table(8, offsets)])
        before = None if self.checkpoint is None else make.text(str(self.checkpoint))
        offsets = {
            0: own_id, 1: make.text("their.output"), 3: make.vocabulary(), 5: transform, 6: inputs, 8: before,
            9: make.text(str(state)), 10: make.text(str(data)),
        }  # fmt: skip
        plain: dict[str, Any] = {"t2": (2024, 100, day, 0), "u4": 1, "n7": self.next_offset}
        make.builder.Finish(make.table(11, offsets, **plain))
        return bytes(make.builder.Output())

    @staticmethod
    def kind_of(answer: bytes) -> int:
        """The number of the response in its union."""
        at = 1
        while answer[at] & 0x80:
            at += 1
        body = answer[at + 1 :]
        (root,) = struct.unpack_from("<I", body)
        (back,) = struct.unpack_from("<i", body, root)
        (slot,) = struct.unpack_from("<H", body, root - back + 4)
        return body[root + slot]


@pytest.fixture
def served(runtime: SparkRuntime) -> Iterator[str]:
    server = EngineServer(runtime, "127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{server.port}"
    server.stop()


@pytest.fixture
def files(deriving: Deriving) -> list[Path]:
    """Two slices with two rows each, of the days 1 to 4."""
    root = deriving.root()
    for day in (1, 3):
        deriving.rows(root, (day, "a", day), (day + 1, "b", day + 1))
    return [root.dataset.slice_path(each) for each in root.dataset.slices()]


@pytest.mark.net
def test_stateless_query_reads_only_the_offset_interval(
    served: str, files: list[Path], tmp_path: Path
) -> None:
    theirs = Coordinator(served, tmp_path, files, "SELECT event_time, city, x * 10 AS y FROM input")
    found = [
        [(row["offset"], row["y"]) for row in theirs.run(interval, day)]
        for day, interval in ((1, (0, 0)), (2, None), (3, (1, 2)), (4, (3, 3)))
    ]
    assert found == [[(0, 10)], [], [(1, 20), (2, 30)], [(3, 40)]]


@pytest.mark.net
def test_single_query_may_be_sent_without_a_list(served: str, files: list[Path], tmp_path: Path) -> None:
    theirs = Coordinator(served, tmp_path, files, "SELECT event_time, x FROM input", as_list=False)
    assert [row["x"] for row in theirs.run((0, 1), 1)] == [1, 2]


@pytest.mark.net
def test_query_that_requires_earlier_rows_is_refused(served: str, files: list[Path], tmp_path: Path) -> None:
    query = "SELECT event_time, x FROM input WHERE x > (SELECT avg(x) FROM input)"
    theirs = Coordinator(served, tmp_path, files, query)
    assert [row["x"] for row in theirs.run((0, 1), 1)] == [2]
    with pytest.raises(AssertionError, match="a coordinator that passes them"):
        theirs.run((2, 3), 3)


@pytest.mark.net
def test_stateful_query_reads_only_the_offset_interval(
    served: str, files: list[Path], tmp_path: Path
) -> None:
    query = "SELECT max(event_time) AS event_time, city, sum(x) AS s, count(*) AS n FROM input GROUP BY city"
    theirs = Coordinator(served, tmp_path, files, query)
    found = [
        [(row["op"], row["city"], row["s"], row["n"]) for row in theirs.run(interval, day)]
        for day, interval in ((1, (0, 0)), (3, (1, 2)), (4, (3, 3)))
    ]
    assert found == [
        [(0, "a", 1, 1)],
        [(0, "b", 2, 1), (2, "a", 1, 1), (3, "a", 4, 2)],
        [(2, "b", 2, 1), (3, "b", 6, 2)],
    ]
