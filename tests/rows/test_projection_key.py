"""What tells the rows of a derivative dataset apart, by the text of its query."""

from __future__ import annotations

import pytest

from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import DatasetKind, SetTransform, Sql, SqlQueryStep, TransformInput
from odf_engine.rows.projection import dataset_key, group_by_columns
from odf_engine.workspace.workspace import Workspace
from tests.sync.builders import START, make_root

COUNT = "max(event_time) AS event_time, count(*) AS n"


def transform(*queries: str) -> SetTransform:
    """Steps, the last of them without a name, the others ``s1``, ``s2``, …"""
    names = [*(f"s{at}" for at in range(1, len(queries))), None]
    steps = [SqlQueryStep(query=query, alias=name) for query, name in zip(queries, names, strict=True)]
    return SetTransform([TransformInput("did:odf:x", "t")], Sql("spark", queries=steps))


@pytest.mark.parametrize(
    ("queries", "key"),
    [
        ([f"SELECT city, {COUNT} FROM t GROUP BY city"], ["city"]),
        ([f"SELECT t.City AS town, upper(street) AS `the street`, {COUNT} FROM t JOIN u USING (x) "
          "GROUP BY city, upper(t.street)"], ["town", "the street"]),
        ([f"SELECT date_trunc('day', event_time) AS day, {COUNT} FROM t GROUP BY 1"], ["day"]),
        ([f"SELECT date(event_time) AS day, {COUNT} FROM t GROUP BY day"], ["day"]),
        ([f"SELECT city, {COUNT} FROM t GROUP BY ALL"], ["city"]),
        ([f"WITH g AS (SELECT city, {COUNT} FROM t GROUP BY city) SELECT n, city AS c FROM g"], ["c"]),
        ([f"SELECT city, {COUNT} FROM t GROUP BY city", "SELECT * FROM s1 WHERE n > 2"], ["city"]),
        ([f"SELECT * FROM (SELECT city, {COUNT} FROM t GROUP BY city HAVING n > 1) x"], ["city"]),
        # What nothing tells apart, or nothing changes any more.
        (["SELECT * FROM t"], []),
        ([f"SELECT {COUNT} FROM t"], []),
        ([f"SELECT {COUNT} FROM t GROUP BY city"], []),
        ([f"SELECT city, {COUNT} FROM t GROUP BY CUBE (city)"], []),
        (["SELECT window.start AS event_time, city FROM t GROUP BY window(event_time, '7 days'), city"], []),
        ([f"SELECT city, {COUNT} FROM t GROUP BY city", "SELECT event_time, n FROM s1"], []),
        ([f"SELECT city, {COUNT} FROM t GROUP BY city", "SELECT s1.* FROM s1 JOIN u ON s1.n = u.n"], []),
        ([f"SELECT city, {COUNT} FROM t GROUP BY city UNION ALL SELECT * FROM u"], []),
        (["SELECT FROM WHERE ("], []),
        (["SHOW TABLES"], []),
        ([f"SELECT city, {COUNT} FROM t" + " JOIN u" * 30 + " GROUP BY city"], []),  # would take hours
        ([f"SELECT city, {COUNT} FROM t" + " JOIN u USING (x)" * 30 + " GROUP BY city"], ["city"]),
        (["FROM t |> AGGREGATE count(*) GROUP BY city"], ["city"]),
    ],
)  # fmt: skip
def test_group_by_columns_of_a_query_are_its_key(queries: list[str], key: list[str]) -> None:
    assert group_by_columns(transform(*queries)) == key


def test_grouped_derivative_has_its_group_columns_as_key(workspace: Workspace) -> None:
    root = make_root(workspace)
    assert dataset_key(root.dataset) == []
    events = [transform(f"SELECT city, {COUNT} FROM t GROUP BY city")]
    events[0] = SetTransform([TransformInput(str(root.id), "t")], events[0].transform)
    made = workspace.create_dataset(DatasetAlias.parse("counts"), DatasetKind.Derivative, events, START)
    assert dataset_key(made.dataset) == ["city"]
    assert group_by_columns(None) == []
