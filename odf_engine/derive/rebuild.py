"""Rebuilds missing or damaged slices of a derivative dataset by a replay of their transactions."""

from __future__ import annotations

from odf_engine.base.files import remove_temporary
from odf_engine.base.progress import Reporter, count_of
from odf_engine.chain.block_summary import SliceSummary
from odf_engine.data.digest import digest_file
from odf_engine.derive.history import transaction_history
from odf_engine.derive.run import execute_transaction, make_request
from odf_engine.engines.contract import Engine
from odf_engine.errors import BadData, NotFound, OdfError, Unsupported
from odf_engine.storage.object_store import hash_file
from odf_engine.storage.scratch import job_scratch_folder
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace


def rebuild_slices(workspace: Workspace, entry: DatasetEntry, engine: Engine, reporter: Reporter) -> int:
    """Rebuild the slices that are missing, or whose rows differ; return their number.

    A rebuilt file with the committed bytes becomes the slice again. A file with the same rows but other bytes
    is stored as an equivalent (:meth:`odf_engine.chain.dataset.Dataset.equivalent_slice`).

    Raises:
        BadData: a replay has other rows.
        Unsupported: the dataset is in an object store.
        OdfError: an input is missing or has changed, or the engine failed.
    """
    if entry.dataset.origin is not None:
        raise Unsupported(
            "slices of a dataset in an object store cannot be rebuilt",
            where=str(entry.alias),
            hint="run odf fsck: it uploads those that are in the cache",
        )
    reporter.phase("check")
    lost = [row for row in entry.dataset.slices() if not _is_stored(entry, row, reporter)]
    for number, row in enumerate(lost, 1):
        reporter.phase("rebuild")
        reporter.set_amounts(files=number, total_files=len(lost))
        _rebuild(workspace, entry, row, engine, reporter)
    if lost:
        reporter.log(f"{count_of(len(lost), 'slice')} rebuilt")
    return len(lost)


def _is_stored(entry: DatasetEntry, row: SliceSummary, reporter: Reporter) -> bool:
    """Return whether a file has the rows of a slice."""
    path = entry.dataset.slice_path(row)
    if not path.is_file():
        return False
    actual = hash_file(path, row.physical_hash.code, lambda _: reporter.raise_if_cancelled())
    if actual == row.physical_hash:
        return True
    data = transaction_history(entry, row.sequence_number, limit=0).event.new_data
    try:
        return data is not None and digest_file(path).logical_hash == data.logical_hash
    except OdfError:
        return False


def _rebuild(
    workspace: Workspace, entry: DatasetEntry, row: SliceSummary, engine: Engine, reporter: Reporter
) -> None:
    dataset, history = entry.dataset, transaction_history(entry, row.sequence_number, limit=0)
    data, staged = history.event.new_data, dataset.staging_path("data")
    if data is None:
        raise NotFound(f"block {row.sequence_number} has no slice", where=str(dataset.folder))
    with job_scratch_folder(workspace.odf / "cache", "replay") as folder:
        try:
            transaction = history.transaction(workspace)
            system_time = history.block.block.system_time
            request = make_request(transaction, folder, staged, system_time, reporter)
            written = execute_transaction(workspace, engine, transaction, request, reporter).written
            if written is None or written.logical_hash != data.logical_hash:
                raise BadData(
                    f"the slice of block {row.sequence_number} cannot be rebuilt: the replay has other rows",
                    where=str(entry.alias),
                    hint=f"run odf verify {entry.alias}",
                )
            if written.physical_hash != data.physical_hash:
                message = "the rebuilt slice has the same rows, but other bytes: it is not pushed"
                reporter.log(f"block {row.sequence_number}: {message}", "warning")
            dataset.restore_slice(data.physical_hash, written.physical_hash, staged)
        finally:
            remove_temporary(staged)
