"""Commits to a dataset until it is killed, or as often as it is told (run as a program).

``committer.py crash FOLDER ROUNDS`` kills a committing child again and again and checks after each
time that the dataset is whole. ``committer.py race FOLDER NAME COUNT`` commits COUNT blocks against
whoever else commits, from the moment it reads a line, and prints each hash that it committed.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from odf_engine.chain.append_rules import check_append
from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.state import ChainState, apply_block
from odf_engine.errors import Conflict
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import ARROW0_SHA3_256, Multihash
from odf_engine.metadata.flatbuffers import decode_block
from odf_engine.metadata.model import (
    AddData,
    DataSchema,
    DatasetKind,
    DataSlice,
    OffsetInterval,
    Seed,
    SetDataSchema,
    SetInfo,
)
from odf_engine.metadata.timestamp import Timestamp

TIME = Timestamp(0)


def opened(folder: Path) -> Dataset:
    return Dataset(folder, BlockIndex(folder.parent / "index.sqlite"))


def create(folder: Path) -> None:
    events = [Seed(DatasetId(b"x" * 32), DatasetKind.Root), SetDataSchema(odf_schema=DataSchema([]))]
    opened(folder).commit(events, system_time=TIME, expected_head=None)


def commit_one(dataset: Dataset, pause: float = 0) -> Multihash:
    """One commit of two blocks, the second with a slice of one record, after some thought."""
    state = dataset.state()
    offset = 0 if state.last_offset is None else state.last_offset + 1
    content = f"{offset} {os.getpid()}".encode()
    staged = dataset.staging_path("data")
    staged.write_bytes(content)
    physical = Multihash.sha3_256(content)
    slice_ = DataSlice(
        Multihash(ARROW0_SHA3_256, physical.digest), physical, OffsetInterval(offset, offset), len(content)
    )
    time.sleep(pause)
    event = AddData(prev_offset=state.last_offset, new_data=slice_)
    try:
        return dataset.commit(
            [SetInfo(content.decode()), event], system_time=TIME, expected_head=state.head, data=staged
        )
    finally:
        staged.unlink(missing_ok=True)


def check(folder: Path) -> int:
    """Whether everything that the head leads to is there and follows the rules; how many blocks."""
    hashes: list[Multihash] = []
    at = Dataset(folder, BlockIndex(":memory:")).head()
    while at is not None:
        data = (folder / "blocks" / str(at)).read_bytes()
        assert Multihash.sha3_256(data) == at
        hashes.append(at)
        at = decode_block(data).block.prev_block_hash
    state: ChainState | None = None
    for block_hash in reversed(hashes):
        block = decode_block((folder / "blocks" / str(block_hash)).read_bytes()).block
        check_append(state, block)
        state = apply_block(state, block, block_hash)
        if isinstance(block.event, AddData) and block.event.new_data is not None:
            data = (folder / "data" / str(block.event.new_data.physical_hash)).read_bytes()
            assert Multihash.sha3_256(data) == block.event.new_data.physical_hash
    assert opened(folder).state() == state  # the index, which may have been killed as well
    assert len(hashes) % 2 == 0, "half of a commit"
    return len(hashes)


def crash(folder: Path, rounds: int) -> None:
    create(folder)
    dice, before, progress = random.Random(7), check(folder), 0
    longest = 0.04  # how long a child may live: longer where the machine is slow to let it commit
    for _ in range(rounds):
        child = os.fork()
        if child == 0:
            dataset = opened(folder)
            while True:
                commit_one(dataset)
        time.sleep(dice.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        now = check(folder)
        assert now >= before, "a commit was lost"
        longest = max(0.04, longest / 2) if now > before else longest * 1.3
        progress, before = progress + (now > before), now
    print(f"{rounds} kills, {progress} of them after commits, {before} blocks")


def race(folder: Path, count: int) -> None:
    dataset = opened(folder)
    print("ready", flush=True)
    sys.stdin.readline()
    done = 0
    while done < count:
        try:
            print(commit_one(dataset, pause=0.002), flush=True)
            done += 1
        except Conflict:
            print("conflict", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "crash":
        crash(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        race(Path(sys.argv[2]), int(sys.argv[3]))
