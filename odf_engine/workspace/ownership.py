"""Who stands behind a dataset: the holder of its key, up to a block, as the proofs beside its chain say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from odf_engine.chain.search import numbers_of
from odf_engine.errors import BadData, NotFound, OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.proof import Proof, check, proof_names, prove, read_proof
from odf_engine.workspace.summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

_MOST_TRIED: Final = 1000  # two seconds of checking, once


class Proven(NamedTuple):
    """The newest block with a right proof.

    Attributes:
        number: its sequence number.
        newer: how many blocks came after it.
    """

    number: int
    hash: Multihash
    newer: int


def proven(entry: DatasetEntry) -> Proven | None:
    """Up to which block the holder of the dataset's key stands behind it; None: nowhere.

    Proofs that are wrong, or of blocks that are not in the chain, count for nothing.

    Raises:
        OdfError: the chain cannot be read.
    """
    return next(_right(entry), None)


def all_proven(entry: DatasetEntry) -> list[Proven]:
    """The blocks with a right proof, newest first; of very many proofs, the newest.

    Raises:
        OdfError: the chain cannot be read.
    """
    return list(_right(entry))


def _right(entry: DatasetEntry) -> Iterator[Proven]:
    names = list(proof_names(entry.dataset.folder))
    if not names:
        return
    state = entry.dataset.state()
    held = sorted(numbers_of(entry.dataset, names).items(), key=lambda each: -each[1])
    for name, number in held[:_MOST_TRIED]:
        block = Multihash.parse(name)
        try:
            proof = read_proof(entry.dataset.folder, block)
            if proof is None:
                continue
            check(proof, state.dataset_id, block)
        except BadData:
            continue
        yield Proven(number, block, state.sequence_number - number)


def make_proof(workspace: Workspace, entry: DatasetEntry, block: Multihash | None = None) -> Proof:
    """Makes the proof that the holder of the dataset's key stands behind a block, by default its head.

    Raises:
        NotFound: the key is not here, or the block is not in the chain.
        OdfError: the proof cannot be written.
    """
    state = entry.dataset.state()
    block = block or state.head
    if block != state.head and not entry.dataset.holds(block):
        raise NotFound(f"the chain of {entry.alias} does not hold block {block}")
    try:
        key = workspace.keys.private_key_pem(state.dataset_id)
    except NotFound:
        hint = (
            "only its owner can sign; who has the key elsewhere takes it along: odf keys export, then import"
        )
        raise NotFound(f"the private key of {entry.alias} is not in this workspace", hint=hint) from None
    try:
        return prove(entry.dataset.folder, state.dataset_id, key, block)
    except OSError as error:
        raise OdfError(
            f"the proof cannot be written: {error.strerror or error}",
            where=str(error.filename or entry.dataset.folder),
        ) from error
