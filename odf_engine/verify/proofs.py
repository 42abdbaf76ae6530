"""Whether the proofs beside a chain are right: signed by the dataset's own key, over blocks of the chain."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from odf_engine.errors import BadData, InvalidIdentity
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.proof import PROOFS, check, proof_names, read_proof
from odf_engine.verify.report import Finding


class Proofs(NamedTuple):
    """What was found of the proofs of a dataset.

    Attributes:
        right: how many are right.
        newest: the number of the newest block that has a right one.
        wrong: those that are not.
        elsewhere: those that say nothing of this chain.
    """

    right: int
    newest: int | None
    wrong: list[Finding]
    elsewhere: list[Finding]


def check_proofs(folder: Path, owner: DatasetId | None, numbers: Mapping[Multihash, int]) -> Proofs:
    """Checks all proofs of a dataset.

    Args:
        folder: the dataset's.
        owner: its id, as the first block says; None where that is lost.
        numbers: the blocks of the chain.
    """
    right: list[int] = []
    wrong: list[Finding] = []
    elsewhere: list[Finding] = []
    for name in proof_names(folder):
        try:
            block = Multihash.parse(name)
            proof = read_proof(folder, block) if str(block) == name else None
            if proof is None:
                raise BadData(f"{PROOFS}/{name} is not named after a block")
            if owner is None:
                elsewhere.append(_finding("proof-unknown", name, "whose dataset this is, is lost"))
                continue
            check(proof, owner, block)
        except (BadData, InvalidIdentity) as error:
            wrong.append(_finding("proof-wrong", name, error.message))
            continue
        if block in numbers:
            right.append(numbers[block])
        else:
            message = "a proof is for a block that is not in the chain"
            elsewhere.append(_finding("proof-elsewhere", name, message))
    return Proofs(len(right), max(right, default=None), wrong, elsewhere)


def _finding(kind: str, block: str, message: str) -> Finding:
    return Finding(kind, block[:100], message)
