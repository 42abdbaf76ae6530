"""Result of a verification: findings, engines used, and the origins of a dataset."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from odf_engine.chain.block_summary import SliceSummary
from odf_engine.chain.compacted_history import find_current_number
from odf_engine.derive.plan import past_input
from odf_engine.derive.verify.model import EngineReport, OriginInput, OriginReport, SourceReport
from odf_engine.errors import NotFound, OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata import model
from odf_engine.metadata.model import AddPushSource, ExecuteTransform, ExecuteTransformInput, SetTransform
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

_SOURCES: Final = ("SetPollingSource", "DisablePollingSource", "AddPushSource")
_MANY: Final = 100_000


def dataset_origins(workspace: Workspace, entry: DatasetEntry, last: int | None = None) -> list[OriginReport]:
    """Return the origins of a dataset and of everything upstream of it, each dataset once.

    Args:
        workspace: the workspace of the datasets.
        entry: the dataset.
        last: sequence number of the last block to consider, or None for the head.
    """
    origin_reports: dict[DatasetId, OriginReport] = {}
    limits: dict[DatasetId, int] = {}
    todo: list[tuple[DatasetId, Multihash | int | None]] = [(entry.id, last)]
    while todo:
        dataset_id, end = todo.pop(0)
        try:
            at = entry if dataset_id == entry.id else workspace.resolve(str(dataset_id))
        except NotFound:
            origin_reports.setdefault(
                dataset_id, OriginReport(id=str(dataset_id), problem="not in this workspace")
            )
            continue
        try:
            at = past_input(at, entry, end) if isinstance(end, Multihash) else at
            limit = _limit(at, end)
            if limit > limits.get(dataset_id, -1):
                limits[dataset_id] = limit
                origin_reports[dataset_id], inputs = _origin(workspace, at, limit)
                todo += inputs
        except OdfError as error:
            lost = OriginReport(id=str(dataset_id), name=str(at.alias), problem=str(error))
            origin_reports.setdefault(dataset_id, lost)
    return list(origin_reports.values())


def _limit(entry: DatasetEntry, end: Multihash | int | None) -> int:
    """Return the sequence number of a block; ``end`` is that number, a block hash, or None for the head.

    Raises:
        NotFound: the dataset does not have the block.
    """
    if isinstance(end, int):
        return end
    if end is None:
        return entry.dataset.state().sequence_number
    number = find_current_number(entry.dataset, end)
    if number is None:
        raise NotFound(f"block {end}, which was read, is not in the chain here")
    return number


def _origin(
    workspace: Workspace, entry: DatasetEntry, limit: int
) -> tuple[OriginReport, list[tuple[DatasetId, Multihash | int | None]]]:
    """Return the origin up to block number ``limit``, and the inputs with the last block read of each."""
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
        return OriginReport(**about, sources=_sources(entry, limit, slices)), []
    event = _newest(entry, limit, "ExecuteTransform")
    consumed = event.query_inputs if isinstance(event, ExecuteTransform) else []
    aliases = {input.dataset_ref: input.alias for input in transform.inputs}
    sql = transform.transform
    origin = OriginReport(
        **about,
        engine=sql.engine,
        version=sql.version,
        query=[step.query for step in sql.queries or ()] or [sql.query or ""],
        transactions=len(slices),
        inputs=[_input(workspace, input, aliases.get(str(input.dataset_id))) for input in consumed],
    )
    read = [(input.dataset_id, input.last_block) for input in consumed]
    return origin, [(dataset_id, block) for dataset_id, block in read if block is not None]


def _newest(entry: DatasetEntry, limit: int, kind: str) -> object:
    rows = entry.dataset.list_blocks(1, before=limit + 1, kinds=(kind,))
    return entry.dataset.block(rows[0].hash).block.event if rows else None


def _input(workspace: Workspace, item: ExecuteTransformInput, alias: str | None) -> OriginInput:
    try:
        name = str(workspace.resolve(str(item.dataset_id)).alias)
    except OdfError:
        name = None
    block = item.last_block
    return OriginInput(
        str(item.dataset_id), name, alias or name or "", block and str(block), item.last_offset
    )


def _sources(entry: DatasetEntry, limit: int, slices: Sequence[SliceSummary]) -> list[SourceReport]:
    """Return the sources up to block number ``limit``, oldest first, with the slices of each."""
    rows = entry.dataset.list_blocks(_MANY, before=limit + 1, kinds=_SOURCES)[::-1]
    source_reports: list[SourceReport] = []
    for at, row in enumerate(rows):
        if row.kind == "DisablePollingSource":
            continue
        # Several push sources can be active. A polling source ends the one before it.
        end = next((row.sequence_number for row in rows[at + 1 :] if row.kind != "AddPushSource"), limit + 1)
        loaded = [
            data_slice for data_slice in slices if row.sequence_number < data_slice.sequence_number < end
        ]
        event = entry.dataset.block(row.hash).block.event
        kind, place = _place(event)
        source_reports.append(
            SourceReport(
                kind=kind,
                place=place,
                block=str(row.hash),
                since=str(row.system_time),
                loads=len(loaded),
                records=sum(data_slice.end - data_slice.start + 1 for data_slice in loaded),
                first=str(loaded[0].system_time) if loaded else None,
                last=str(loaded[-1].system_time) if loaded else None,
            )
        )
    return source_reports


def _place(event: Any) -> tuple[str, str]:
    """Return kind and place of a source."""
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


class ReplayResult(NamedTuple):
    """The result of replaying a transaction.

    Attributes:
        problems: kinds and messages of differences.
        doubts: kinds and messages of what could not be confirmed, and may be valid.
        skipped: kind and message of the reason why it was not replayed, or None if it was.
        engine: the engine that replayed it, for one transaction.
        is_known: an earlier verification has replayed it with the result of its block.
    """

    problems: Sequence[tuple[str, str]] = ()
    doubts: Sequence[tuple[str, str]] = ()
    skipped: tuple[str, str] | None = None
    engine: EngineReport | None = None
    is_known: bool = False
