"""Findings, engines and origins of a verification.

They reach the journal, JSON, screens and scripts unchanged.
"""

from __future__ import annotations

import msgspec


class IntegrityFinding(msgspec.Struct, frozen=True):
    """A problem that the verification found.

    Attributes:
        kind: stable name in kebab case: the violated append rule, or ``block-…``, ``slice-…``,
            ``checkpoint-…``, ``head-…``, ``chain-incomplete``, ``identity``, from replays
            ``input-…`` and ``transform-…``, and ``proof-wrong``.
        block: hash of the block, or ``head``.
        message: text for the user.
    """

    kind: str
    block: str
    message: str


class EngineReport(msgspec.Struct, frozen=True):
    """An engine that replayed transactions.

    Attributes:
        engine: name of the engine in the query.
        made_by: version in the transform of the chain, or None if it has none.
        version: version that replayed the transactions, or None if it is not known.
        transactions: number of transactions.
        records: number of their rows.
    """

    engine: str
    made_by: str | None
    version: str | None
    transactions: int
    records: int


class Compatibility(msgspec.Struct, frozen=True):
    """The result of comparing a dataset with the present version of its engine. All rows are equal.

    Attributes:
        engine: name of the engine in the query.
        made_by: version in the transform of the chain, or None if it had none.
        version: version that replayed the transactions, or None if it is not known.
        block: hash of the block that records the version, or None if it is not recorded.
        note: why it is not recorded, or "" if it is.
    """

    engine: str
    made_by: str | None
    version: str | None
    block: str | None = None
    note: str = ""


class OriginInput(msgspec.Struct, frozen=True):
    """An input of a derivative dataset, up to the block and offset that were read."""

    id: str
    name: str | None
    alias: str
    block: str | None
    offset: int | None


class SourceReport(msgspec.Struct, frozen=True):
    """A source of a root dataset.

    Attributes:
        kind: ``Url``, ``FilesGlob``, ``Container``, … or ``Push``.
        place: the address, file pattern, command, or name of the push source.
        block: hash of the block that added the source.
        since: system time of that block.
        loads: number of ingested slices. Those of several active sources are not distinguished.
        records: number of rows of these slices.
        first, last: system times of the first and the last slice, or None without slices.
    """

    kind: str
    place: str
    block: str
    since: str
    loads: int
    records: int
    first: str | None
    last: str | None


class OriginReport(msgspec.Struct, frozen=True):
    """Origin of a dataset.

    Attributes:
        id, name: the dataset; the name is None if it is not in the workspace.
        kind: Root or Derivative, or None if it is not in the workspace.
        block: the last block considered: the head, or the last one that downstream datasets have read.
        records: number of rows up to that block.
        engine, version, query: the engine, version and query of the newest transform; the steps of the query.
        transactions: number of transactions with rows.
        first, last: system times of the first and the newest rows.
        inputs: the inputs of a derivative dataset.
        sources: the sources of a root dataset, oldest first.
        problem: why the origin is not known.
    """

    id: str
    name: str | None = None
    kind: str | None = None
    block: str | None = None
    records: int = 0
    engine: str | None = None
    version: str | None = None
    query: list[str] = []
    transactions: int = 0
    first: str | None = None
    last: str | None = None
    inputs: list[OriginInput] = []
    sources: list[SourceReport] = []
    problem: str | None = None


class IntegrityReport(msgspec.Struct, frozen=True):
    """Result of a verification.

    Attributes:
        valid: there are no findings; ``unchecked`` does not count.
        blocks, slices: number of blocks and slices that were checked.
        transforms: number of transactions that were replayed.
        findings: all problems in the order of the chain; problems of transactions and proofs are last.
        unchecked: objects that could not be checked and may be valid: transactions (``input-missing``,
            ``input-behind``, ``input-diverged``, ``input-unreadable``, ``engine-missing``, ``before-lost``,
            ``replay-failed``), checkpoints with other bytes than the replayed one (``checkpoint-other``),
            slices with other bytes and the same rows (``slice-equivalent``), ownership proofs of other chains
            (``proof-elsewhere``) or of an unknown owner (``proof-unknown``).
        engines: engines that replayed the transactions.
        rows_known: number of slices whose rows were verified before, so that only the bytes were checked.
        proofs: number of valid ownership proofs.
        proven: sequence number of the newest block with a valid proof, which covers all earlier blocks, or
            None if absent.
        actor: who signed that block, or "" if the proof does not name the actor.
        newer: number of blocks after that one.
        intact: all blocks and files are those that were committed: the only findings, if any, are about
            operations that the specification forbids, inputs, or other engine versions.
        transforms_known: number of transactions that an earlier verification has replayed with the results
            in their blocks, by the same version of the engine.
    """

    valid: bool
    blocks: int
    slices: int
    transforms: int
    findings: list[IntegrityFinding]
    unchecked: list[IntegrityFinding] = []
    engines: list[EngineReport] = []
    rows_known: int = 0
    proofs: int = 0
    proven: int | None = None
    actor: str = ""
    newer: int = 0
    intact: bool = True
    transforms_known: int = 0
