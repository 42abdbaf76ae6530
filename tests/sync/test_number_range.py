"""Blocks with numbers at the limits of 64 bits are refused or harmless, also in a chain that has them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.base.progress import Reporter
from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.state import decode_state, encode_state
from odf_engine.derive.verify.integrity import verify
from odf_engine.errors import OdfError
from odf_engine.identity.multiformats import ARROW0_SHA3_256, Multihash
from odf_engine.metadata import model
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.sync.pull import pull_dataset
from odf_engine.sync.remotes.folder_remote import FolderRemote
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import call_odf
from tests.sync import builders

ROWS = b"rows"
EDGES = [0, 1, 3, 2**31, 2**32 - 1, 2**53, 2**63 - 2, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]
NAMES = ["last", "start", "end", "size", "checkpoint", "watermark", "input", "new input"]
numbers = st.sampled_from(EDGES) | st.integers(0, 2**64 - 1)
moments = st.sampled_from(
    [builders.START, *map(Timestamp.parse, ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z"))]
)


def a_slice(entry: DatasetEntry, start: int, end: int, size: int) -> model.DataSlice:
    physical = builders.put(entry.dataset, "data", ROWS)
    logical = Multihash(ARROW0_SHA3_256, physical.digest)
    return model.DataSlice(logical, physical, model.OffsetInterval(start, end), size)


@st.composite
def data_events(draw: st.DrawFn, entry: DatasetEntry) -> Any:
    """A right AddData or ExecuteTransform, but for at most two numbers."""
    wrong = draw(st.sets(st.sampled_from(NAMES), max_size=2))

    def number(name: str, right: Any) -> Any:
        return draw(numbers) if name in wrong else right

    state = entry.dataset.state()
    last = number("last", state.last_offset)
    start = min(2**64 - 1, number("start", 0 if last is None else last + 1))
    end = number("end", min(2**64 - 1, start + 2))
    data = a_slice(entry, start, end, number("size", len(ROWS))) if draw(st.booleans()) else None
    checkpoint = None
    if "checkpoint" in wrong:
        checkpoint = model.Checkpoint(builders.put(entry.dataset, "checkpoints", ROWS), draw(numbers))
    carried: dict[str, Any] = {
        "prev_offset": last,
        "prev_checkpoint": state.last_checkpoint and state.last_checkpoint.physical_hash,
        "new_data": data,
        "new_checkpoint": checkpoint,
        "new_watermark": draw(moments) if "watermark" in wrong else state.watermark,
    }
    if state.kind is model.DatasetKind.Root:
        return model.AddData(**carried)
    assert state.last_inputs is not None
    [item] = state.last_inputs
    inputs = model.ExecuteTransformInput(
        item.dataset_id,
        prev_block_hash=item.new_block_hash,
        new_block_hash=Multihash.sha3_256(b"next"),
        prev_offset=number("input", item.new_offset),
        new_offset=number("new input", 9),
    )
    return model.ExecuteTransform([inputs], **carried)


def setting(number: int) -> st.SearchStrategy[Any]:
    extra = model.ExtraAttributes({"n": number * 2**9, "deeper": [{"n": -number * 2**9}, number]})
    list_type = model.List(model.Option(model.Decimal(number % 2**32, -(number % 2**31))), number)
    schema = model.DataSchema([model.DataField("a", list_type, extra)], extra)
    fetch = model.EthereumLogs(chain_id=number, filter="x")
    return st.sampled_from(
        [
            model.SetDataSchema(odf_schema=schema),
            model.SetPollingSource(fetch=fetch, read=model.Json(odf_schema=schema), merge=model.Append()),
            model.SetInfo("x" * 1000),
        ]
    )


@contextmanager
def two_workspaces() -> Iterator[tuple[Workspace, Workspace]]:
    with tempfile.TemporaryDirectory() as folder:
        yield Workspace.init(Path(folder) / "here"), Workspace.init(Path(folder) / "there")


def read_all(here: Workspace, entry: DatasetEntry) -> None:
    """Runs every command that reads a workspace: each ends in an answer or in an error with words."""
    here.index.close()
    folder, name = here.folder, str(entry.alias)
    for arguments in (["list"], ["list", "--json"], ["graph"], ["graph", "--columns"], ["show", "fine"]):
        ran = call_odf(*arguments, cwd=folder)
        assert ran.code == 0, (arguments, ran.err)
    assert [each["name"] for each in call_odf("list", "--json", cwd=folder).json] == sorted(["fine", name])
    for arguments in (["show", name], ["log", name], ["tail", name], ["schema", name]):
        ran = call_odf(*arguments, cwd=folder)
        assert ran.code in (0, 1), (arguments, ran.err)
        assert ran.code == 0 or ran.err.startswith("error: "), arguments
    verify(Dataset(entry.dataset.folder, BlockIndex(":memory:")), Reporter())


@pytest.mark.parametrize("kind", ["root", "derivative"])
@settings(max_examples=15)
@given(data=st.data(), adopted=st.booleans())
@pytest.mark.complete
def test_extreme_numbers_are_refused_or_harmless(kind: str, data: st.DataObject, adopted: bool) -> None:
    with two_workspaces() as (here, there):
        builders.make_root(here, "fine", slices=1)
        source = builders.make_root(there, "source", slices=1)
        if kind == "derivative":
            source = builders.make_derivative(there, source)
        copied = builders.copy_into(here, source)
        before = copied.dataset.head()
        event = data.draw(data_events(source) | numbers.flatmap(setting))
        changes: dict[str, Any] = {"system_time": data.draw(moments)} if data.draw(st.booleans()) else {}
        if data.draw(st.integers(0, 9)) == 0:
            changes["sequence_number"] = data.draw(numbers)
        builders.forge(source.dataset, event, **changes)
        try:
            pull_dataset(
                copied, FolderRemote(f"file://{source.dataset.folder}/"), Reporter(), force=False, parallel=1
            )
        except OdfError:
            assert copied.dataset.head() == before
            if adopted:  # by a version of this program that did not refuse it
                for path in (source.dataset.folder / "blocks").iterdir():
                    (copied.dataset.folder / "blocks" / path.name).write_bytes(path.read_bytes())
                builders.set_head(copied.dataset.folder, str(source.dataset.head()))
        else:
            state = copied.dataset.state()
            assert decode_state(encode_state(state)) == state
        read_all(here, copied)
        assert call_odf("delete", "--yes", str(copied.alias), cwd=here.folder).code == 0
        assert [str(dataset.alias) for dataset in Workspace(here.folder).datasets()] == ["fine"]
