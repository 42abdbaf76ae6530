"""Verification of datasets that nobody has touched, for each aggregate function that a query may use."""

from __future__ import annotations

import re
from typing import Final

import pytest

from odf_engine.base.progress import Reporter
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.derive.verify.integrity import verify
from odf_engine.derive.verify.replay import Replay
from odf_engine.engines.contract import QueryInput
from odf_engine.errors import OdfError
from odf_engine.metadata.model import DatasetVocabulary, Sql, SqlQueryStep
from odf_engine.spark.stateful import stateful_query
from odf_engine.sql.expression_lineage import AGGREGATES
from tests.derive.deriving import DATA, Deriving

REFUSED: Final = frozenset({
    "any_value", "approx_top_k", "array_agg", "collect_list", "collect_set", "first", "first_value",
    "grouping", "grouping_id", "histogram_numeric", "kll_sketch_agg_bigint", "kll_sketch_agg_double",
    "kll_sketch_agg_float", "last", "last_value", "listagg", "mode", "string_agg",
})  # fmt: skip
"""Not deterministic, without a logical hash, or only for grouping sets."""
_CONDITIONS: Final = ("any", "bool_and", "bool_or", "count_if", "every", "some")
_CALLS: Final = {
    **{name: f"{name}(x > 1)" for name in _CONDITIONS},
    "approx_percentile": "approx_percentile(x, 0.5)",
    "approx_top_k": "approx_top_k(x, 2)",
    "bitmap_and_agg": "bitmap_and_agg(unhex('10'))",
    "bitmap_construct_agg": "bitmap_construct_agg(bitmap_bit_position(x))",
    "bitmap_or_agg": "bitmap_or_agg(unhex('10'))",
    "count_min_sketch": "count_min_sketch(x, 0.5D, 0.5D, 1)",
    "grouping_id": "grouping_id()",
    "histogram_numeric": "histogram_numeric(x, 3)",
    "hll_union_agg": "hll_union_agg(CAST(NULL AS BINARY))",
    "percentile": "percentile(x, 0.5)",
    "percentile_approx": "percentile_approx(x, 0.5)",
    "percentile_cont": "percentile_cont(0.5) WITHIN GROUP (ORDER BY x)",
    "percentile_disc": "percentile_disc(0.5) WITHIN GROUP (ORDER BY x)",
    "schema_of_variant_agg": "schema_of_variant_agg(parse_json(CAST(x AS STRING)))",
    "theta_union_agg": "theta_union_agg(CAST(NULL AS BINARY))",
}
_PAIRS: Final = re.compile(r"regr_.*|corr|covar_.*|max_by|min_by")
COMPOSED: Final = (
    "count_if(x > 1) + sum(x)", "count_if(x > 1) FILTER (WHERE x > 0)",
    "sum(x) FILTER (WHERE x + 1 BETWEEN 2 AND 3)", "sum(nullif(x + 1, 2))",
    "sum(size(filter(array(x), v -> v > 1)))", "stddev(1)", "count(DISTINCT 1)",
)  # fmt: skip
GROUPINGS: Final = (
    ("window.start AS event_time", "window(event_time, '1 day')"),
    ("max(event_time) AS event_time, city", "city"),
)


def call(name: str) -> str:
    pair = f"{name}(x, x + 1)" if _PAIRS.fullmatch(name) else f"{name}(x)"
    return name if "(" in name else _CALLS.get(name, pair)


def verify_untouched(deriving: Deriving, *names: str) -> None:
    root = deriving.root()
    calls = ", ".join(f"{call(name)} AS n{at}" for at, name in enumerate(names))
    made = [
        deriving.derivative(f"SELECT {keys}, {calls} FROM input GROUP BY {by}", name=f"by-{at}")
        for at, (keys, by) in enumerate(GROUPINGS)
    ]
    deriving.rows(root, (1, "a", 1), (1, "b", 2), (1.5, "a", 3))
    deriving.rows(root, (3, "a", 5))
    for entry in made:
        deriving.run(entry)
    for entry in made:
        replay = Replay(deriving.workspace, entry, deriving.engine, Reporter())
        report = verify(entry.dataset, Reporter(), replay=replay)
        assert (report.findings, report.unchecked, report.transforms) == ([], [], 1)


def test_condition_that_spark_names_by_number_is_verified(deriving: Deriving) -> None:
    verify_untouched(deriving, "count_if")


_ALLOWED: Final = [*sorted(AGGREGATES - REFUSED), *COMPOSED]


@pytest.mark.complete
@pytest.mark.parametrize("part", range(5))
def test_untouched_dataset_is_valid(deriving: Deriving, part: int) -> None:
    verify_untouched(deriving, *_ALLOWED[part::5])


@pytest.mark.complete
def test_other_aggregates_are_refused(deriving: Deriving) -> None:
    vocab = DatasetVocabulary("offset", "op", "system_time", "event_time")
    given = QueryInput("input", slice_schema(DATA, vocab), vocab)
    for name in sorted(REFUSED):
        for keys, by in GROUPINGS:
            query = f"SELECT {keys}, {call(name)} AS n FROM input GROUP BY {by}"
            with pytest.raises(OdfError):
                deriving.engine.validate(
                    Sql(engine="spark", queries=[SqlQueryStep(query=query)]), [given], vocab, None
                )


def test_earlier_fingerprint_of_the_query_is_no_finding(
    deriving: Deriving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions stored a fingerprint that no replay repeats."""
    root = deriving.root()
    made = deriving.derivative(
        "SELECT max(event_time) AS event_time, city, count_if(x > 1) AS n FROM input GROUP BY city"
    )
    deriving.rows(root, (1, "a", 1), (2, "b", 2))
    with monkeypatch.context() as patch:
        patch.setattr(stateful_query, "_COMMON_EXPRESSION", re.compile("never"))
        deriving.run(made)
    deriving.rows(root, (3, "a", 2))
    deriving.run(made)
    known = deriving.workspace.index
    for _ in range(2):  # a transaction with a doubt is not remembered
        replay = Replay(deriving.workspace, made, deriving.engine, Reporter(), known)
        report = verify(made.dataset, Reporter(), replay=replay)
        assert (report.findings, report.transforms) == ([], 2)
        assert {each.kind for each in report.unchecked} == {"checkpoint-other"}


def test_aggregates_of_constants_have_a_value_in_each_group(deriving: Deriving) -> None:
    root = deriving.root()
    columns = "stddev(1) AS s, count(DISTINCT 1) AS d, percentile(7, 0.5) AS p, count(*) AS n"
    made = [
        deriving.derivative(f"SELECT {keys}, {columns} FROM input GROUP BY {by}", name=f"by-{at}")
        for at, (keys, by) in enumerate(GROUPINGS)
    ]
    deriving.rows(root, (1, "a", 1), (1, "b", 2), (1.5, "a", 3))
    deriving.rows(root, (3, "a", 5))
    for entry in made:
        deriving.run(entry)
    assert deriving.result(made[0], "s", "d", "p", "n") == [(0.0, 1, 7.0, 3)]
    assert set(deriving.result(made[1], "city", "d", "p", "n")) == {
        ("b", 1, 7.0, 1), ("a", 1, 7.0, 2), ("a", 1, 7.0, 3),
    }  # fmt: skip
