"""The interactive SQL shell and `odf export`, without Spark."""

from __future__ import annotations

import os
import pty
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import odf_engine as odf
from odf_engine.api.readers.query_history import load_history
from odf_engine.jobs.query import Query
from odf_engine.worker.protocol import Failure, Job, JobState
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.shared.sql_shell import SqlShell, split_statements
from tests.cli.conftest import call_odf
from tests.sync.builders import make_root
from tests.waiting import read_until, wait_until_asleep


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Workspace.init(tmp_path)
    make_root(made, "my.numbers", slices=1)
    return made


@pytest.mark.parametrize(
    ("text", "queries", "rest"),
    [
        ("select 1;", ["select 1"], ""),
        ("select ';' -- a;b\n, `x;y`; select", ["select ';' -- a;b\n, `x;y`"], " select"),
        ("select 1; select 2;", ["select 1", "select 2"], ""),
        (";;", [], ""),
        ("select 'a", [], "select 'a"),
    ],
)
def test_queries_end_with_a_semicolon(text: str, queries: list[str], rest: str) -> None:
    assert split_statements(text) == (queries, rest)


def test_shell_supports_commands_completion_and_interrupt(workspace: Workspace) -> None:
    """Commands, completion and editing, as a user meets them."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(workspace.folder)
        environment = os.environ | {"TERM": "xterm", "NO_COLOR": "1"}
        os.execve(sys.executable, [sys.executable, "-m", "odf_tui", "sql"], environment)
    try:
        read_until(terminal, lambda shown: b"odf> " in shown)
        assert re.search(r"my\.numbers +Root +3", say(terminal, "\\d\n", "odf> "))
        assert "city" in say(terminal, "\\d my.numbers\n", "odf> ")
        say(terminal, "select * from my.nu\t", "my.numbers")
        say(terminal, " where ci\t", "city")
        assert "  -> " in say(terminal, "\n", "  -> ")
        wait_until_asleep(pid)
        say(terminal, "\x03", "odf> ")  # discards both lines
        assert "timing is on" in say(terminal, "\\timing\n", "odf> ")
        assert "unknown command" in say(terminal, "\\nothing\n", "odf> ")
        assert "dataset 'no' not found" in say(terminal, "\\d no\n", "odf> ")
        os.write(terminal, b"\x04")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        os.close(terminal)


def say(terminal: int, text: str, until: str) -> str:
    """Type a text; return what the terminal shows until the expected text."""
    os.write(terminal, text.encode())
    shown = read_until(terminal, lambda shown: until.encode() in shown.removeprefix(text.encode()) and shown)
    return shown.decode(errors="replace")


def test_queries_keep_the_settings_and_the_shell_survives_failures(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted: list[Query] = []

    def follow(_: Workspace, requests: list[tuple[Query, str]]) -> list[Job]:
        submitted.extend(request for request, _ in requests)
        error = Failure("no such column", hint="correct it")
        return [Job("1", "sql", "", "", JobState.failed, "2024-03-01T00:00:00Z", error=error)]

    monkeypatch.setattr("odf_tui.cli.shared.query_rows.follow", follow)
    shell = SqlShell(odf.open(workspace.folder), Query("", limit=7, as_at="2024-03-01T00:00:00Z"))
    typing = typed(["select x", "from my.numbers; select", "2;", "quit"])
    monkeypatch.setattr("builtins.input", typing)
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    import click

    with click.Context(click.Command("sql")):
        shell.run()
    assert [query.sql for query in submitted] == ["select x\nfrom my.numbers", "select\n2"]
    assert {(query.limit, query.as_at) for query in submitted} == {(7, "2024-03-01T00:00:00Z")}
    assert capsys.readouterr().err.count("no such column") == 2
    assert load_history(workspace.odf) == ["select x\nfrom my.numbers", "select\n2"]


def typed(lines: list[str]) -> Callable[[str], str]:
    return lambda prompt: lines.pop(0)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("select * from my.", ["my.numbers"]),
        ("select cit", []),  # no table yet
        ("select 1 from my.numbers where CI", ["city"]),
        ("select 1 from my.numbers n where n.ci", ["n.city"]),
        ("\\d MY", ["my.numbers"]),
    ],
)
def test_completion_proposes_datasets_and_columns(workspace: Workspace, line: str, found: list[str]) -> None:
    begin = max(line.rfind(" "), 0) + 1
    proposed = SqlShell(odf.open(workspace.folder), Query("")).propose(line, begin, len(line))
    assert [each for each in proposed if not each.endswith("(")] == found


def test_the_shell_requires_a_terminal_and_no_format(workspace: Workspace) -> None:
    assert "odf sql -" in call_odf("sql", cwd=workspace.folder).err
    for option in (["--json"], ["--csv"], ["-o", "x.csv"], ["--proof", "x"]):
        assert "missing QUERY" in call_odf("sql", *option, cwd=workspace.folder).err


def test_export_writes_csv_and_requires_force_to_overwrite(workspace: Workspace) -> None:
    def export(*arguments: str) -> Any:
        return call_odf("export", "my.numbers", *arguments, cwd=workspace.folder)

    ran = export("rows.csv")
    assert (ran.code, "3 rows" in ran.err) == (0, True), ran.err
    lines = (workspace.folder / "rows.csv").read_text().splitlines()
    assert lines[0].startswith("offset,op,system_time,") and len(lines) == 4
    assert "--force" in export("rows.csv").err
    assert export("rows.csv", "--force", "--no-system", "-q").err == ""
    assert "system_time" not in (workspace.folder / "rows.csv").read_text()
    assert "unknown file format" in export("rows.xls").err
    assert call_odf("export", "no.such", "x.csv", cwd=workspace.folder).code == 1
    call_odf("worker", "stop", cwd=workspace.folder)
