"""The cost of the length of a chain.

Operations on a chain of 100,000 blocks are compared with the same operations on a chain of 100 blocks. Both
chains share an index. Each sample opens the dataset and the index, as a command does.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from odf_engine.chain.append_rules import check_append
from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.state import ChainState
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import (
    AddData,
    AttachmentEmbedded,
    Csv,
    DatasetKind,
    Embedded,
    MetadataBlock,
    SetAttachments,
    SetInfo,
    SetPollingSource,
    Snapshot,
    Url,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.bench.common import append_blocks
from tests.bench.measure import Figure, Metric, Size, median, timed

METRICS = {
    "prepare": Metric("open, prepare the next commit", "100 blocks", "<= 1.3x"),
    "commit": Metric("commit a block, with fsync", "100 blocks", "<= 1.3x"),
    "last_page": Metric("list the last 50 blocks", "100 blocks", "<= 1.3x"),
    "rare_kind": Metric("list the blocks of a rare kind", "100 blocks", "<= 1.3x"),
    "states": Metric("states of 100 datasets"),
    "index": Metric("rebuild the index of the long chain"),
}
FIRST_EVENTS = [
    SetPollingSource(
        fetch=Url("https://example.com/cities.csv"),
        read=Csv(schema=[f"column{number} STRING" for number in range(10)]),
        merge=Snapshot(["column0"]),
    ),
    SetInfo("Cities of the world", ["cities"]),
    SetAttachments(Embedded([AttachmentEmbedded("README.md", "About cities. " * 100)])),
]


def run(size: Size, folder: Path) -> list[Figure]:
    workspace, rounds = Workspace.init(folder / "ws"), size.pick(200, 5)
    short = make_chain(workspace, "short", 100).dataset.folder
    long = make_chain(workspace, "long", size.pick(100_000, 2000)).dataset.folder
    folders = [make_chain(workspace, f"d{number}", 6).dataset.folder for number in range(100)]
    workspace.index.close()
    index = workspace.odf / "index.sqlite"
    os.sync()  # the commits below should not pay for the blocks above
    figures = []
    for action in (prepare, commit, last_page, rare_kind):
        times = compare(action, long, short, index, rounds)
        figures.append(METRICS[action.__name__].figure(*times))
    figures.append(METRICS["states"].figure(median(lambda: read_states(folders, index), rounds)))
    rebuilding = timed(lambda: Dataset(long, BlockIndex(":memory:")).state())
    return [*figures, METRICS["index"].figure(rebuilding)]


def make_chain(workspace: Workspace, name: str, blocks: int) -> DatasetEntry:
    """Create a dataset as a manifest does, and extend its chain."""
    alias = DatasetAlias.parse(name)
    entry = workspace.create_dataset(alias, DatasetKind.Root, FIRST_EVENTS, Timestamp.now())
    append_blocks(entry, blocks)
    return entry


def prepare(dataset: Dataset) -> ChainState:
    """Do everything that precedes the writing of the next block."""
    state = dataset.state()
    block = MetadataBlock(
        system_time=state.system_time,
        prev_block_hash=state.head,
        sequence_number=state.sequence_number + 1,
        event=next_event(state),
    )
    check_append(state, block)
    return state


def commit(dataset: Dataset) -> None:
    """Commit a block, and wait for the disk."""
    state = dataset.state()
    dataset.commit([next_event(state)], system_time=state.system_time, expected_head=state.head)


def next_event(state: ChainState) -> AddData:
    assert state.watermark is not None
    return AddData(new_watermark=Timestamp(state.watermark.ns + 10**9))


def last_page(dataset: Dataset) -> None:
    """List the blocks that the block explorer shows first."""
    assert len(dataset.list_blocks(50)) == 50


def rare_kind(dataset: Dataset) -> None:
    """List the blocks of a kind that only the first blocks have."""
    assert len(dataset.list_blocks(50, kinds=["SetInfo"])) == 1


def compare(
    action: Callable[[Dataset], object], long: Path, short: Path, index: Path, rounds: int
) -> tuple[float, float]:
    """Return the medians of both chains, sampled in turns so that both see the same noise."""
    times: dict[Path, list[float]] = {long: [], short: []}
    for number in range(-5, rounds):
        for folder in (short, long) if number % 2 else (long, short):
            began = time.perf_counter()
            opened = BlockIndex(index)
            action(Dataset(folder, opened))
            seconds = time.perf_counter() - began
            opened.close()
            if number >= 0:
                times[folder].append(seconds)
    return statistics.median(times[long]), statistics.median(times[short])


def read_states(folders: Sequence[Path], index: Path) -> None:
    """Read what a list of a workspace shows."""
    opened = BlockIndex(index)
    heads = [head for folder in folders if (head := Dataset(folder, opened).head())]
    assert len(opened.states(heads)) == len(folders)
    opened.close()
