"""Numbers of the rows that a job appended, for its result."""

from __future__ import annotations

from typing import TypedDict

from odf_engine.chain.dataset import Dataset
from odf_engine.errors import OdfError
from odf_engine.progress import Reporter


class ChangeCounts(TypedDict, total=False):
    """Numbers of rows by operation, see :class:`odf_engine.coordinator.results.PullResult`."""

    added: int
    retracted: int
    corrected: int


def count_changes(dataset: Dataset, blocks: int, reporter: Reporter) -> ChangeCounts:
    """Return the numbers of rows of the newest blocks by operation: the fields of a result that are not 0.

    The blocks are committed: if a slice cannot be read, a warning is logged and the result is empty.
    """
    if blocks <= 0:
        return {}
    from odf_engine.data.operation_counts import count_operations

    state = dataset.state()
    first = state.sequence_number - blocks + 1
    try:
        slices = [each for each in dataset.slices() if each.sequence_number >= first]
        paths = [dataset.slice_path(each) for each in slices]
        counts = count_operations(paths, state.vocabulary.operation_type_column)
    except OdfError as error:
        reporter.log(f"retractions and corrections are not counted: {error}", "warning")
        return {}
    found = ChangeCounts()
    if counts.added:
        found["added"] = counts.added
    if counts.retracted:
        found["retracted"] = counts.retracted
    if counts.corrected:
        found["corrected"] = counts.corrected
    return found
