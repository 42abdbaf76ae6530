"""``odf tail``: the newest rows, those as known at a block or time, and projections."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Odf

STATIONS = "port-haven.stations"


def _blocks(odf: Odf) -> list[dict[str, Any]]:
    """Those that brought rows, newest first."""
    return [each for each in odf("log", STATIONS, "--json").json if each["event"].get("newData")]


def test_tail_shows_rows_as_at_a_block_or_time(odf: Odf) -> None:
    blocks = _blocks(odf)
    newest = odf("tail", STATIONS, "-n", "100", "--json").json
    for block in reversed(blocks):
        known = block["event"]["newData"]["offsetInterval"]["end"] + 1
        ran = odf("tail", STATIONS, "-n", "100", "--json", "--as-at", block["hash"])
        assert ran.json == newest[:known]
        assert f"block {block['sequence_number']} {block['hash']} · {known} row" in ran.err
    at = odf("tail", STATIONS, "-n", "100", "--json", "--as-at", blocks[-1]["system_time"])
    assert at.json == newest[:4]
    few = odf("tail", STATIONS, "-n", "1", "--json", "--as-at", blocks[-1]["hash"][-8:])
    assert few.json == newest[3:4]
    begin = odf("log", STATIONS, "--json").json[-1]["hash"]
    assert odf("tail", STATIONS, "--json", "--as-at", begin).json == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--as-at", "2001-02"), 2, "has no blocks at 2001-02-01T00:00:00Z"),
        (("--as-at", "nope"), 1, "block 'nope' not found"),
        (("--as-at", "2024-02-31"), 2, "'2024-02-31' is not a time"),
        (("--as-of", "soon"), 2, "'soon' is not a time"),
        (("--key", "nope"), 1, "column 'nope' not found"),
    ],
)
def test_invalid_versions_times_and_keys_are_rejected(
    odf: Odf, arguments: tuple[str, ...], code: int, words: str
) -> None:
    ran = odf("tail", STATIONS, *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert words in ran.err


def test_tail_shows_current_state_as_at_and_as_of(odf: Odf) -> None:
    """The stations' fifth came on the third day; the fourth was taken away."""
    now = odf("tail", STATIONS, "--current", "--json")
    assert sorted(row["station"] for row in now.json) == ["ph-01", "ph-02", "ph-03", "ph-05"]
    assert "by station · 4 rows" in now.err
    first = _blocks(odf)[-1]
    then = odf("tail", STATIONS, "--current", "--json", "--as-at", first["hash"])
    assert sorted(row["station"] for row in then.json) == ["ph-01", "ph-02", "ph-03", "ph-04"]
    named = odf("tail", STATIONS, "--key", "name", "--json", "--as-at", first["hash"])
    assert "by name" in named.err and len(named.json) == 4
    day = odf("tail", STATIONS, "--as-of", "2024-03-02", "--json")
    assert "as of 2024-03-02T00:00:00Z · by station" in day.err
    # The fourth was there until the snapshot without it, which has no new row, and so only a system time.
    names = {row["station"]: row["name"] for row in day.json}
    there = {"ph-01": "Harbour Gate", "ph-02": "Mill Street", "ph-03": "Lighthouse"}
    assert names == there | {"ph-04": "Orchard School"}
    later = odf("tail", STATIONS, "--as-of", "2100-01-01", "--json")
    assert "ph-04" not in {row["station"] for row in later.json}
    both = odf("tail", STATIONS, "--as-of", "2024-03-02", "--as-at", first["hash"], "--json")
    assert len(both.json) == 4 and f"block {first['sequence_number']} " in both.err
