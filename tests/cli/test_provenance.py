"""``odf provenance``: a trace as a tree, JSON and Graphviz; invalid arguments."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from unittest import mock

import click
import msgspec
import pytest

from odf_engine.api.workspace import open as open_workspace
from odf_engine.derive.provenance.model import ProducingTransaction, RowSource, TracedInput, TraceStep
from odf_engine.metadata.model import Snapshot, Url
from odf_tui.cli.provenance import print_trace
from odf_tui.cli.shared.options import Options
from odf_tui.text.graphviz import trace_to_dot
from odf_tui.text.row_trace import rows_text
from tests.cli.conftest import Odf
from tests.provenance.test_trace_roots import Rooted, polling


def test_trace_is_printed_as_json_tree_and_graphviz(odf: Odf) -> None:
    ran = odf("provenance", "port-haven.air-by-day", "3..4", "--json")
    step = msgspec.convert(ran.json, TraceStep)
    assert (step.kind, step.name, step.runs, step.rows) == (
        "derivative",
        "port-haven.air-by-day",
        [(3, 4)],
        2,
    )
    (feed,) = step.feeds
    assert (feed.alias, feed.name) == ("readings", "port-haven.air-readings")
    assert feed.step is not None and feed.step.sources[0].place == "file:sources/air-readings.csv"

    tree = odf("provenance", "port-haven.air-by-day", "3", "-c", "PM25", "--depth", "1", "--check")
    lines = tree.out.splitlines()
    assert tree.code == 0 and lines[0] == "port-haven.air-by-day, row 3"
    assert lines[1].startswith("  3: event_time=2024-03-01T00:00:00Z, station=ph-04, pm25=")
    assert any(line.startswith("  computed by spark ") for line in lines)
    assert any(
        line.startswith("  port-haven.air-readings (as readings), rows ") and "pm25 (aggregation)" in line
        for line in lines
    )
    assert "file:" not in tree.out
    assert [line for line in lines if "checked" in line] == [
        "  checked: yes: with these rows alone, the query returns the same rows",
        "  checked: yes: without these rows, the query no longer returns the traced rows",
    ]

    readings = odf("provenance", "port-haven.air-readings", "0..2").out.splitlines()
    assert [line[:5] for line in readings[1:4]] == ["  2: ", "  1: ", "  0: "]  # newest first
    assert "    row 0: air-readings.csv, line 2: ph-01,2024-03-01T00:00:00Z,4.4,18.6,PMS-5003" in readings

    dot = odf("provenance", "port-haven.air-readings", "0..900", "--dot").out
    assert dot.startswith("digraph {") and 'label="port-haven.air-readings\\nrows 0..900"' in dot
    assert 'shape=note, label="file:sources/air-readings.csv' in dot


def test_the_source_file_opens_at_the_line(odf: Odf, tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    editor = tmp_path / "vi"
    editor.write_text(f'#!/bin/sh\necho "$@" > {opened}\n')
    editor.chmod(0o755)
    with mock.patch.dict("os.environ", {"EDITOR": str(editor), "VISUAL": ""}):
        assert odf("provenance", "port-haven.air-readings", "0..2", "--open").code == 0
        line, path = opened.read_text().strip().split(maxsplit=1)
        assert (line, Path(path).name) == ("+4", "air-readings.csv")
        ran = odf("provenance", "port-haven.air-by-day", "0", "--depth", "1", "--open")
    assert ran.code == 1 and "no source file with these rows is known" in ran.err


def test_a_traced_null_is_shown_with_its_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rooted = Rooted(tmp_path / "x")
    root = rooted.root()
    rooted.commit(root, [polling(Url("https://a.example/x"), Snapshot(["city"]))])
    rooted.rows(root, (1, "a", None))
    print_trace(open_workspace(tmp_path / "x"), rooted.trace(root, (0, 0)), column="X")
    assert capsys.readouterr().out.splitlines()[1] == "  0: city=a, x=∅"


def test_invalid_rows_columns_and_options_are_rejected(odf: Odf) -> None:
    name = "port-haven.air-readings"
    for arguments, said in (
        ((name, "99999"), "has no row 99999: its offsets are 0 to "),
        ((name, "0..99999"), "has no row 99999"),
        ((name, "5..2"), "the first is after the last"),
        ((name, "x"), "invalid offset 'x'"),
        ((name, "9" * 30), "invalid offset"),
        ((name, "0", "-c", "pm52"), "did you mean pm25?"),
        ((name, "0", "--dot", "--json"), "--json and --dot exclude each other"),
        ((name, "0", "--depth", "0"), "0"),
    ):
        ran = odf("provenance", *arguments)
        assert (ran.code, ran.out) == (2, "") and said in ran.err
    ran = odf("provenance", "port-haven.air-reading", "0")
    assert ran.code == 1 and "did you mean" in ran.err


TREE = TraceStep(
    "did:odf:1", "a", "derivative", [(0, 0)], 1,
    made=[ProducingTransaction(
        "f16" + "0" * 64, at, "2024-01-01T00:00:00Z", [(0, 0)], [("", "SELECT\n 1")], "spark 1"
    )
          for at in range(6)],
    exact=False, reason="who knows",
    feeds=[TracedInput("x", "did:odf:2", "b\x1b[2J", [(at * 2, at * 2) for at in range(9)], 9, step=TraceStep(
        "did:odf:2", "b\x1b[2J", "root", [(0, 0)], 1, earlier=[(3, 4)],
        sources=[RowSource(
            "f16" + "0" * 64, "push", 'in"\n', "", "2024-01-01T00:00:00Z", "", ["read"], [(0, 0)]
        )
                 for _ in range(30)],
    )), TracedInput("y", "did:odf:3", "y", [(1, 2)], 2, missing=True, step=TraceStep(
        "did:odf:3", "y", "root", [(1, 2)], 2, problem="pull it"))],
)  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(odf: Odf, stream: io.StringIO) -> str:
    folder = Path(odf("path", "port-haven.stations").out.strip())
    with (
        mock.patch.object(sys, "stdout", stream),
        click.Context(click.Command("x"), obj=Options(no_color=True)),
        mock.patch.dict("os.environ", {"COLUMNS": "80"}),
    ):
        print_trace(open_workspace(folder.parents[2]), TREE)
    return stream.getvalue()


def test_tree_escapes_text_and_abbreviates_long_lists(odf: Odf) -> None:
    """Text of datasets cannot steer the terminal; what is much is cut short; branches that end say why."""
    plain, rich = drawn(odf, io.StringIO()), drawn(odf, Terminal())
    for text in (plain, rich):
        assert "\x1b[2J" not in text
        for said in (
            "who knows", "and 2 more transactions", "rows 0, 2, 4, 6, 8, 10, …16 (9)",
            "not traced further: pull it", "replaces the earlier rows 3..4", "and 22 more blocks",
        ):  # fmt: skip
            assert said in text
    assert "└── " in rich and "└── " not in plain
    assert max(map(len, rich.splitlines())) <= 80
    document = trace_to_dot(TREE)
    assert "\x1b" not in document and "10 more sources" in document and "style=dashed" in document
    assert rows_text([(7, 7)], 1) == "row 7"
