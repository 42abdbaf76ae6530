"""The graph of datasets: arrows, closures, order, circles."""

from __future__ import annotations

from dataclasses import dataclass, field

from odf_engine.identity.did import DatasetId
from odf_engine.metadata.model import DatasetKind
from odf_engine.workspace.dataset_graph import DatasetGraph


def did(name: str) -> DatasetId:
    return DatasetId(name.encode().ljust(32, b"\0"))


@dataclass
class Some:
    name: str
    inputs: list[DatasetId] = field(default_factory=list)

    @property
    def id(self) -> DatasetId:
        return did(self.name)

    @property
    def kind(self) -> DatasetKind:
        return DatasetKind.Derivative if self.inputs else DatasetKind.Root


def graph(**inputs: str) -> DatasetGraph:
    return DatasetGraph(
        [Some(name, [did(source) for source in text.split()]) for name, text in inputs.items()]
    )


def names(g: DatasetGraph, ids: object) -> list[str]:
    return [g.nodes[each].name for each in ids]  # type: ignore[attr-defined]


def test_diamond_has_all_edges_and_closures() -> None:
    g = graph(e="c d b", d="a", c="a", b="", a="")
    assert names(g, g.inputs(did("e"))) == ["c", "d", "b"]
    assert sorted(names(g, g.outputs(did("a")))) == ["c", "d"]
    assert g.upstream(did("e")) == {did(x) for x in "abcd"}
    assert g.upstream(did("a")) == set()
    assert g.downstream(did("a")) == {did(x) for x in "cde"}
    assert set(g.edges) == {(did(x), did(y)) for x, y in ["ac", "ad", "ce", "de", "be"]}


def test_order_has_inputs_first_and_then_names() -> None:
    g = graph(e="c d b", d="a", C="a", c="a", b="", a="")
    assert names(g, g.order()) == ["a", "b", "C", "c", "d", "e"]
    assert names(g, g.order([did("e"), did("a"), did("unknown")])) == ["a", "e"]


def test_missing_input_is_a_placeholder_node() -> None:
    g = graph(out="gone")
    node = g.nodes[did("gone")]
    assert node.missing and node.name == str(did("gone"))
    assert g.order() == [did("gone"), did("out")]
    assert g.downstream(did("gone")) == {did("out")}


def test_duplicate_input_is_one_edge() -> None:
    g = graph(out="a a", a="")
    assert g.edges == [(did("a"), did("out"))]
    assert g.order() == [did("a"), did("out")]


def test_a_cycle_does_not_hang() -> None:
    g = graph(a="", b="a d", c="b", d="c", e="d")
    assert names(g, g.order()) == ["a", "b", "c", "d", "e"]
    assert g.upstream(did("b")) == {did(x) for x in "acd"}
    assert graph(a="a").order() == [did("a")]


def test_a_long_chain_of_datasets_needs_no_recursion() -> None:
    g = DatasetGraph([Some("n0"), *(Some(f"n{i}", [did(f"n{i - 1}")]) for i in range(1, 5000))])
    assert len(g.upstream(did("n4999"))) == 4999
    assert g.order()[-1] == did("n4999")
