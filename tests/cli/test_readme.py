"""Pastes the tour of the README into a shell in a terminal, command by command."""

from __future__ import annotations

import os
import pty
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from odf_engine.spark.runtime.class_data_archive import archive_folder
from tests.cli.test_help_pages import split_commands
from tests.waiting import read_until

_README = Path(__file__).parents[2] / "README.md"
_EXIT_CODE = re.compile(r"<<(\d+)>>")
_PROMPT_AFTER_SCREEN = re.compile(r"\x1b\[\?1049l.*\) $", re.DOTALL)


class Terminal:
    """A shell in a terminal with 80 columns."""

    def __init__(self, folder: Path) -> None:
        self.process, self._file = pty.fork()
        if not self.process:
            os.chdir(folder)
            cache = str(archive_folder().parent.parent)  # the class-data archive, for faster starts of Spark
            environment = {**os.environ, "HOME": str(folder), "XDG_CACHE_HOME": cache, "TERM": "xterm",
                           "PS1": "", "COLUMNS": "80"}  # fmt: skip
            os.execvpe("bash", ["bash", "--norc", "--noediting"], environment)
        self.output = ""
        self.type("stty -echo rows 24 cols 80")
        self.exit_code()

    def press(self, key: str) -> None:
        """Press a key."""
        os.write(self._file, key.encode())

    def type(self, text: str) -> None:
        """Type lines, with ⏎ at the end."""
        self.press(text + "\n")

    def until(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Wait until the output has a text; drop the output up to it. The text before it is ``output``."""

        def search(shown: bytes) -> re.Match[str] | None:
            self.output = shown.decode(errors="replace")
            return pattern.search(self.output)

        return read_until(self._file, search, seconds=180)

    def exit_code(self) -> int:
        """Return the exit code of the last command, after its end."""
        self.type(r"printf '<<%s>>\n' $?")
        return int(self.until(_EXIT_CODE)[1])

    def close(self) -> None:
        """End the shell."""
        os.close(self._file)
        os.waitpid(self.process, 0)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A shell in a folder that has the environment with the program as ``.venv``."""
    environment = Path(sys.prefix)
    if not (environment / "bin" / "odf").exists() or not (environment / "bin" / "activate").exists():
        pytest.skip("the program is not installed in a virtual environment")
    (tmp_path / ".venv").symlink_to(environment)
    opened = Terminal(tmp_path)
    yield opened
    opened.type("odf worker stop")
    opened.exit_code()
    opened.close()


@pytest.mark.spark
@pytest.mark.complete
def test_readme_tour_runs_as_written(terminal: Terminal) -> None:
    tour = _README.read_text().partition("## A five-minute tour")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```$", tour, re.MULTILINE | re.DOTALL)
    commands = [command for block in blocks for command in split_commands(block)]
    assert sum(command.startswith("odf ") for command in commands) > 10
    for command in commands:
        line, _, comment = command.partition("  #")
        terminal.type(command)
        if line.strip() == "odf":
            terminal.until(re.compile("my.cases"))
            terminal.press("q")
            terminal.until(_PROMPT_AFTER_SCREEN)
        fails = comment.strip().startswith("error: ")
        assert bool(terminal.exit_code()) == fails, f"{command}\n{terminal.output}"
        expected = re.findall(r"error: .*|my\.cases: .*", comment)
        assert all(each in terminal.output for each in expected), f"{command}\n{terminal.output}"


def test_readme_is_short_and_its_links_exist() -> None:
    text = _README.read_text()
    assert text.count("\n") <= 200
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert "://" in target or (_README.parent / target).exists(), target
