"""`odf add --translate spark`: translated queries, changed results, and what has no translation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import Odf, Ran

ROOT = """\
kind: DatasetSnapshot
version: 1
content:
  name: numbers
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: main
      read: {kind: NdJson, schema: ["event_time TIMESTAMP", "k STRING", "x INT"]}
      # Every row.
      preprocess: {kind: Sql, engine: risingwave, query: 'SELECT "event_time", k, x FROM input'}
      merge: {kind: Append}
"""
TOTALS = """\
# Daily totals.
kind: DatasetSnapshot
version: 1
content:
  name: totals
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: numbers}]
      transform:
        kind: Sql
        engine: flink  # as made elsewhere
        query: |
          SELECT TUMBLE_START(event_time, INTERVAL '1' DAY) AS event_time, k, SUM(x) AS x, AVG(x) AS mean
          FROM numbers GROUP BY TUMBLE(event_time, INTERVAL '1' DAY), k
    - kind: SetInfo
      description: Totals
"""


@pytest.fixture
def names(odf: Odf) -> Iterator[Callable[[], set[str]]]:
    """Return the names of the datasets that a test has added to the demo's workspace."""

    def listed() -> set[str]:
        return {each["name"] for each in odf("list", "--json").json} - before

    before = set[str]()
    before = listed()
    yield listed
    for name in sorted(listed(), reverse=True):  # derivatives first
        assert odf("delete", name, "-y").code == 0


def test_translated_query_runs_and_changed_results_are_reported(
    odf: Odf, demo: tuple[Path, Ran], names: Callable[[], set[str]], tmp_path: Path
) -> None:
    """In the demo's workspace, whose worker runs already."""
    (numbers := tmp_path / "numbers.yaml").write_text(ROOT)
    (totals := tmp_path / "totals.yaml").write_text(TOTALS)
    ran = odf("add", str(numbers))
    assert ran.code == 1 and "odf add --translate spark" in ran.err
    # The types of the input are unknown, so each change that they may cause is named.
    ran = odf("add", "--translate", "spark", "--dry-run", str(numbers), str(totals))
    assert ran.code == 0, ran.err
    assert (
        "changed result: query, line 1, column 69: sum of an INT is INT in Flink and BIGINT in Spark"
        in ran.out
    )
    assert names() == set() and totals.read_text() == TOTALS

    ran = odf("add", "--translate", "spark", str(numbers))
    assert ran.code == 0, ran.err
    rows = '{"event_time": "2024-01-01", "k": "a", "x": 1}\n{"event_time": "2024-01-02", "k": "a", "x": 2}\n'
    assert odf("ingest", "numbers", input=rows).code == 0
    assert "# Every row.\n      # Translated from risingwave" in numbers.read_text()
    assert Workspace(demo[0]).resolve("numbers").dataset.state().records == 2

    # A query that Spark refuses is not added, and its file is unchanged.
    text = TOTALS.replace("totals", "unknown-column").replace("SUM(x)", "SUM(z)")
    (wrong := tmp_path / "wrong.yaml").write_text(text)
    ran = odf("add", "--translate", "spark", str(wrong))
    assert ran.code == 1 and "z" in ran.err, ran.err
    assert wrong.read_text() == text
    assert names() == {"numbers"}

    ran = odf("add", "--translate", "spark", str(totals), "--json")
    assert ran.code == 0 and ran.json == [{"name": "totals", "status": "added"}]
    assert "totals: query translated from flink to spark" in ran.err and "changed result" not in ran.err
    assert "-SELECT TUMBLE_START(event_time" in ran.err and "+  window.start AS event_time," in ran.err
    text = totals.read_text()
    assert text.startswith("# Daily totals.\n") and "engine: spark  # as made elsewhere" in text
    assert (
        "        #   SELECT TUMBLE_START(event_time, INTERVAL '1' DAY) AS event_time, k, SUM(x) AS x" in text
    )
    assert text.endswith("    - kind: SetInfo\n      description: Totals\n")
    assert odf("pull", "totals").code == 0
    columns = odf("schema", "totals", "--format", "ddl").out
    assert "x INT" in columns and "mean INT" in columns  # Flink's types
    (row,) = odf("tail", "totals", "--json").json
    assert (row["event_time"], row["x"], row["mean"]) == ("2024-01-01T00:00:00Z", 1, 1)
    # The manifest defines the dataset.
    assert odf("add", "--update", str(totals), "--json").json[0]["status"] == "unchanged"


def test_inputs_may_be_added_in_the_same_command(fresh: Odf, tmp_path: Path) -> None:
    (tmp_path / "both.yaml").write_text(f"{TOTALS}---\n{ROOT}")
    ran = fresh("add", "--translate", "spark", "both.yaml")
    assert ran.code == 0, ran.err
    assert "totals: the query was not checked: its inputs are new too" in ran.err
    assert sorted(each["name"] for each in fresh("list", "--json").json) == ["numbers", "totals"]


def test_untranslatable_query_is_rejected_with_its_position(fresh: Odf, tmp_path: Path) -> None:
    query = "SELECT event_time, PROCTIME() AS p,\n            unknown_thing(x) AS y FROM numbers"
    text = TOTALS[: TOTALS.index("SELECT")] + query + "\n"
    (tmp_path / "totals.yaml").write_text(text)
    ran = fresh("add", "--translate", "spark", "totals.yaml")
    assert ran.code == 1
    assert "dataset totals, query, line 1, column 20: cannot be translated from Flink to Spark" in ran.err
    assert "PROCTIME is not deterministic" in ran.err and "1 | SELECT event_time, PROCTIME()" in ran.err
    assert "query, line 2, column 3: the function unknown_thing has no known equivalent" in ran.err
    assert (tmp_path / "totals.yaml").read_text() == text
    ran = fresh("add", "--translate", "flink", "totals.yaml")
    assert ran.code == 2
