"""What a chain's length costs: the next commit, the last page, a list of datasets.

Run: ``python tests/bench/bench_chain.py [BLOCKS]``. It makes a chain of 100 blocks and one of 100,000
in a temporary folder with one index, and prints times and their ratio. Every sample opens the dataset
and the index anew, as a command does.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

from odf_engine.chain.append_rules import check_append
from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.state import ChainState
from odf_engine.identity.did import DatasetId
from odf_engine.metadata.model import (
    AddData,
    AttachmentEmbedded,
    Csv,
    DatasetKind,
    Embedded,
    MetadataBlock,
    MetadataEvent,
    Seed,
    SetAttachments,
    SetInfo,
    SetPollingSource,
    Snapshot,
    SourceState,
    Url,
)
from odf_engine.metadata.timestamp import Timestamp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench.common import median, table, timed, verdict

SHORT, LONG = 100, 100_000
GOAL = 1.3
ROUNDS = 200
DAY = 86_400_000_000_000


def seed(number: int) -> list[MetadataEvent]:
    """The first blocks of a dataset, as a manifest makes them."""
    identity = number.to_bytes(32, "big")
    return [
        Seed(DatasetId(identity), DatasetKind.Root),
        SetPollingSource(
            fetch=Url("https://example.com/cities.csv"),
            read=Csv(schema=[f"column{at} STRING" for at in range(10)]),
            merge=Snapshot(["column0"]),
        ),
        SetInfo("Cities of the world", ["cities"]),
        SetAttachments(Embedded([AttachmentEmbedded("README.md", "About cities. " * 100)])),
    ]


def pulled(at: int) -> AddData:
    """The block of a pull that moved the watermark on."""
    return AddData(
        new_watermark=Timestamp(at * DAY), new_source_state=SourceState("default", "odf/etag", str(at))
    )


def grow(folder: Path, index: BlockIndex, number: int, blocks: int) -> None:
    """A chain of so many blocks, not waiting for the disk."""
    dataset = Dataset(folder, index)
    with mock.patch("os.fsync", lambda descriptor: None):
        head = dataset.commit(seed(number), system_time=Timestamp(0), expected_head=None)
        made = dataset.state().blocks
        while made < blocks:
            events = [pulled(at) for at in range(made, min(blocks, made + 1000))]
            head = dataset.commit(events, system_time=Timestamp(0), expected_head=head)
            made += len(events)


def prepare(dataset: Dataset) -> ChainState:
    """Everything that comes before the writing of the next block."""
    state = dataset.state()
    block = MetadataBlock(
        system_time=state.system_time,
        prev_block_hash=state.head,
        sequence_number=state.sequence_number + 1,
        event=pulled(state.sequence_number + 1),
    )
    check_append(state, block)
    return state


def commit(dataset: Dataset) -> None:
    """A commit of one block, with every wait for the disk."""
    state = dataset.state()
    dataset.commit(
        [pulled(state.sequence_number + 1)], system_time=state.system_time, expected_head=state.head
    )


def last_page(dataset: Dataset) -> None:
    """What the block explorer shows first."""
    assert len(dataset.list_blocks(50)) == 50


def rare_kind(dataset: Dataset) -> None:
    """Blocks of a kind that is only there at the very beginning."""
    assert len(dataset.list_blocks(50, kinds=["SetInfo"])) == 1


def sample(action: Callable[[Dataset], object], folder: Path, index: Path) -> float:
    """Seconds of one action on a dataset opened anew."""
    start = time.perf_counter()
    opened = BlockIndex(index)
    action(Dataset(folder, opened))
    elapsed = time.perf_counter() - start
    opened.close()
    return elapsed


def compare(action: Callable[[Dataset], object], short: Path, long: Path, index: Path) -> tuple[float, float]:
    """Medians of both chains, sampled in turns so that both see the same noise."""
    times: dict[Path, list[float]] = {short: [], long: []}
    for folder in (short, long) * 5:
        sample(action, folder, index)
    for at in range(ROUNDS):
        for folder in (short, long) if at % 2 else (long, short):
            times[folder].append(sample(action, folder, index))
    return statistics.median(times[short]), statistics.median(times[long])


def row(name: str, times: tuple[float, float]) -> tuple[str, str, str, str]:
    """A line of the table."""
    short, long = times
    return name, f"{long * 1e3:.2f} ms", f"{short * 1e3:.2f} ms", verdict(long / short, GOAL)


def list_states(folders: Sequence[Path], index: Path) -> None:
    """What a list of a workspace needs, with the index opened anew."""
    opened = BlockIndex(index)
    heads = [head for folder in folders if (head := Dataset(folder, opened).head())]
    assert len(opened.states(heads)) == len(folders)
    opened.close()


def main(blocks: int) -> None:
    """Makes the chains, measures, prints."""
    with tempfile.TemporaryDirectory(prefix="bench-chain-") as name:
        root = Path(name)
        path, short, long = root / "index.sqlite", root / "short", root / "long"
        index = BlockIndex(path)
        grow(short, index, 1, SHORT)
        made = timed(lambda: grow(long, index, 2, blocks))
        many = [root / f"d{number}" for number in range(100)]
        for number, folder in enumerate(many):
            grow(folder, index, 10 + number, 6)
        index.close()
        os.sync()  # the commits below should not pay for the blocks above
        table(
            f"A chain of {blocks:,} blocks (measured) against one of {SHORT} (baseline), medians of {ROUNDS}",
            [
                row("open, prepare the next commit", compare(prepare, short, long, path)),
                row("commit a block, fsyncs included", compare(commit, short, long, path)),
                row("last page of 50 blocks", compare(last_page, short, long, path)),
                row("blocks of a rare kind", compare(rare_kind, short, long, path)),
            ],
        )
        print(f"\nstates of 100 datasets: {median(lambda: list_states(many, path), 20) * 1e3:.1f} ms")
        print(f"making {blocks:,} blocks without waiting for the disk: {made:.1f} s")
        lost = timed(lambda: Dataset(long, BlockIndex(":memory:")).state())
        print(f"making their index again after it was lost: {lost:.1f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else LONG)
