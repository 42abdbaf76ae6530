"""Tables of the latest state by key, for other programs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from odf_engine.base.progress import Reporter
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import Conflict, NotFound, OdfError, UsageError
from odf_engine.rows.projection import build_projection, dataset_key
from odf_engine.tables import TableFormat
from odf_engine.tables.dataset_tables import WrittenTable, require_head
from odf_engine.tables.latest_table import LatestTable, LatestVersion, latest_tables

MAX_ROWS: Final = 100_000
"""Maximum number of rows of a dataset whose tables of the latest state are updated by jobs."""
_MAX_BYTES: Final = 64_000_000
_logger: Final = logging.getLogger(__name__)


def write_latest_table(odf: Path, dataset: Dataset, format: TableFormat, reporter: Reporter) -> WrittenTable:
    """Write the table of the latest state of a dataset, or bring it up to date.

    Args:
        odf: the workspace's ``.odf`` folder, which contains the cache.
        dataset: the dataset.
        format: the format of the table.
        reporter: receives rows, and can cancel.

    Raises:
        UsageError: the dataset has no primary key, or is a branch.
        NotFound, BadData: it has no rows yet, or a slice is missing or damaged.
        Conflict: the history was replaced in the meantime.
        Unsupported: the format does not have the type of a column.
        OdfError: the table cannot be written.
        Cancelled: the reporter was cancelled.
    """
    require_head(dataset)
    table = LatestTable(dataset, format)
    with table.locked():
        newest = table.newest()
        if newest is None or table.is_damaged() or not _is_current(dataset, newest):
            newest = _replace(odf, dataset, table, reporter)
    return WrittenTable(format, str(table.path), newest.version)


def _replace(odf: Path, dataset: Dataset, table: LatestTable, reporter: Reporter) -> LatestVersion:
    key = dataset_key(dataset)
    last = dataset.state().last_offset
    if not key or last is None:
        table.remove()  # its rows are not the latest state
    if not key:
        raise UsageError(
            "the dataset has no primary key, so it has no latest state",
            hint="omit --latest, or declare a primary key in the merge strategy with odf edit",
        )
    if last is None:
        raise NotFound("the dataset has no rows yet", hint="run odf pull or odf ingest to add rows")
    slices = dataset.slices(last, last)
    blocks = [dataset.block_hash(row.sequence_number) for row in slices]
    state = build_projection(odf, dataset, key, reporter, last_offset=last)
    if not blocks or not dataset.contains_block(blocks[0]):
        raise Conflict("the history was replaced in the meantime", hint="run the command again")
    return table.replace(state.file, key, slices[0], blocks[0])


def _is_current(dataset: Dataset, version: LatestVersion) -> bool:
    """Return whether a version has the newest rows."""
    last = dataset.state().last_offset
    rows = [] if last is None else dataset.slices(last, last)
    blocks = [str(dataset.block_hash(row.sequence_number)) for row in rows]
    return blocks == [version.block] and dataset_key(dataset) == version.key


def is_latest_current(dataset: Dataset, format: TableFormat) -> bool:
    """Return whether an existing table has the newest rows."""
    newest = LatestTable(dataset, format).newest()
    return newest is not None and _is_current(dataset, newest)


def _is_small(dataset: Dataset) -> bool:
    """Return whether the tables of a dataset are updated after each job."""
    state = dataset.state()
    return state.records <= MAX_ROWS and state.data_size <= _MAX_BYTES


def update_latest_tables(odf: Path, dataset: Dataset) -> None:
    """Update the existing tables of a small dataset after a job. An error is only logged."""
    for format in latest_tables(dataset):
        try:
            if _is_small(dataset) and not is_latest_current(dataset, format):
                write_latest_table(odf, dataset, format, Reporter())
        except Exception as error:  # the job has succeeded
            reason = error.format_line if isinstance(error, OdfError) else str(error)
            message = "the latest state was not written to the %s table; the next job tries again: %s"
            _logger.warning(message, format, reason)
