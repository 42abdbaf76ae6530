"""What a query whose rows can change at any time reads in each pull is known, and can be limited."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Odf

ROOT = """
kind: DatasetSnapshot
version: 1
content:
  name: readings
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: Csv, header: true, schema: [event_time TIMESTAMP, n BIGINT]}
      merge: {kind: Append}
"""
DERIVATIVE = """
kind: DatasetSnapshot
version: 1
content:
  name: compared
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: readings, alias: readings}]
      transform:
        kind: Sql
        engine: spark
        query: SELECT * FROM readings WHERE n > (SELECT avg(n) FROM readings)
"""
ROWS = "event_time,n\n" + "".join(f"2026-01-01T00:00:00Z,{n * 7919 % 1000}\n" for n in range(200))


@pytest.mark.complete
def test_costs_of_a_query_are_shown_and_limited(fresh: Odf) -> None:
    assert fresh("add", "-", input=ROOT).code == 0
    assert fresh("ingest", "readings", input=ROWS).code == 0
    size = sum(row["size"] for row in fresh("list", "--json").json)

    def check() -> tuple[list[str], dict[str, object]]:
        text = fresh("add", "--check", "-", input=DERIVATIVE)
        (found,) = fresh("add", "--check", "-", "--json", input=DERIVATIVE).json
        assert text.code == 0
        return text.out.splitlines(), found

    costs = f"each pull reads earlier rows of the inputs again (now {size / 1000:.1f} kB)"
    excess = f"a pull would read {size / 1000:.1f} kB, more than transform.mostReadBytes (1k)"
    lines, found = check()
    assert lines[1].endswith(costs) and (found["reads"], found["warning"]) == (size, None)
    assert fresh("config", "set", "transform.mostReadBytes", "1k").code == 0
    lines, found = check()
    assert lines[2].startswith(f"  warning: {excess}") and str(found["warning"]).startswith(excess)

    assert fresh("add", "-", input=DERIVATIVE).code == 0
    before = fresh("log", "compared", "--json").json
    failed = fresh("pull", "compared")
    assert failed.code == 1 and excess in failed.err and "odf help transforms" in failed.err
    assert fresh("log", "compared", "--json").json == before

    hint = failed.err.split("such as odf ")[1].split(";")[0]
    assert fresh(*hint.split()).code == 0
    assert fresh("pull", "compared").code == 0
    updated = DERIVATIVE.replace("n > (", "n >= (")
    changed = fresh("add", "--update", "--rebuild", "-", input=updated)
    assert changed.code == 0 and costs in changed.err
    invalid = fresh("config", "set", "transform.mostReadBytes", "many")
    assert invalid.code == 2 and "mostReadBytes" in invalid.err
