"""What a definition may hold, and queries in the form that chains hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from odf_engine.chain.normal_form import check_snapshot, normalize_event, normalize_transform
from odf_engine.errors import InvalidManifest, InvalidQuery
from odf_engine.metadata.model import (
    AddData,
    AddPushSource,
    Append,
    DatasetKind,
    DatasetSnapshot,
    DisablePollingSource,
    DisablePushSource,
    ExecuteTransform,
    Parquet,
    SetInfo,
    SetTransform,
    SetVocab,
    Sql,
    SqlQueryStep,
)

if TYPE_CHECKING:
    from tests.chain.conftest import Chains

PUSH = AddPushSource(source_name="p", read=Parquet(), merge=Append())


def snapshot(kind: DatasetKind, *events: Any) -> DatasetSnapshot:
    return DatasetSnapshot("cities", kind, list(events))


def test_valid_definitions_are_accepted(chains: Chains) -> None:
    check_snapshot(snapshot(DatasetKind.Root))
    check_snapshot(snapshot(DatasetKind.Root, chains.polling(), SetInfo("x"), SetVocab(), chains.schema()))
    check_snapshot(snapshot(DatasetKind.Root, PUSH))
    check_snapshot(snapshot(DatasetKind.Derivative, chains.transform(chains.ids[1]), SetInfo("x")))


def test_definition_with_wrong_event_is_rejected(chains: Chains) -> None:
    root, derivative = DatasetKind.Root, DatasetKind.Derivative
    transform = chains.transform(chains.ids[1])
    for kind, events, word in [
        (root, [chains.root], "Seed"),
        (root, [transform], "Derivative"),
        (derivative, [chains.polling()], "Root"),
        (derivative, [PUSH], "Root"),
        (root, [AddData()], "AddData"),
        (derivative, [ExecuteTransform([])], "ExecuteTransform"),
        (root, [DisablePollingSource()], "DisablePollingSource"),
        (root, [DisablePushSource("p")], "DisablePushSource"),
        (root, [PUSH, PUSH], "'p'"),
    ]:
        with pytest.raises(InvalidManifest, match=word) as caught:
            check_snapshot(snapshot(kind, *events))
        assert caught.value.where == "cities"


def test_a_query_becomes_a_list_of_one() -> None:
    normal = normalize_transform(Sql("spark", version="4", query="SELECT 1"))
    assert normal == Sql("spark", version="4", queries=[SqlQueryStep(query="SELECT 1")])
    assert normalize_transform(normal) == normal


def test_the_result_comes_last() -> None:
    result, step = SqlQueryStep(query="SELECT * FROM a"), SqlQueryStep(alias="a", query="SELECT 1")
    assert normalize_transform(Sql("spark", queries=[result, step])).queries == [step, result]


@pytest.mark.parametrize(
    "wrong",
    [
        Sql("spark"),
        Sql("spark", queries=[]),
        Sql("spark", query="1", queries=[SqlQueryStep(query="1")]),
        Sql("spark", queries=[SqlQueryStep(query="1"), SqlQueryStep(query="2")]),
        Sql("spark", queries=[SqlQueryStep(alias="a", query="1")]),
        Sql("spark", queries=[SqlQueryStep(alias="", query="1"), SqlQueryStep(query="2")]),
        Sql("spark", queries=[SqlQueryStep(alias="a", query="1")] * 2 + [SqlQueryStep(query="2")]),
    ],
)
def test_query_without_exactly_one_result_is_rejected(wrong: Sql) -> None:
    with pytest.raises(InvalidQuery):
        normalize_transform(wrong)


def test_queries_in_events_are_normalised(chains: Chains) -> None:
    raw, normal = Sql("spark", query="SELECT 1"), Sql("spark", queries=[SqlQueryStep(query="SELECT 1")])
    event = normalize_event(chains.polling(preprocess=raw))
    assert event == chains.polling(preprocess=normal)
    assert normalize_event(SetTransform([], raw)) == SetTransform([], normal)
    assert normalize_event(PUSH) is PUSH
    assert normalize_event(SetInfo("x")) == SetInfo("x")
