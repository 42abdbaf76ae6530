"""Payloads with more rows than a slice: several blocks, committed together."""

from __future__ import annotations

import pytest

from odf_engine.base.config import Config, SlicesConfig
from odf_engine.base.progress import Reporter
from odf_engine.derive.provenance.root_origins import root_origin
from odf_engine.derive.verify.integrity import verify
from odf_engine.metadata.model import AddData
from odf_engine.metadata.timestamp import Timestamp
from tests.ingest.pulling import Pulled

pytestmark = pytest.mark.spark

SOURCE = """
fetch: {{kind: FilesGlob, path: "in/*.csv"}}
read: {{kind: Csv, header: true, schema: [event_time DATE, id BIGINT NOT NULL, n BIGINT]}}
merge: {{kind: {merge}}}
"""


def _csv(*rows: tuple[int, int, int]) -> str:
    lines = [f"2024-01-{day:02},{key},{value}" for day, key, value in rows]
    return "\n".join(["event_time,id,n", *lines, ""])


def _data(pulled: Pulled) -> list[AddData]:
    events = (block.block.event for block in pulled.dataset.blocks(newest_first=False))
    return [event for event in events if isinstance(event, AddData)]


def _sizes(events: list[AddData]) -> list[int]:
    intervals = [event.new_data.offset_interval for event in events if event.new_data is not None]
    return [interval.end - interval.start + 1 for interval in intervals]


@pytest.mark.parametrize("merge", ["Append", "Ledger, primaryKey: [id]", "Snapshot, primaryKey: [id]"])
def test_a_payload_is_committed_in_several_blocks(pulled: Pulled, merge: str) -> None:
    pulled.workspace.config = Config(slices=SlicesConfig(target_records=3))
    pulled.add(SOURCE.format(merge=merge))
    pulled.write("in/1.csv", _csv(*((1 + key % 5, key, 0) for key in range(8))))
    found = pulled.pull()
    assert (found.blocks, found.records) == (4, 8)  # the schema, three slices
    assert any("3 blocks up to" in str(line) for line in pulled.reporter.lines)
    first = _data(pulled)
    assert _sizes(first) == [3, 3, 2]
    assert [event.prev_offset for event in first] == [None, 2, 5]
    assert [event.new_watermark is None for event in first] == [True, True, False]
    assert [event.new_source_state is None for event in first] == [True, True, False]

    pulled.write("in/2.csv", _csv(*((6 + key % 4, key + 8, 1) for key in range(4))))
    found = pulled.pull()
    second = _data(pulled)[3:]
    if merge.startswith("Snapshot"):  # the first file's rows are retracted
        assert (found.blocks, found.records) == (4, 12)
    else:
        assert (found.blocks, _sizes(second)) == (2, [3, 1])
    states = [event.new_source_state for event in second]
    assert states[:-1] == [first[-1].new_source_state] * (len(states) - 1) != states[-1:]
    watermarks = [event.new_watermark for event in second]
    assert set(watermarks[:-1]) == {first[-1].new_watermark} and watermarks[-1] > watermarks[0]
    assert pulled.pull().status == "up-to-date"

    assert not verify(pulled.dataset, Reporter()).findings
    last = pulled.dataset.state().last_offset
    assert last is not None
    sources = root_origin(pulled.dataset, [(0, last)], Reporter()).sources
    names = [source.state.split()[1].rstrip(",") for source in sources]
    assert names == ["1.csv"] * 3 + ["2.csv"] * len(second)
    # The key index has the keys of all blocks.
    pulled.write("in/3.csv", _csv(*((6 + key % 4, key + 8, 1) for key in range(4))))
    assert pulled.pull().records == (4 if merge == "Append" else 0)


def test_the_blocks_do_not_depend_on_the_partitions(pulled: Pulled) -> None:
    pulled.workspace.config = Config(slices=SlicesConfig(target_records=1000))
    text = _csv(*((1 + key // 100, key, key % 7) for key in range(2500)))
    hashes = set()
    for size in ("128m", "4k"):
        pulled.runtime.session().conf.set("spark.sql.files.maxPartitionBytes", size)
        try:
            pulled.add(SOURCE.format(merge="Append").replace("in/", f"{size}/"), name=f"data{size}")
            pulled.write(f"{size}/1.csv", text)
            pulled.pull(set_watermark=None)
        finally:
            pulled.runtime.session().conf.unset("spark.sql.files.maxPartitionBytes")
        events = _data(pulled)
        assert _sizes(events) == [1000, 1000, 500]
        # The system time differs, and with it the hashes: the other columns are compared.
        hashes.add(str(pulled.table().drop_columns(["system_time"]).to_pylist()))
    assert len(hashes) == 1
    assert events[-1].new_watermark == Timestamp.parse("2024-01-25T00:00:00Z")
