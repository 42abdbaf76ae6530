"""``odf help``: topics, the help of commands, the command reference and the man page."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from odf_tui.cli.shared.root import odf as root_command
from odf_tui.cli.shared.root import read_commands
from odf_tui.help import pages
from odf_tui.help.commands import describe_commands, reference_page
from odf_tui.help.man_page import man_page
from odf_tui.help.markdown import plain_text, quote_code, render_page
from odf_tui.help.pages import TOPICS
from tests.cli.conftest import call_odf

_FOLDER = Path(pages.__file__).parent
_PROJECT = _FOLDER.parents[1]


def test_help_lists_topics_and_commands_without_a_workspace(tmp_path: Path) -> None:
    ran = call_odf("help", cwd=tmp_path)
    assert ran.code == 0
    assert set(TOPICS) | set(read_commands()) <= set(ran.out.split())


@pytest.mark.parametrize("topic", TOPICS)
def test_a_page_is_plain_text_in_a_pipe(topic: str, tmp_path: Path) -> None:
    ran = call_odf("help", topic, cwd=tmp_path)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0] == pages.read_page(topic).splitlines()[0].removeprefix("# ")
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)
    assert "```" not in ran.out
    assert "\x1b" not in ran.out


def test_help_command_matches_the_help_option(tmp_path: Path) -> None:
    for words in (["pull"], ["repo", "add"], ["keys", "token", "new"]):
        help_of_command = call_odf(*words, "--help", cwd=tmp_path).out
        assert call_odf("help", *words, cwd=tmp_path).out.split()[5:] == help_of_command.split()[5:]


@pytest.mark.parametrize(
    ("words", "hint"),
    [(["sharin"], "sharing"), (["time"], "time-travel"), (["pul"], "pull"), (["repo", "ad"], "add")],
)
def test_an_unknown_topic_is_an_error_with_the_nearest_ones(
    words: list[str], hint: str, tmp_path: Path
) -> None:
    ran = call_odf("help", *words, cwd=tmp_path)
    assert ran.code == 2
    assert words[-1] in ran.err
    assert hint in ran.err.partition("hint:")[2]


def test_conflicting_help_options_are_rejected(tmp_path: Path) -> None:
    assert call_odf("help", "--man", "sql", cwd=tmp_path).code == 2
    assert call_odf("help", "sql", "-o", "x", cwd=tmp_path).code == 2
    assert call_odf("help", "--man", "-o", "no/x", cwd=tmp_path).code == 2


def test_help_does_not_load_the_engine(tmp_path: Path) -> None:
    script = (
        "import sys; sys.argv = ['odf', 'help', 'sharing']\n"
        "from odf_tui.main import main\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    unwanted = ("odf_engine.workspace", "odf_engine.chain", "pyarrow", "yaml", "pyspark", "textual")
    assert not [name for name in done.stderr.split() if name.startswith(unwanted)]


def test_the_reference_has_every_command_and_option(tmp_path: Path) -> None:
    text = call_odf("help", "commands", cwd=tmp_path).out
    names = [each.name for each in describe_commands(root_command)]
    assert {f"odf {name}" for name in read_commands()} <= set(names)
    assert "odf keys token new" in names
    lines = text.splitlines()
    assert not [name for name in names if name not in lines]
    assert "--reset-on-divergence" in text
    assert text == plain_text(render_page(quote_code(reference_page(root_command)), 80))


def test_inline_code_has_backquotes_without_colours() -> None:
    page = "# Use\n\nRun `odf list` or `odf\nshow`.\n\n```sh\necho `date`\n```\n\n| `a` |\n|---|\n| `b` |\n"
    text = plain_text(render_page(quote_code(page), 40))
    assert "Run `odf list` or" in text
    assert "  echo `date`\n" in text
    assert [line.strip() for line in text.splitlines()].count("`b`") == 1


def test_rendered_lines_fit_a_narrow_terminal() -> None:
    for topic in TOPICS:
        lines = render_page(pages.read_page(topic), 50)
        assert max(len("".join(text for text, _ in line)) for line in lines) <= 50


def test_the_committed_man_page_is_current(tmp_path: Path) -> None:
    file = tmp_path / "odf.1"
    assert call_odf("help", "--man", "-o", str(file), cwd=tmp_path).code == 0
    assert file.read_text() == (_FOLDER / "odf.1").read_text(), "odf help --man -o odf_tui/help/odf.1"
    assert call_odf("help", "--man", cwd=tmp_path).out == file.read_text()


def test_the_man_page_has_every_option() -> None:
    text = man_page(root_command).replace(r"\-", "-")
    for each in describe_commands(root_command):
        assert f".SS {each.name}\n" in text
        assert all(names in text for names, _ in each.options)
    assert all(f".SH {title}" in text for title in ("EXIT STATUS", "ENVIRONMENT", "FILES", "EXAMPLES"))


def test_the_man_page_renders_without_warnings() -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(
        ["groff", "-man", "-ww", "-z", "-Tutf8", str(_FOLDER / "odf.1")], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_wheel_installs_the_man_page() -> None:
    build = tomllib.loads((_PROJECT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    shared = build["targets"]["wheel"]["shared-data"]
    assert shared == {"odf_tui/help/odf.1": "share/man/man1/odf.1"}
    assert (_PROJECT / "odf_tui/help/odf.1").is_file()


def test_a_description_has_usage_options_and_example() -> None:
    @click.command("go", epilog="Example:  odf go far")
    @click.argument("where")
    @click.option("--fast", is_flag=True, help="Do not rest.")
    def go(where: str, fast: bool) -> None:
        """Go somewhere_else.

        \b
        a  *fixed*
        b  paragraph
        """

    root = click.Group("odf", commands=[go])
    (found,) = describe_commands(root)
    assert (found.name, found.usage, found.example) == ("odf go", "[OPTIONS] WHERE", "odf go far")
    assert found.options == [("--fast", "Do not rest.")]
    assert found.summary == "Go somewhere_else."
    page = plain_text(render_page(reference_page(root), 60))
    assert "Go somewhere_else." in page
    assert "  a  *fixed*\n  b  paragraph\n" in page


def test_shell_completes_topics_and_commands(tmp_path: Path) -> None:
    words = {"COMP_WORDS": "odf help ti", "COMP_CWORD": "2", "_ODF_COMPLETE": "bash_complete"}
    assert call_odf(cwd=tmp_path, **words).out.split() == ["plain,time-travel"]
