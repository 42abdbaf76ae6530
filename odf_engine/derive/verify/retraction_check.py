"""Verification of retractions: each repeats a row that the dataset has at that point of its history."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from msgspec.structs import astuple

from odf_engine.base.progress import Reporter
from odf_engine.chain.dataset import Dataset
from odf_engine.data.retractions import find_unmatched, has_retractions
from odf_engine.derive.verify.slice_check import Problem, VerifiedSlices, check_object, locate_object
from odf_engine.errors import BadData, InvalidSchema, NotFound
from odf_engine.metadata.model import DatasetVocabulary, DataSlice
from odf_engine.storage.object_store import LocalObjectStore

_VERSION: Final = b"retractions 1"
"""Version of the check: a new one invalidates the histories that were verified before."""


class ChainSlice(NamedTuple):
    """A slice of a chain.

    Attributes:
        block: hash of its block.
        data: its hashes and size.
        vocabulary: names of the system columns.
        is_checked: whether the block is in the verified range.
    """

    block: str
    data: DataSlice
    vocabulary: DatasetVocabulary
    is_checked: bool


def check_retractions(
    dataset: Dataset,
    slices: Sequence[ChainSlice],
    damaged: Collection[str],
    only_appends: Collection[str],
    known: VerifiedSlices | None,
    reporter: Reporter,
) -> Iterator[tuple[str, Problem]]:
    """Check the retractions in the verified range of a chain. Without any, only operations are read.

    Nothing is checked if a slice is damaged, since its rows are not the dataset's.

    Args:
        dataset: the dataset that has the files.
        slices: all slices up to the end of the range, oldest first.
        damaged: blocks whose slices were checked, and are missing or damaged.
        only_appends: blocks whose slices have no retractions; other slices are read.
        known: histories whose retractions were verified before; None to check all.
        reporter: checked for cancellation.

    Yields:
        The block, and its problem of the kind ``slice-retraction``.

    Raises:
        Cancelled: the verification was cancelled.
    """
    keys = list(_history_keys(slices))
    verified = 0
    if known is not None:
        verified = next((at for at in range(len(keys), 0, -1) if known.is_verified(keys[at - 1])), 0)
    objects = dataset.objects("data")
    is_valid = True
    try:
        paths = [objects.path_of(data_slice.data.physical_hash) for data_slice in slices]
        retracting = [
            at
            for at in range(verified, len(slices))
            if slices[at].is_checked
            and slices[at].block not in damaged
            and slices[at].block not in only_appends
            and has_retractions(paths[at], slices[at].vocabulary, reporter.raise_if_cancelled)
        ]
        if retracting:
            history = slices[: retracting[-1] + 1]
            if any(_is_damaged(objects, data_slice, damaged, reporter) for data_slice in history):
                return
            vocabulary = history[-1].vocabulary
            for at, row in find_unmatched(paths, vocabulary, retracting, reporter.raise_if_cancelled):
                is_valid = False
                yield slices[at].block, ("slice-retraction", f"row {row} retracts a row that does not exist")
    except (BadData, InvalidSchema, NotFound, pa.ArrowException) as error:
        # The check of the slice has reported it.
        reporter.log(f"retractions not checked: {error}", "warning")
        return
    if (
        known is not None
        and keys
        and is_valid
        and all(data_slice.is_checked for data_slice in slices[verified:])
    ):
        known.mark_verified(keys[-1])


def _history_keys(slices: Sequence[ChainSlice]) -> Iterator[bytes]:
    """Yield for each slice a hash of it and all slices before it."""
    key = _VERSION
    for data_slice in slices:
        names = repr((str(data_slice.data.physical_hash), astuple(data_slice.vocabulary)))
        key = hashlib.sha3_256(key + names.encode()).digest()
        yield key


def _is_damaged(
    objects: LocalObjectStore, data_slice: ChainSlice, damaged: Collection[str], reporter: Reporter
) -> bool:
    """Return whether a slice is damaged. Those before the verified range were not checked so far."""
    if data_slice.is_checked:
        return data_slice.block in damaged
    data = data_slice.data
    path = locate_object(objects, data.physical_hash)

    def on_bytes(_: int) -> None:
        reporter.raise_if_cancelled()

    problems = check_object(path, "slice", data.physical_hash, data.size, on_bytes)
    return next(problems, None) is not None
