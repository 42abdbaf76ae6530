"""Layout of graphs: labels do not overlap, edges can be followed, the drawing is small and quick."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from odf_tui.text.graph_layout import Layout, LineSegments, draw_layout, lay_out, measure_columns, plan_layout
from tests.call_count import max_calls

_ARMS = {
    "─": "lr", "│": "ud", "╮": "ld", "╭": "rd", "╯": "lu", "╰": "ru",
    "┬": "lrd", "┴": "lru", "┤": "lud", "├": "rud", "┼": "lrud",
}  # fmt: skip
_STEPS = {"l": (-1, 0), "r": (1, 0), "u": (0, -1), "d": (0, 1)}


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Generate nodes with widths, and edges from earlier to later nodes."""
    count = draw(st.integers(1, 24))
    widths = {f"n{index}": draw(st.integers(3, 9)) for index in range(count)}
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = draw(st.lists(pairs.filter(lambda pair: pair[0] < pair[1]), max_size=2 * count))
    return widths, [(f"n{source}", f"n{target}") for source, target in edges]


def drawn(found: Layout, widths: dict[str, int]) -> list[str]:
    """Return the lines with labels inserted."""
    lines = [list(line) for line in found.lines]
    for node, place in found.positions.items():
        label = node[: widths[node]].ljust(widths[node], "=")
        for offset, letter in enumerate(label):
            lines[place.y][place.x + offset] = letter
    return ["".join(line).rstrip() for line in lines]


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_nothing_overlaps(graph: tuple[dict[str, int], list[tuple[str, str]]]) -> None:
    widths, edges = graph
    found = lay_out(widths, edges)
    taken: dict[tuple[int, int], str] = {}
    for node, place in found.positions.items():
        for x in range(place.x, place.x + widths[node]):
            assert (x, place.y) not in taken
            taken[x, place.y] = node
            assert found.lines[place.y][x] == " "
    assert set(found.positions) == set(widths)
    assert len({len(line) for line in found.lines}) <= 1


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_every_edge_leads_from_its_source_to_its_target(
    graph: tuple[dict[str, int], list[tuple[str, str]]],
) -> None:
    widths, edges = graph
    found = lay_out(widths, edges)
    assert set(found.paths) == set(edges)
    for (source, target), cells in found.paths.items():
        start, end = found.positions[source], found.positions[target]
        assert start.x < end.x
        first = (start.x + widths[source] + 1, start.y)
        last = (end.x - 1, end.y)
        assert first in cells
        assert last in cells
        assert _reaches(found, cells, first, last), "\n".join(drawn(found, widths))


def _reaches(found: Layout, cells: frozenset, first: tuple[int, int], last: tuple[int, int]) -> bool:
    """Return whether the glyphs of cells lead from one cell to another. Bridges are crossed straight."""
    todo, seen = [(first, "r")], set()
    while todo:
        cell, heading = todo.pop()
        if cell == last:
            return True
        if (cell, heading) in seen or cell not in cells:
            continue
        seen.add((cell, heading))
        arms = _ARMS.get(found.lines[cell[1]][cell[0]], "")
        if arms == "ud" and heading in "lr":
            arms = "lr"  # a bridge: the horizontal line continues behind it
        for arm in arms:
            x, y = _STEPS[arm]
            todo.append(((cell[0] + x, cell[1] + y), arm))
    return False


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_the_edges_can_be_read_from_the_drawing(
    graph: tuple[dict[str, int], list[tuple[str, str]]],
) -> None:
    widths, edges = graph
    found = lay_out(widths, edges)
    assert _read_edges(found, widths) == set(edges), "\n".join(drawn(found, widths))


def _read_edges(found: Layout, widths: dict[str, int]) -> set[tuple[str, str]]:
    """Return the edges that a reader finds: from each label to the right, by every way but to the left.

    Only the drawn characters are used, and the positions of labels.
    """
    entries = {(place.x, place.y): node for node, place in found.positions.items()}
    edges: set[tuple[str, str]] = set()
    for source, place in found.positions.items():
        todo, seen = [((place.x + widths[source] + 1, place.y), "r")], set()
        while todo:
            (x, y), heading = todo.pop()
            if target := entries.get((x, y)):
                edges.add((source, target))
            if ((x, y), heading) in seen or not (0 <= x < found.width and 0 <= y < found.height):
                continue
            seen.add(((x, y), heading))
            arms = _ARMS.get(found.lines[y][x], "")
            if arms == "ud" and heading == "r":
                arms = "r"  # a bridge: the horizontal line continues behind it
            back = {"r": "l", "u": "d", "d": "u"}[heading]
            if arms != "r" and back not in arms:
                continue  # the glyph does not meet the line
            todo += [
                ((x + _STEPS[arm][0], y + _STEPS[arm][1]), arm) for arm in arms if arm not in ("l", back)
            ]
    return edges


@settings(max_examples=60, deadline=None)
@given(graphs(), st.integers(1, 20))
def test_extra_cells_of_labels_are_aligned(
    graph: tuple[dict[str, int], list[tuple[str, str]]], extra: int
) -> None:
    widths, edges = graph
    plans = plan_layout(widths, edges)
    plain, wide = draw_layout(plans, widths), draw_layout(plans, widths, extra)
    parts = [measure_columns([plan], widths) for plan in plans]
    assert plain.width == max(part.width_with(0) for part in parts)
    assert wide.width == max(part.width_with(extra) for part in parts)
    assert {node: place.y for node, place in wide.positions.items()} == {
        node: place.y for node, place in plain.positions.items()
    }
    for node, place in wide.positions.items():
        assert place.width >= widths[node] + extra
        assert not wide.line(place.y)[place.x : place.x + place.width].strip()


@settings(max_examples=100, deadline=None)
@given(graphs(), st.integers(1, 20))
def test_columns_of_all_parts_are_aligned(
    graph: tuple[dict[str, int], list[tuple[str, str]]], extra: int
) -> None:
    widths, edges = graph
    plans = plan_layout(widths, edges)
    aligned = draw_layout(plans, widths, extra, aligned=True)
    columns = measure_columns(plans, widths)
    assert aligned.width == columns.width_with(extra)
    for place in aligned.positions.values():
        assert place.x == columns.starts[place.layer] + place.layer * extra
        assert place.width == columns.widths[place.layer] + extra
    assert _read_edges(aligned, {node: place.width for node, place in aligned.positions.items()}) == set(
        edges
    )


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_heavy_lines_are_where_their_edges_are(graph: tuple[dict[str, int], list[tuple[str, str]]]) -> None:
    widths, edges = graph
    found = lay_out(widths, edges)
    for edge, cells in found.paths.items():
        strokes = LineSegments(found.routes[edge])
        heavy = {(x, y) for y in range(found.height) for x in found.heavy_cells(y, strokes)}
        assert heavy <= cells
        assert all(found.line(y)[x] == "│" for x, y in cells - heavy)  # at bridges the edge is hidden


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_a_line_enters_downstream_datasets_only(
    graph: tuple[dict[str, int], list[tuple[str, str]]],
) -> None:
    widths, edges = graph
    found = lay_out(widths, edges)
    fed = {target for _, target in edges}
    for node, place in found.positions.items():
        left = found.lines[place.y][place.x - 1] if place.x else " "
        assert (left != " ") == (node in fed)


@settings(max_examples=60, deadline=None)
@given(graphs(), st.randoms())
def test_the_drawing_depends_on_nothing_but_the_graph(
    graph: tuple[dict[str, int], list[tuple[str, str]]], random: object
) -> None:
    widths, edges = graph
    shuffled = list(edges)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = lay_out(widths, edges), lay_out(widths, shuffled)
    assert (one.lines, one.positions, one.paths) == (other.lines, other.positions, other.paths)


def test_cycles_loops_and_unknown_nodes_are_skipped() -> None:
    found = lay_out({"a": 1, "b": 1, "c": 1}, [("a", "b"), ("b", "c"), ("c", "a"), ("b", "b"), ("x", "a")])
    assert set(found.paths) == {("a", "b"), ("b", "c")}


def test_empty_graph_has_no_lines() -> None:
    found = lay_out({}, [])
    assert (found.width, found.height, found.lines) == (0, 0, ())


def test_single_datasets_are_close_together_below_the_others() -> None:
    widths = {"alone": 5, "a": 1, "other": 5, "b": 1}
    assert drawn(lay_out(widths, [("a", "b")]), widths) == ["a ──b", "", "alone", "other"]


def test_a_fork_does_not_join_the_line_of_another_source() -> None:
    """The graph of the demo: clinic visits are no input of the air by day."""
    widths = {"air": 3, "visits": 6, "day": 3, "both": 4}
    assert drawn(lay_out(widths, [("air", "day"), ("air", "both"), ("visits", "both")]), widths) == [
        "air ────┬───day",
        "        ╰─╮",
        "visits ───┴─both",
    ]


def test_targets_with_the_same_sources_share_a_track() -> None:
    widths = dict.fromkeys("abxy", 1)
    edges = [(source, target) for source in "ab" for target in "xy"]
    assert len(drawn(lay_out(widths, edges), widths)) == 3


def test_nested_joins_are_drawn_in_three_lines() -> None:
    widths = dict.fromkeys(["on.raw", "bc.raw", "on", "bc", "all", "weather", "both"], 7)
    edges = [
        ("on.raw", "on"),
        ("bc.raw", "bc"),
        ("on", "all"),
        ("bc", "all"),
        ("all", "both"),
        ("weather", "both"),
    ]
    assert drawn(lay_out(widths, edges), widths) == [
        "on.raw= ──on===== ─╮",
        "bc.raw= ──bc===== ─┴─all==== ─╮",
        "                     weather ─┴─both===",
    ]


def test_a_graph_of_32_datasets_is_small_and_quick() -> None:
    text = """
    covid.on.raw>covid.on covid.bc.raw>covid.bc covid.ab.raw>covid.ab covid.qc.raw>covid.qc
    covid.on>covid.canada covid.bc>covid.canada covid.ab>covid.canada covid.qc>covid.canada
    covid.canada>covid.daily covid.daily>covid.weather weather.yvr>weather.hourly weather.yyz>weather.hourly
    weather.hourly>covid.weather city.parking>city.activity city.permits>city.activity
    city.activity>covid.weather cex.eth-usd>market.ohlcv cex.btc-usd>market.ohlcv spy.quotes>market.ohlcv
    market.ohlcv>portfolio market.ohlcv>portfolio.usd ens.events>acct.names acct.names>portfolio
    rocketpool.reth>staking.rates lido.steth>staking.rates staking.rates>portfolio
    acct.transfers>acct.balances acct.tokens>acct.balances acct.balances>portfolio portfolio>portfolio.usd
    portfolio.usd>portfolio.report
    """
    edges = [(source, target) for source, _, target in (pair.partition(">") for pair in text.split())]
    widths = {node: len(node) + 2 for edge in edges for node in edge}  # a glyph and a blank before the name
    assert len(widths) == 32
    with max_calls(20_000):
        found = lay_out(widths, edges)
    assert found.width <= 95
    assert found.height <= 20
    with_states = lay_out({node: width + 2 for node, width in widths.items()}, edges)
    assert with_states.width <= 103
