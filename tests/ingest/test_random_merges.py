"""Any history of snapshots, replayed, gives each of them; a ledger keeps the first row of every key.

In the middle the keys that are kept beside the dataset are lost, or come to harm: that changes nothing.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odf_engine.data.changelog import Op
from tests.ingest.pulling import Pulled

# Cases are told apart by a part of the key, so that one pull does the work of many.
CASES = 25
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "text": st.none() | st.sampled_from(["", "a", "b", "A", "é", "\n", '"']),
        "number": st.sampled_from([0.0, 1.5, -1.5, 1e300]) | st.none(),
        "moment": st.sampled_from(
            ["2024-01-01T00:00:00.123Z", "2024-01-01T00:00:00.1239Z", "1960-01-01T00:00:00.0005Z"]
        ),
        "many": st.lists(st.integers(0, 2) | st.none(), max_size=2) | st.none(),
    },
)
KEYS = st.tuples(st.sampled_from(["x", "y", "", "ü"]), st.integers(-1, 1))
CASE = st.lists(st.dictionaries(KEYS, VALUES, max_size=5), min_size=4, max_size=4)

SOURCE = """
fetch: {{kind: FilesGlob, path: "{folder}/*.json"}}
read:
  kind: NdJson
  schema: [case INT, a STRING, b BIGINT, text STRING, number DOUBLE, moment TIMESTAMP, "many ARRAY<INT>"]
merge: {{kind: {merge}, primaryKey: [case, a, b]}}
"""
_count = iter(range(1000))


def lines(cases: list[list[dict[tuple[str, int], dict[str, Any]]]], step: int) -> str:
    rows = [
        {"case": number, "a": a, "b": b, **values}
        for number, case in enumerate(cases)
        for (a, b), values in case[step].items()
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def normal(values: dict[str, Any]) -> tuple[Any, ...]:
    moment = values.get("moment")
    if isinstance(moment, str):
        moment = {"9": 123, "3": 123, "5": 0}[moment[-2]]
    elif moment is not None:
        moment = moment.microsecond // 1000
    return values.get("text"), values.get("number"), moment, values.get("many")


def pull_with_harm(pulled: Pulled, folder: str, texts: list[str], harm: bytes) -> list[str]:
    """Two pulls of two files each; before the second one bytes of the files of keys change, or with no
    bytes given, the files are lost. Returns the warnings about rows."""
    warnings: list[str] = []
    for step, text in enumerate(texts):
        pulled.write(f"{folder}/{step}.json", text or "\n")
        if step % 2:
            pulled.pull()
            warnings += [
                warning for warning in pulled.reporter.warnings if "key index is damaged" not in warning
            ]
            for path in (pulled.dataset.folder / "info" / "keys").glob("*/*"):
                content = bytearray(path.read_bytes())
                for at in harm:
                    content[at * len(content) // 256] ^= at | 1
                path.write_bytes(content)
                if not harm:
                    path.unlink()
    return warnings


HARM = st.binary(max_size=3)


@given(st.lists(CASE, min_size=CASES, max_size=CASES), HARM)
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@pytest.mark.complete
def test_snapshot_changelog_replays_to_each_snapshot(
    pulled: Pulled, cases: list[list[dict[tuple[str, int], dict[str, Any]]]], harm: bytes
) -> None:
    folder = f"snapshot-{next(_count)}"
    pulled.add(SOURCE.format(folder=folder, merge="Snapshot"), name=folder)
    pull_with_harm(pulled, folder, [lines(cases, step) for step in range(4)], harm)

    rows = iter(pulled.table().to_pylist() if pulled.dataset.slices() else [])
    state: dict[tuple[int, str, int], tuple[Any, ...]] = {}
    for step in range(4):
        new = {
            (number, a, b): normal(values)
            for number, case in enumerate(cases)
            for (a, b), values in case[step].items()
        }
        for key in sorted(state.keys() | new.keys(), key=lambda key: (key[0], key[1].encode(), key[2])):
            old_values, new_values = state.get(key), new.get(key)
            if old_values is None:
                expected = [(Op.APPEND, new_values)]
            elif new_values is None:
                expected = [(Op.RETRACT, old_values)]
            elif old_values != new_values:
                expected = [(Op.CORRECT_FROM, old_values), (Op.CORRECT_TO, new_values)]
            else:
                expected = []
            for op, values in expected:
                row = next(rows)
                assert (row["op"], (row["case"], row["a"], row["b"]), normal(row)) == (op, key, values)
        state = new
    assert next(rows, None) is None


@given(st.lists(CASE, min_size=CASES, max_size=CASES), HARM)
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@pytest.mark.complete
def test_ledger_keeps_the_first_row_of_each_key(
    pulled: Pulled, cases: list[list[dict[tuple[str, int], dict[str, Any]]]], harm: bytes
) -> None:
    folder = f"ledger-{next(_count)}"
    pulled.add(SOURCE.format(folder=folder, merge="Ledger"), name=folder)
    expected: dict[tuple[int, str, int], tuple[Any, ...]] = {}
    changed = 0
    for step in range(4):
        for number, case in enumerate(cases):
            for (a, b), values in case[step].items():
                known = expected.setdefault((number, a, b), normal(values))
                changed += known != normal(values)
    warnings = pull_with_harm(pulled, folder, [lines(cases, step) for step in range(4)], harm)
    rows = pulled.table().to_pylist() if pulled.dataset.slices() else []
    assert [((row["case"], row["a"], row["b"]), normal(row)) for row in rows] == list(expected.items())
    changes = [text for text in warnings if "with an existing primary key" in text]
    counts = [int(text.split()[0].replace(",", "")) for text in changes]
    assert sum(counts) == changed
    assert not any(math.isnan(row["number"] or 0) for row in rows)
