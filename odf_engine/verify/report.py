"""What a verification says."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """Something that is wrong.

    Attributes:
        kind: stable name in kebab case: the broken append rule, or ``block-…``, ``slice-…``,
            ``checkpoint-…``, ``head-…``, ``chain-incomplete``, ``identity``, from running
            transactions again ``input-…`` and ``transform-…``, and ``proof-wrong``.
        block: hash of the block that says otherwise, or ``head``.
        message: what is wrong, as a person reads it.
    """

    kind: str
    block: str
    message: str


class EngineUse(msgspec.Struct, frozen=True):
    """An engine that ran transactions again.

    Attributes:
        engine: its name in the query.
        made_by: the version that the chain says made the rows; None where it does not say.
        version: the version that ran them again; None where it is not known.
        transactions: how many.
        records: how many rows they had.
    """

    engine: str
    made_by: str | None
    version: str | None
    transactions: int
    records: int


class Report(msgspec.Struct, frozen=True):
    """What was checked, and everything that was found.

    Attributes:
        valid: nothing was found; what is in ``unchecked`` does not count.
        blocks, slices: how many were checked.
        transforms: how many transactions were run again.
        findings: all of them, in the order of the chain; those of transactions come last.
        unchecked: what could not be checked, for a reason that says nothing against it: transactions
            (``input-missing``, ``engine-missing``, ``before-lost``), or a checkpoint whose bytes are
            not those that were made again (``checkpoint-other``); or a proof of ownership that says nothing
            of this chain (``proof-elsewhere``), or whose owner is not known (``proof-unknown``).
        engines: which engines ran them.
        rows_known: how many of the slices have the bytes whose rows were found right before, so that only
            the bytes were looked at.
        proofs: how many proofs of ownership are right.
        proven: the number of the newest block that has a right one: the holder of the dataset's key stands
            behind it, and behind all before it; None where there is none.
        newer: how many blocks came after that one.
    """

    valid: bool
    blocks: int
    slices: int
    transforms: int
    findings: list[Finding]
    unchecked: list[Finding] = []
    engines: list[EngineUse] = []
    rows_known: int = 0
    proofs: int = 0
    proven: int | None = None
    newer: int = 0
