"""The blocks of a chain, oldest first, found from its files alone, also where some are damaged."""

from __future__ import annotations

from typing import NamedTuple

from odf_engine.chain.chain import Dataset
from odf_engine.errors import MalformedBlock, NotFound, OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.flatbuffers import DecodedBlock, decode_block
from odf_engine.metadata.model import DatasetKind, ExecuteTransform, Seed, SetTransform
from odf_engine.progress import Reporter
from odf_engine.storage.objects import LocalObjects, find_name
from odf_engine.verify.content import hash_bytes


class Found(NamedTuple):
    """What walking found.

    Attributes:
        hashes: the chain's blocks, oldest first, missing and damaged ones too.
        first_number: the sequence number that the first of them should have.
        complete: whether the walk came to a block that follows no other.
        head_problem: kind and message, when ``refs/head`` does not name a block.
    """

    hashes: list[Multihash]
    first_number: int
    complete: bool
    head_problem: tuple[str, str] | None


class Blocks:
    """The block files of a dataset, read without any cache."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._objects = LocalObjects(dataset.folder / "blocks")
        self._by_number: dict[int, list[Multihash]] | None = None

    def read(self, block_hash: Multihash) -> bytes:
        """The bytes stored under this hash, whatever they are; NotFound when there are none."""
        name = find_name(self._objects, block_hash)
        return self._objects.read(name or str(block_hash))

    def sound(self, block_hash: Multihash) -> DecodedBlock | None:
        """The block, if it is here, has the bytes that its hash was made of, and can be read."""
        try:
            data = self.read(block_hash)
            return decode_block(data) if hash_bytes(data, block_hash.code) == block_hash else None
        except (NotFound, MalformedBlock):
            return None

    def walk(self, reporter: Reporter) -> Found:
        """Follows the chain from its head; over a block that is not sound, by sequence numbers."""
        head, problem = self._head()
        at = head if head is not None else self._newest()
        number = None
        newest_first: list[Multihash] = []
        seen: set[Multihash] = set()
        complete = False
        while at is not None and at not in seen:
            reporter.check()
            seen.add(at)
            newest_first.append(at)
            decoded = self.sound(at)
            if decoded is not None:
                number = decoded.block.sequence_number
                at = decoded.block.prev_block_hash
                complete = at is None
                continue
            number = self._last_number() + 1 if number is None else number - 1
            at = self._only(number - 1)
        return Found(newest_first[::-1], 0 if complete else max(number or 0, 0), complete, problem)

    def _head(self) -> tuple[Multihash | None, tuple[str, str] | None]:
        try:
            head = self._dataset.head()
        except OdfError as error:
            return None, ("head-malformed", error.message)
        return head, None if head else ("head-missing", "the dataset has no head: refs/head is not there")

    def _numbers(self) -> dict[int, list[Multihash]]:
        """All sound blocks by sequence number, orphans too; only needed where a chain is damaged."""
        if self._by_number is None:
            self._by_number = {}
            for name in self._objects.names():
                try:
                    block_hash = Multihash.parse(name)
                except OdfError:
                    continue
                decoded = self.sound(block_hash)
                if decoded is not None:
                    self._by_number.setdefault(decoded.block.sequence_number, []).append(block_hash)
        return self._by_number

    def _last_number(self) -> int:
        return max(self._numbers(), default=-1)

    def _newest(self) -> Multihash | None:
        return self._only(self._last_number())

    def _only(self, number: int) -> Multihash | None:
        found = self._numbers().get(number, [])
        return found[0] if len(found) == 1 else None


def is_derivative(dataset: Dataset) -> bool:
    """Whether a dataset is a derivative one, as far as that can be told where blocks are damaged."""
    try:
        return dataset.state().kind is DatasetKind.Derivative
    except OdfError:
        blocks = Blocks(dataset)
        found = (blocks.sound(each) for each in blocks.walk(Reporter()).hashes)
        return any(decoded is not None and _only_derivative(decoded.block.event) for decoded in found)


def _only_derivative(event: object) -> bool:
    if isinstance(event, Seed):
        return event.dataset_kind is DatasetKind.Derivative
    return isinstance(event, SetTransform | ExecuteTransform)
