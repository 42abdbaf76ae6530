"""Footers of Parquet files that end the process when Arrow's interface for them is used."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.data import crafted_parquet as crafted
from tests.faults.jail import run_jailed

_STATISTICS = """
import sys
from pathlib import Path
from odf_engine.errors import BadData
from odf_engine.rows.statistics import statistics_from_footers
from odf_engine.rows.scan import Scan
try:
    found = statistics_from_footers(Scan.of_file(Path(sys.argv[1])))
except BadData as error:
    print(error)
else:
    print([(each.name, each.nulls, each.least, each.greatest) for each in found.columns])
"""


def _statistics(tmp_path: Path, **about: Any) -> str:
    """What the screen reads of a file whose only column has these fields in its metadata."""
    fields = {int(number[1:]): value for number, value in about.items()}
    column = crafted.Column("x", crafted.INT64, 10, crafted.page(10, crafted.PLAIN, bytes(80)), about=fields)
    path = tmp_path / "x.parquet"
    path.write_bytes(crafted.parquet(10, column))
    done = run_jailed([sys.executable, "-c", _STATISTICS, path], tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_valid_footer_is_read(tmp_path: Path) -> None:
    least, greatest = bytes(8), b"\7" + bytes(7)
    bounds = {1: greatest, 2: least, 3: crafted.Long(0)}
    sizes = {2: [crafted.Long(10)], 3: [crafted.Long(10)]}
    assert _statistics(tmp_path, _12=bounds, _16=sizes) == "[('x', 0, '0', '7')]"
    assert _statistics(tmp_path, _16={2: [], 3: []}) == "[('x', None, None, None)]"


@pytest.mark.parametrize(
    "about",
    [
        {"_1": 0},  # another type than in the schema
        {"_1": 99},
        {"_4": 99},  # no codec
        {"_12": {3: crafted.Long(0), 5: b"\7", 6: b"\0"}},  # bounds that are too short
        {"_16": {1: crafted.Long(7)}},  # bytes of texts where there are none
        {"_16": {2: [crafted.Long(5), crafted.Long(5)]}},  # more levels than there are
        {"_16": {3: [crafted.Long(5), crafted.Long(5), crafted.Long(5)]}},
    ],
    ids=str,
)
@pytest.mark.complete(after=2)
def test_malformed_footer_does_not_crash_the_process(tmp_path: Path, about: dict[str, Any]) -> None:
    assert _statistics(tmp_path, **about) == (
        "x.parquet: file cannot be read: malformed page header or footer"
    )
