"""Queries whose rows each come from one row of an input: no state, order and operations kept."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from odf_engine.chain.schema_evolution import declared_schema
from odf_engine.engines.contract import QueryInput
from odf_engine.errors import BadData, InvalidQuery, OdfError, Unsupported
from odf_engine.metadata.model import AddData, SourceState, Sql, SqlQueryStep
from odf_engine.workspace.dataset_summary import is_behind
from tests.derive.deriving import Deriving

A, R, CF, CT = 0, 1, 2, 3


def test_map_and_filter_process_only_new_rows(deriving: Deriving) -> None:
    root = deriving.root()
    made = deriving.derivative("SELECT event_time, city, x * 10 AS y FROM input WHERE x > 1")
    assert deriving.run(made) == 0  # an input without data: nothing to do
    deriving.rows(root, (1, "a", 1), (2, "b", 2))
    deriving.rows(root, (3, "c", 3))
    assert deriving.run(made) == 1
    deriving.rows(root, (2, "d", 4))
    assert deriving.run(made) == 1
    assert deriving.run(made) == 0
    assert deriving.result(made, "offset", "op", "city", "y") == [
        (0, A, "b", 20), (1, A, "c", 30), (2, A, "d", 40)
    ]  # fmt: skip
    event, state = deriving.newest(made), root.dataset.state()
    (item,) = event.query_inputs
    assert (item.prev_offset, item.new_offset, item.new_block_hash) == (2, 3, state.head)
    assert event.new_watermark == state.watermark
    # An increment without result rows is committed all the same: the input's interval moved.
    deriving.rows(root, (4, "e", 0))
    assert deriving.run(made) == 1
    assert deriving.newest(made).new_data is None
    assert made.dataset.state().last_offset == 2


def test_one_and_many_increments_give_equal_rows(deriving: Deriving) -> None:
    root = deriving.root()
    query = (
        "SELECT event_time, city, x FROM input WHERE x % 2 = 0 "
        "UNION ALL SELECT event_time, 'all', x FROM input"
    )
    many = deriving.derivative(query, name="many")
    once = deriving.derivative(query, name="once")
    for day in range(1, 5):
        deriving.rows(root, *((day, "abc"[x % 3], x) for x in range(day)))
        deriving.run(many)
    assert deriving.run(once) == 1
    columns = ("offset", "op", "event_time", "city", "x")
    assert deriving.result(many, *columns) == deriving.result(once, *columns)
    assert len(deriving.result(many, "x")) == 10 + 6


def test_union_orders_rows_by_input_and_uses_min_watermark(deriving: Deriving) -> None:
    first, second = deriving.root("first"), deriving.root("second")
    made = deriving.derivative("SELECT * FROM second UNION ALL SELECT * FROM first", "first", "second")
    deriving.rows(first, (5, "a", 1), (6, "a", 2))
    assert deriving.run(made) == 0
    deriving.rows(second, (2, "b", 3))
    assert deriving.run(made) == 1
    # Input by input in the order of declaration, then by offset.
    assert deriving.result(made, "city", "x") == [("a", 1), ("a", 2), ("b", 3)]
    assert str(deriving.newest(made).new_watermark) == "2024-01-02T00:00:00Z"
    deriving.rows(second, watermark="2024-01-05T00:00:00Z")
    assert deriving.run(made) == 1
    newest = deriving.newest(made)
    assert str(newest.new_watermark) == "2024-01-05T00:00:00Z"
    idle, moved = newest.query_inputs
    assert idle.new_block_hash is None and idle.prev_offset == 1
    assert moved.new_block_hash is not None and moved.new_offset is None


def test_retractions_and_corrections_flow_through(deriving: Deriving) -> None:
    root = deriving.root()
    kept = deriving.derivative("SELECT event_time, city, x FROM input WHERE x >= 10", name="kept")
    star = deriving.derivative("SELECT * FROM input", name="star")
    twice = deriving.derivative("SELECT event_time, e FROM input LATERAL VIEW explode(array(x, -x)) AS e",
                                name="twice")  # fmt: skip
    deriving.rows(
        root,
        (1, "a", 10), (1, "b", 20), (1, "c", 5), (1, "d", 30),
        (1, "a", 10, CF), (2, "a", 11, CT),  # both sides stay
        (1, "b", 20, CF), (2, "b", 1, CT),  # the new one does not
        (1, "c", 5, CF), (2, "c", 50, CT),  # the old one did not
        (1, "d", 30, R),
    )  # fmt: skip
    for made in (kept, star, twice):
        deriving.run(made)
    assert deriving.result(kept, "op", "city", "x") == [
        (A, "a", 10), (A, "b", 20), (A, "d", 30), (CF, "a", 10), (CT, "a", 11), (R, "b", 20), (A, "c", 50),
        (R, "d", 30),
    ]  # fmt: skip
    table, source = deriving.table(star), deriving.table(root)
    assert table.column_names == ["offset", "op", "system_time", "event_time", "city", "x"]
    assert table.drop_columns(["system_time"]).equals(source.drop_columns(["system_time"]).cast(
        table.drop_columns(["system_time"]).schema))  # fmt: skip
    # Two images of each side are no pair any more.
    assert deriving.result(twice, "op", "e")[8:12] == [(R, 10), (R, -10), (A, 11), (A, -11)]


def test_steps_constants_order_by_and_system_time_are_supported(deriving: Deriving) -> None:
    root = deriving.root()
    deriving.rows(root, (3, "a", 1), (1, "b", 2), (2, "c", 3))
    joined = deriving.derivative(
        "WITH named AS (SELECT * FROM input)\n"
        "SELECT event_time, name, x FROM named\n"
        "JOIN (VALUES ('a', 'Aachen'), ('c', 'Celle')) AS v (id, name) ON city = id",
        name="joined",
    )
    ordered = deriving.derivative(
        "SELECT event_time, x, system_time() AS known FROM input ORDER BY event_time", name="ordered"
    )
    deriving.run(joined)
    deriving.run(ordered)
    assert deriving.result(joined, "name", "x") == [("Aachen", 1), ("Celle", 3)]
    assert deriving.result(ordered, "x") == [(2,), (3,), (1,)]
    known, time = zip(*deriving.result(ordered, "known", "system_time"), strict=True)
    assert known == time


@pytest.mark.parametrize(
    ("query", "kind", "parts"),
    [
        ("SELEC x FROM input", InvalidQuery, ["SELEC"]),
        ("SELECT event_time, y FROM input", InvalidQuery, ["y"]),
        ("SELECT event_time FROM other", InvalidQuery, ["other", "input"]),
        ("SELECT event_time, rand() AS r FROM input", InvalidQuery, ["rand()", "system_time()"]),
        ("SELECT event_time, current_timestamp() AS r FROM input", InvalidQuery, ["current_timestamp()"]),
        ("SELECT x FROM input", InvalidQuery, ["event_time", "x"]),
        ("SELECT CAST(event_time AS STRING) AS event_time FROM input", InvalidQuery, ["STRING", "TIMESTAMP"]),
        ("SELECT event_time, x AS offset FROM input", InvalidQuery, ["offset"]),
        ("SELECT event_time, city AS op FROM input", InvalidQuery, ["op", "INT"]),
        ("SELECT event_time, 7 AS op FROM input", BadData, ["invalid operation 7"]),
        ("SELECT nullif(event_time, event_time) AS event_time, x FROM input", BadData, ["null", "x=1"]),
        ("SELECT event_time, 1 / (x - 1) AS y FROM input", BadData, ["zero"]),
        ("SELECT event_time, x FROM csv.`/etc/passwd`", InvalidQuery, []),
        ("SELECT event_time, x FROM input; DROP VIEW input", InvalidQuery, []),
        ("SELECT event_time, x FROM input LIMIT 1", Unsupported, ["LIMIT"]),
    ],
)  # fmt: skip
@pytest.mark.complete(after=6)
def test_invalid_queries_are_reported_and_commit_nothing(
    deriving: Deriving, query: str, kind: type[OdfError], parts: list[str]
) -> None:
    root = deriving.root()
    deriving.rows(root, (1, "a", 1))
    made = deriving.derivative(query)
    head = made.dataset.head()
    with pytest.raises(kind) as caught:
        deriving.run(made)
    said = f"{caught.value} {caught.value.hint}"
    for part in parts:
        assert part in said, said
    assert made.dataset.head() == head
    assert list((deriving.workspace.odf / "cache").glob("transform-*")) == []


def test_dataset_is_behind_until_input_changes_are_processed(deriving: Deriving) -> None:
    root = deriving.root()
    made = deriving.derivative("SELECT event_time, x FROM input WHERE x > 1")

    def behind() -> bool:
        summaries = {summary.id: summary for summary in deriving.workspace.summaries()}
        return is_behind(summaries[made.id], summaries)

    assert not behind()  # there is nothing to take in
    deriving.rows(root, (1, "a", 1))
    assert behind()
    deriving.run(made)
    assert not behind()
    deriving.rows(root, watermark="2024-02-01T00:00:00Z")
    assert behind()
    deriving.run(made)
    assert not behind()
    state = root.dataset.state()
    source = SourceState("default", "odf/etag", "1")
    event = AddData(prev_offset=state.last_offset, new_watermark=state.watermark, new_source_state=source)
    deriving.commit(root, [event])  # a poll that brought nothing
    assert not behind()
    assert deriving.run(made) == 0


@pytest.mark.parametrize(
    ("operation", "problem"),
    [
        ("IF(x = 2, 3, 0)", "row 1 is a +C without a preceding -C"),
        ("IF(x = 2, 2, 0)", "row 1 is a -C without a following +C"),
        ("IF(x = 1, 2, 0)", "row 1 follows a -C, but is not a +C"),
        ("IF(x = 2, 1, 0)", "retracts a row that is not in the dataset: row 1: op=1, event_time=2024-01-02"),
    ],
)
def test_an_invalid_changelog_is_not_committed(deriving: Deriving, operation: str, problem: str) -> None:
    deriving.rows(deriving.root(), (1, "a", 1), (2, "b", 2))
    made = deriving.derivative(f"SELECT event_time, city, CAST({operation} AS INT) AS op FROM input")
    head = made.dataset.head()
    with pytest.raises(BadData) as caught:
        deriving.run(made)
    assert problem in str(caught.value)
    assert made.dataset.head() == head
    assert list(made.dataset.folder.glob("data/*")) == []


def test_a_retraction_repeats_the_row_that_it_retracts(deriving: Deriving) -> None:
    root = deriving.root()
    query = "SELECT event_time, city, op, IF(op = 1, {}, x) AS x FROM input"
    same = deriving.derivative(query.format("x"), name="same")
    other = deriving.derivative(query.format("x + 1"), name="other")
    known = deriving.derivative("SELECT event_time, city, system_time() AS known FROM input", name="known")
    # A new query of this kind is refused.
    vocab, schema = root.dataset.state().vocabulary, declared_schema(root.dataset.state())
    assert schema is not None
    for select, refused in (("op AS x", True), ("x, 0 AS op, op AS was", False), ("x", False)):
        branch = f"SELECT event_time,\n{select} FROM input"
        step = SqlQueryStep(query=f"{branch} WHERE op < 2 UNION ALL {branch}")
        with pytest.raises(Unsupported, match="'x' depends") if refused else nullcontext() as caught:
            deriving.engine.validate(
                Sql("spark", queries=[step]), [QueryInput("input", schema, vocab)], vocab, None
            )
        assert caught is None or caught.value.where == "line 2, column 1"
    deriving.rows(root, (1, "a", 1), (1, "b", 2), (1, "b", 2))
    for made in (same, other, known):
        deriving.run(made)
    deriving.rows(root, (1, "b", 2, R), (2, "c", 3))
    deriving.run(same)
    for made, text, hint in (
        (other, "city=b, x=3", "check columns that the query computes"),
        (known, "city=b, known=", "remove system_time() from the query"),
    ):
        with pytest.raises(BadData, match="retracts a row that is not in the dataset") as caught:
            deriving.run(made)
        assert text in str(caught.value) and caught.value.hint is not None and hint in caught.value.hint
    deriving.rows(root, (1, "b", 2, CF), (1, "b", 4, CT), (1, "b", 4, R))
    deriving.run(same)
    assert deriving.result(same, "op", "x")[3:] == [(R, 2), (A, 3), (CF, 2), (CT, 4), (R, 4)]
    deriving.rows(root, (1, "b", 2, R))  # both rows were retracted before
    with pytest.raises(BadData, match="row 0: op=1"):
        deriving.run(same)
