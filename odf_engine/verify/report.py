"""Result of a verification: findings, engines used, and the origins of a dataset."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from odf_engine.chain.block_summary import SliceSummary
from odf_engine.errors import NotFound, OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata import model
from odf_engine.metadata.model import AddPushSource, ExecuteTransform, ExecuteTransformInput, SetTransform
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

_SOURCES: Final = ("SetPollingSource", "DisablePollingSource", "AddPushSource")
_MANY: Final = 100_000


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where rows of a root dataset came from.

    Attributes:
        kind: ``Url``, ``FilesGlob``, ``Container``, … or ``Push``.
        place: the address, pattern of files, command, or name of the push source.
        block: which introduced the source.
        since: when.
        loads: how many times it brought rows; those of several push sources are not told apart.
        records: how many rows these had.
        first, last: when it did so for the first and the last time.
    """

    kind: str
    place: str
    block: str
    since: str
    loads: int
    records: int
    first: str | None
    last: str | None


class Input(msgspec.Struct, frozen=True):
    """What a dataset was made from: up to which block of the input, and up to which offset."""

    id: str
    name: str | None
    alias: str
    block: str | None
    offset: int | None


class DatasetOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """How a dataset came to be.

    Attributes:
        id, name: the dataset; no name when it is not here.
        kind: Root or Derivative; None when it is not here.
        block: up to which this is told: the head, or how far the datasets made from it have read it.
        records: up to there.
        engine, version, query: of the newest transform; the steps of the query.
        transactions: how many transactions made rows.
        first, last: when it got its first and its newest rows.
        inputs: what a derivative dataset was made from.
        sources: where a root dataset's rows came from, oldest first.
        problem: why nothing is known, such as that the dataset is not here.
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
    inputs: list[Input] = []
    sources: list[Source] = []
    problem: str | None = None


def dataset_origins(
    workspace: Workspace, entry: DatasetEntry, last: int | None = None
) -> list[DatasetOrigin]:
    """The dataset, then everything that it was made from, each dataset once.

    Args:
        workspace: where the datasets are.
        entry: the dataset.
        last: number of its block up to which it is told; None for its head.
    """
    found: dict[DatasetId, DatasetOrigin] = {}
    limits: dict[DatasetId, int] = {}
    todo: list[tuple[DatasetId, Multihash | int | None]] = [(entry.id, last)]
    while todo:
        dataset_id, end = todo.pop(0)
        try:
            at = workspace.resolve(str(dataset_id))
        except NotFound:
            found.setdefault(
                dataset_id, DatasetOrigin(id=str(dataset_id), problem="it is not in this workspace")
            )
            continue
        try:
            limit = _limit(at, end)
            if limit > limits.get(dataset_id, -1):
                limits[dataset_id] = limit
                found[dataset_id], inputs = _origin(workspace, at, limit)
                todo += inputs
        except OdfError as error:
            lost = DatasetOrigin(id=str(dataset_id), name=str(at.alias), problem=str(error))
            found.setdefault(dataset_id, lost)
    return list(found.values())


def _limit(entry: DatasetEntry, end: Multihash | int | None) -> int:
    """The number of the block up to which a dataset is told: given as it is, by its hash, or the head's."""
    if isinstance(end, int):
        return end
    if end is None:
        return entry.dataset.state().sequence_number
    if not entry.dataset.contains_block(end):
        raise NotFound(f"its history is another one now: it does not have block {end}, which was read")
    return entry.dataset.block(end).block.sequence_number


def _origin(
    workspace: Workspace, entry: DatasetEntry, limit: int
) -> tuple[DatasetOrigin, list[tuple[DatasetId, Multihash | int | None]]]:
    """A dataset up to block number ``limit``, and its inputs with the last block of each that was read."""
    dataset = entry.dataset
    slices = [row for row in dataset.slices() if row.sequence_number <= limit]
    newest = dataset.list_blocks(1, before=limit + 1)
    about: dict[str, Any] = {
        "id": str(entry.id),
        "name": str(entry.alias),
        "kind": dataset.state().kind.value,
        "block": str(newest[0].hash) if newest else None,
        "records": slices[-1].end + 1 if slices else 0,
        "first": str(slices[0].system_time) if slices else None,
        "last": str(slices[-1].system_time) if slices else None,
    }
    transform = _newest(entry, limit, "SetTransform")
    if not isinstance(transform, SetTransform):
        return DatasetOrigin(**about, sources=_sources(entry, limit, slices)), []
    event = _newest(entry, limit, "ExecuteTransform")
    consumed = event.query_inputs if isinstance(event, ExecuteTransform) else []
    aliases = {each.dataset_ref: each.alias for each in transform.inputs}
    sql = transform.transform
    origin = DatasetOrigin(
        **about,
        engine=sql.engine,
        version=sql.version,
        query=[step.query for step in sql.queries or ()] or [sql.query or ""],
        transactions=len(slices),
        inputs=[_input(workspace, each, aliases.get(str(each.dataset_id))) for each in consumed],
    )
    read = [(each.dataset_id, each.new_block_hash or each.prev_block_hash) for each in consumed]
    return origin, [(dataset_id, block) for dataset_id, block in read if block is not None]


def _newest(entry: DatasetEntry, limit: int, kind: str) -> object:
    rows = entry.dataset.list_blocks(1, before=limit + 1, kinds=(kind,))
    return entry.dataset.block(rows[0].hash).block.event if rows else None


def _input(workspace: Workspace, item: ExecuteTransformInput, alias: str | None) -> Input:
    try:
        name = str(workspace.resolve(str(item.dataset_id)).alias)
    except OdfError:
        name = None
    block = item.new_block_hash or item.prev_block_hash
    offset = item.prev_offset if item.new_offset is None else item.new_offset
    return Input(str(item.dataset_id), name, alias or name or "", block and str(block), offset)


def _sources(entry: DatasetEntry, limit: int, slices: Sequence[SliceSummary]) -> list[Source]:
    """The sources up to a block, and what came while each was there, oldest first."""
    rows = entry.dataset.list_blocks(_MANY, before=limit + 1, kinds=_SOURCES)[::-1]
    found: list[Source] = []
    for at, row in enumerate(rows):
        if row.kind == "DisablePollingSource":
            continue
        # Push sources may be there side by side; anything else takes the place of what was before it.
        beside = "AddPushSource" if row.kind == "AddPushSource" else ""
        end = next((each.sequence_number for each in rows[at + 1 :] if each.kind != beside), limit + 1)
        came = [each for each in slices if row.sequence_number < each.sequence_number < end]
        event = entry.dataset.block(row.hash).block.event
        kind, place = _place(event)
        found.append(
            Source(
                kind=kind,
                place=place,
                block=str(row.hash),
                since=str(row.system_time),
                loads=len(came),
                records=sum(each.end - each.start + 1 for each in came),
                first=str(came[0].system_time) if came else None,
                last=str(came[-1].system_time) if came else None,
            )
        )
    return found


def _place(event: Any) -> tuple[str, str]:
    """Kind and place of a source."""
    if isinstance(event, AddPushSource):
        return "Push", event.source_name
    match getattr(event, "fetch", None):
        case model.Url(url=url):
            return "Url", url
        case model.FilesGlob(path=path):
            return "FilesGlob", path
        case model.Container() as step:
            return "Container", shlex.join([step.image, *(step.command or ()), *(step.args or ())])
        case model.Mqtt() as step:
            return "Mqtt", f"{step.host}:{step.port}"
        case model.EthereumLogs() as step:
            return "EthereumLogs", step.node_url or f"chain {step.chain_id}"
        case other:
            return model.kind_of(other) if other is not None else "unknown", ""


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


class ReplayResult(NamedTuple):
    """The result of replaying a transaction.

    Attributes:
        problems: kinds and messages of differences.
        doubts: kinds and messages of what could not be confirmed, and may be valid.
        skipped: kind and message of the reason why it was not replayed; None if it was.
        engine: the engine that replayed it, for one transaction.
    """

    problems: Sequence[tuple[str, str]] = ()
    doubts: Sequence[tuple[str, str]] = ()
    skipped: tuple[str, str] | None = None
    engine: EngineUse | None = None


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
