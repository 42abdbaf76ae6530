"""Period columns: columns whose names are years, quarters, months or days, which can become rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from odf_engine.base.progress import count_of
from odf_engine.filters.csv_filter import unique_names
from odf_engine.ingest.inference.csv_layout import CsvLayout, dialect_options

_MONTH: Final = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_PATTERNS: Final = {
    "year": r"(19|20)\d\d",
    "fiscal_year": r"(19|20)\d\d ?[-/] ?(\d\d|(19|20)\d\d)",
    "quarter": r"(19|20)\d\d[- ]?[Qq][1-4]|[Qq][1-4][- ]?(19|20)\d\d",
    "month": rf"(19|20)\d\d[-M/](0[1-9]|1[0-2])|(?i:{_MONTH})[- ](19|20)?\d\d",
    "date": r"(19|20)\d\d-\d\d-\d\d|\d{1,2}[./]\d{1,2}[./](19|20)?\d\d",
}
"""Patterns of names by the name of the column that gets them."""
_MIN_COLUMNS: Final = 3
_VALUE: Final = "value"


class PeriodColumns(NamedTuple):
    """Columns that are periods.

    Attributes:
        kind: what the names are: ``year``, ``fiscal_year``, ``quarter``, ``month`` or ``date``.
        pattern: a pattern of the names that no other column has.
        places: the positions of the columns, from 0.
        evidence: the columns in words.
    """

    kind: str
    pattern: str
    places: Sequence[int]
    evidence: str


def find_period_columns(header: Sequence[str]) -> PeriodColumns | None:
    """Return the columns beside each other whose names are periods of one kind, or None."""
    names = [name.strip() for name in header]
    for kind, pattern in _PATTERNS.items():
        places = [at for at, name in enumerate(names) if re.fullmatch(pattern, name)]
        are_adjacent = all(second == first + 1 for first, second in pairwise(places))
        if len(places) < _MIN_COLUMNS or not are_adjacent or len(places) == len(names):
            continue
        others = {name.casefold() for at, name in enumerate(names) if at not in places}
        if others & {kind, _VALUE} or len({names[at] for at in places}) < len(places):
            continue
        what = f"{len(places)} columns are {kind.replace('_', ' ')}s"
        evidence = f"{what}: {names[places[0]]} to {names[places[-1]]}"
        return PeriodColumns(kind, f"^({pattern})$", places, evidence)
    return None


def unpivoted(layout: CsvLayout, periods: PeriodColumns) -> CsvLayout:
    """Return a layout with a row for each value of period columns, as the filter ``csv`` does."""
    names = unique_names(layout.header)
    kept = [at for at in range(len(names)) if at not in periods.places]
    rows = [
        record._replace(cells=[*(record.cells[at] for at in kept), layout.header[at], record.cells[at]])
        for record in layout.rows
        for at in periods.places
        if record.cells[at]
    ]
    arguments, evidence = layout.filter, layout.evidence
    if not arguments:
        arguments = ("csv", *dialect_options(layout.dialect))
        if layout.bad_rows:
            arguments = (*arguments, "--ragged", "skip")
            evidence = (f"left out: {count_of(len(layout.bad_rows), 'row')} with another number of values",)
    return layout._replace(
        header=[*(names[at] for at in kept), periods.kind, _VALUE],
        rows=rows,
        filter=(*arguments, "--unpivot", periods.pattern, "--name", periods.kind, "--value", _VALUE),
        evidence=(*evidence, f"{periods.evidence}; they become rows"),
    )
