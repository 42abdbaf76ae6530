"""The manifest's own queries over what was read: steps, errors with their place, order of rows."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from odf_engine.data.arrow_schema import decode_schema
from odf_engine.errors import BadData, InvalidQuery, InvalidSchema
from odf_engine.metadata.model import Sql
from tests.ingest.pulling import Pulled

SOURCE = """
fetch: {{kind: Url, url: in.csv, eventTime: {{kind: FromMetadata}}}}
read: {{kind: Csv, header: true, schema: ["day DATE", "town STRING", "n BIGINT"]}}
preprocess: {preprocess}
merge: {merge}
"""
ROWS = [("2024-01-02", "b", 1), ("2024-01-01", "b", 2), ("2024-01-02", "a", 3), ("2024-01-01", "a", 4)]
TEXT = "day,town,n\n" + "".join(f"{day},{town},{n}\n" for day, town, n in ROWS)


def add(pulled: Pulled, *queries: str, merge: str = "{kind: Append}", name: str = "data") -> None:
    """A dataset with these queries; all but the last are called s1, s2, …"""
    steps = [{"query": query} | ({"alias": f"s{at}"} if at < len(queries) else {})
             for at, query in enumerate(queries, 1)]  # fmt: skip
    preprocess = json.dumps({"kind": "Sql", "engine": "spark", "queries": steps})
    pulled.add(SOURCE.format(preprocess=preprocess, merge=merge), name=name)


def day(number: int) -> datetime:
    return datetime(2024, 1, number, tzinfo=UTC)


def test_query_steps_see_the_input_and_earlier_steps(pulled: Pulled) -> None:
    pulled.write("in.csv", TEXT)
    add(
        pulled,
        "SELECT CAST(day AS TIMESTAMP) AS event_time, town, n FROM input;",
        # A CTE may take the name of what it reads.
        "WITH s1 AS (SELECT * FROM s1 WHERE n < 4) "
        "SELECT *, sum(n) OVER (PARTITION BY town ORDER BY n) AS total FROM s1",
        "SELECT event_time, s2.town, s2.n, total, (SELECT count(*) FROM input) AS lines "
        "FROM s2 LEFT JOIN s1 USING (event_time, town)",
    )
    pulled.pull()
    assert pulled.rows("event_time", "town", "n", "total", "lines") == [
        (day(1), "b", 2, 3, 4), (day(2), "a", 3, 3, 4), (day(2), "b", 1, 1, 4),
    ]  # fmt: skip


def test_condition_on_a_session_applies_to_all_its_rows(pulled: Pulled) -> None:
    pulled.write("in.csv", TEXT)
    add(
        pulled,
        "SELECT session_window.start AS event_time, town, count(*) AS n FROM input "
        "GROUP BY session_window(CAST(day AS TIMESTAMP), '30 hours'), town HAVING session_window.end < "
        "'2024-01-03'",
        "SELECT TIMESTAMP'2024-01-05' AS event_time, count(*) AS n FROM s1",
    )
    pulled.pull()
    assert pulled.rows("n") == [(0,)]


def test_invalid_queries_are_reported_with_their_location(pulled: Pulled) -> None:
    pulled.write("in.csv", TEXT)
    add(pulled, "SELECT * FROM input", "SELECT\n  town,\n  SUM(n FROM s1", name="syntax")
    error = pulled.fails(InvalidQuery, "query step 2 of 2")
    assert "line 3" in str(error.where)
    add(pulled, "SELECT town, m FROM input", "SELECT * FROM s1", name="column")
    pulled.fails(InvalidQuery, "query step 1 of 2", "m")
    add(pulled, "SELECT * FROM s1", "SELECT * FROM s1", name="later")
    pulled.fails(InvalidQuery, "query step 1 of 2", "`input`")
    add(pulled, "DROP TABLE input", name="command")
    pulled.fails(InvalidQuery, "only a single SELECT is allowed")
    pulled.add(SOURCE.format(merge="{kind: Append}", preprocess='{kind: Sql, engine: spark, queries: '
               '[{alias: Input, query: "SELECT 1"}, {query: "SELECT 2"}]}'), name="shadow")  # fmt: skip
    pulled.fails(InvalidQuery, "the alias `Input` of step 1 already exists")
    # Chains of others may have such a query; `odf add` refuses it.
    spark = "{kind: Sql, engine: spark, query: SELECT 1}"
    pulled.add(SOURCE.format(merge="{kind: Append}", preprocess=spark), name="engine")
    state = pulled.dataset.state()
    assert state.polling_source is not None and isinstance(state.polling_source.preprocess, Sql)
    flink = replace(state.polling_source, preprocess=replace(state.polling_source.preprocess, engine="flink"))
    pulled.dataset.commit([flink], system_time=state.system_time, expected_head=state.head)
    pulled.fails(InvalidQuery, "'flink'", "supported: spark, datafusion")
    add(pulled, "SELECT town AS event_time, n FROM input", name="time")
    pulled.fails(
        InvalidSchema, "in.csv", "event time column 'event_time' is a STRING", "CAST(event_time AS TIMESTAMP)"
    )
    add(pulled, "SELECT n, town AS N FROM input", name="twice")
    pulled.fails(InvalidSchema, "'n' and 'N' have the same name")
    add(pulled, "SELECT n AS offset FROM input", name="system")
    pulled.fails(InvalidSchema, "'offset'", "offsetColumn in SetVocab")


def test_query_without_rows_commits_only_the_source_state(pulled: Pulled) -> None:
    path = pulled.write("in.csv", TEXT)
    add(pulled, "SELECT * FROM input WHERE n > 100")
    assert pulled.pull().records == 0
    assert pulled.kinds()[-1] == "AddData"
    assert pulled.newest().new_source_state is not None
    assert pulled.pull().status == "up-to-date"
    path.write_text("day,town,n\n2024-01-05,c,101\n")
    assert pulled.pull().records == 1
    assert pulled.kinds()[-2:] == ["SetDataSchema", "AddData"]


@pytest.mark.parametrize("merge", ["{kind: Append}", "{kind: Ledger, primaryKey: [town, n]}"])
def test_grouped_rows_are_sorted_deterministically(pulled: Pulled, merge: str) -> None:
    # Keys in an order in which no hash would put them; times that are null are those of the file.
    numbers = [(7 * at) % 40 for at in range(40)]
    pulled.write("in.csv", "day,town,n\n" + "".join(f"2024-01-0{1 + n % 3},t{n:02},{n}\n" for n in numbers))
    query = (
        "SELECT if(n % 3 = 2, NULL, CAST(day AS TIMESTAMP)) AS event_time, n, town, count(*) AS c{more} "
        "FROM input GROUP BY ALL"
    )
    add(pulled, query.format(more=""), merge=merge)
    pulled.pull()
    expected = sorted(range(40), key=lambda n: (n % 3, n))
    assert [n for (n,) in pulled.rows("n")] == expected
    if "Append" in merge:  # by Spark, which compares nested values too
        add(pulled, query.format(more=", collect_list(n) AS list"), name="nested")
        pulled.pull()
        assert [n for (n,) in pulled.rows("n")] == expected


def test_filtered_and_exploded_rows_keep_the_file_order(pulled: Pulled) -> None:
    pulled.write("in.csv", TEXT)
    add(pulled, "SELECT n, explode(array(town, upper(town))) AS town FROM input WHERE n <> 2")
    pulled.pull()
    assert pulled.rows("n", "town") == [(1, "b"), (1, "B"), (3, "a"), (3, "A"), (4, "a"), (4, "A")]


@pytest.mark.complete
def test_datafusion_queries_run_and_report_their_errors(pulled: Pulled) -> None:
    path = pulled.write("in.csv", TEXT)
    first = 'SELECT CAST("day" AS TIMESTAMP) AS event_time, town AS "Town", n FROM input'
    second = "SELECT *, arrow_cast(n, 'UInt64') AS u, 7 / 2 AS half FROM \"some rows\" WHERE n <> 2"
    steps = [{"alias": "some rows", "query": first}, {"query": second}]
    preprocess = json.dumps({"kind": "Sql", "engine": "DataFusion", "queries": steps})
    pulled.add(SOURCE.format(preprocess=preprocess, merge="{kind: Append}"))
    pulled.pull()
    expected = [(day(1), "a", 4, 3), (day(2), "b", 1, 3), (day(2), "a", 3, 3)]
    assert pulled.rows("event_time", "Town", "n", "half") == expected
    schema = decode_schema(pulled.dataset.state().schema)
    assert [str(schema.field(name).type) for name in ("event_time", "u")] == [
        "timestamp[ms, tz=UTC]",
        "uint64",
    ]
    path.write_text(f"{TEXT}2024-01-03,c,x\n")
    pulled.fails(BadData, 'in.csv: line 6, column "n"', "'x' is not a BIGINT")
    grouped = "SELECT CAST(min(day) AS TIMESTAMP) AS event_time, town, sum(n) AS n FROM input GROUP BY town"
    path.write_text(TEXT)
    for name, query in {"grouped": grouped, "union": f"{grouped} UNION ALL {grouped}"}.items():
        preprocess = json.dumps({"kind": "Sql", "engine": "datafusion", "query": query})
        pulled.add(SOURCE.format(preprocess=preprocess, merge="{kind: Append}"), name=name)
        pulled.pull()
        assert list(dict.fromkeys(pulled.rows("town", "n"))) == [("a", 7), ("b", 3)]
    for query, kind, parts in (
        (
            "SELECT n, CAST(town AS INT) AS t FROM input",
            BadData,
            ["Cannot cast string 'b' to value of Int32"],
        ),
        ("SELECT n FROM input WHERE N > 1", InvalidQuery, ["column 'N' not found", "case-sensitive"]),
        ("COPY input TO '/tmp/x.csv'", InvalidQuery, ["must be a SELECT, not COPY"]),
    ):
        preprocess = json.dumps({"kind": "Sql", "engine": "datafusion", "query": query})
        pulled.add(SOURCE.format(preprocess=preprocess, merge="{kind: Append}"), name=f"bad{len(query)}")
        pulled.fails(kind, *parts)
