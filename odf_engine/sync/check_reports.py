"""Transfer of the results of checks: files next to the blocks of a dataset, named after its slices.

A repository without them is complete. Copies verify the signatures with the id of the dataset, which is its
public key, and ignore invalid files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from odf_engine.base.progress import Reporter, count_of
from odf_engine.chain.block_summary import SliceSummary
from odf_engine.chain.dataset import Dataset
from odf_engine.checks.reports import (
    MAX_REPORT_BYTES,
    StoredReport,
    decode_report,
    list_reports,
    read_report,
    read_report_bytes,
    store_report,
)
from odf_engine.errors import BadData, Cancelled, NotFound, OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.storage.object_store import CHECKS_FOLDER
from odf_engine.sync.remotes.base import ObjectKind, RemoteDataset, upload_parallel

_MAX_MISSING: Final = 3
"""If the newest commits, as many as this, have no results, the others are not requested."""


class FileTarget(Protocol):
    """A remote that stores small files next to the blocks of a dataset."""

    def holds(self, kind: ObjectKind, object_hash: Multihash, size: int | None = None) -> bool:
        """Return whether the file exists, with this size."""
        ...

    def write(self, kind: ObjectKind, object_hash: Multihash, data: bytes) -> None:
        """Store the file."""
        ...


def send_reports(dataset: Dataset, target: FileTarget, common: Multihash | None, reporter: Reporter) -> None:
    """Upload the results of checks of the blocks after ``common``.

    Raises:
        OdfError: as raised by the remote.
    """
    names = set(list_reports(dataset.folder))
    if not names:
        return
    after = -1 if common is None else dataset.block(common).block.sequence_number
    dataset_id = dataset.state().dataset_id
    for data_slice in dataset.slices():
        if data_slice.sequence_number <= after or str(data_slice.physical_hash) not in names:
            continue
        reporter.raise_if_cancelled()
        try:
            data = read_report_bytes(dataset.folder, data_slice.physical_hash)
            decode_report(data, dataset_id, data_slice.physical_hash)
        except (BadData, FileNotFoundError) as error:
            reporter.log(f"results of checks not sent: {error}", "warning")
            continue
        if not target.holds(CHECKS_FOLDER, data_slice.physical_hash, len(data)):
            target.write(CHECKS_FOLDER, data_slice.physical_hash, data)


def download_reports(
    dataset: Dataset, remote: RemoteDataset, reporter: Reporter, *, blocks: int, parallel: int
) -> None:
    """Download and store the results of checks of the newest blocks, if the remote has them.

    Failures are logged, since the pull itself is complete.

    Args:
        dataset: the dataset, after the pull.
        remote: the remote.
        reporter: receives the warnings, and cancels.
        blocks: number of blocks that the pull has added.
        parallel: number of concurrent requests.
    """
    multihashes: list[Multihash] = []
    try:
        state = dataset.state()
        first = state.blocks - blocks
        ends = last_slices(
            [data_slice for data_slice in dataset.slices() if data_slice.sequence_number >= first]
        )

        def download(which: SliceSummary) -> None:
            if _download(dataset, remote, which.physical_hash, reporter):
                multihashes.append(which.physical_hash)

        for end in ends[:_MAX_MISSING]:
            reporter.raise_if_cancelled()
            download(end)
        if multihashes:
            upload_parallel(
                ends[_MAX_MISSING:],
                download,
                parallel=parallel,
                reporter=reporter,
                check=reporter.raise_if_cancelled,
                stop=lambda: None,
            )
    except Cancelled:
        return  # the pull itself is complete
    except OdfError as error:
        reporter.log(f"results of checks: {error.message}", "debug")
    if multihashes:
        reporter.log(f"results of checks of {count_of(len(multihashes), 'commit')} downloaded")


def last_slices(slices: Sequence[SliceSummary]) -> list[SliceSummary]:
    """Return the last slice of each commit, newest first. Slices of a commit have the same system time."""
    slice_summaries: list[SliceSummary] = []
    for data_slice in reversed(slices):
        if not slice_summaries or slice_summaries[-1].system_time != data_slice.system_time:
            slice_summaries.append(data_slice)
    return slice_summaries


def _download(dataset: Dataset, remote: RemoteDataset, slice_hash: Multihash, reporter: Reporter) -> bool:
    """Download the results of one commit; return whether the remote has them."""
    try:
        data = remote.read(CHECKS_FOLDER, slice_hash, MAX_REPORT_BYTES)
    except NotFound:
        return False
    try:
        receive_report(dataset, slice_hash, data)
    except OdfError as error:
        reporter.log(f"results of checks ignored: {error.message}", "warning")
    return True


def receive_report(dataset: Dataset, slice_hash: Multihash, data: bytes) -> None:
    """Verify and store results from another copy. Signed ones are never replaced by unsigned ones.

    Raises:
        BadData: the file is invalid, belongs to another dataset or slice, or is not signed with the key of
            the dataset.
        OdfError: it cannot be written.
    """
    dataset_id = dataset.state().dataset_id
    received = decode_report(data, dataset_id, slice_hash)
    first, last = received.report.first_offset, received.report.last_offset
    if not any(data_slice.physical_hash == slice_hash for data_slice in dataset.slices(first, last)):
        raise BadData("the report of checks is about rows that are not in its slice")
    known: StoredReport | None = None
    try:
        known = read_report(dataset.folder, dataset_id, slice_hash)
    except BadData:
        pass  # the damaged file is replaced
    if known is None or (received.signed and not known.signed):
        store_report(dataset.folder, slice_hash, data)
