"""Runs the commands of the help pages, and compares their output with that on the page.

A page runs in a separate workspace, or in that of the page that its examples continue. The info string of a
block selects the test:

- ``sh``: the commands succeed. A following ``text`` block has lines of the output, in this order. ``…``
  matches any text.
- ``sh fails``: the last command fails.
- ``sh no-run``: the commands need a network, a cluster or a person. Only their options are parsed.
- ``yaml``: a manifest. ``yaml FILE`` is also written to a file.
- ``yaml fragment``: YAML that is not a manifest.
- ``python``: is executed in the folder of the page.
- ``python no-run``, ``text no-run``: need a network or another program, and are not executed.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest
import yaml

from odf_engine.metadata.yaml import read_manifests
from odf_tui.actions.model import key_name
from odf_tui.actions.table import ACTIONS, DEFAULT_KEYMAP
from odf_tui.cli.shared.root import odf as root_command
from odf_tui.help.pages import TOPICS, read_page
from tests.cli.conftest import call_odf

_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CONTINUES = re.compile(r"examples\s+continue\s+`odf\s+help\s+([a-z-]+)`")
_MAX_CODE_WIDTH = 70
"""A line of code in a dialog of a terminal with 80 columns."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    line: int
    info: str
    text: str


def blocks_of(topic: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    page = read_page(topic)
    return [
        Block(page.count("\n", 0, found.start()) + 1, found[1].strip(), found[2])
        for found in _FENCE.finditer(page)
    ]


def base_of(topic: str) -> str | None:
    """Return the page that the examples of a page continue."""
    found = _CONTINUES.search(read_page(topic))
    return found[1] if found else None


def split_commands(script: str) -> Iterator[str]:
    """Yield the commands of a script: joined lines, closed quotes, complete here-documents."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        here = re.search(r"<<'(\w+)'", pending)
        if here is not None and not pending.rstrip("\n").endswith(f"\n{here[1]}"):
            continue
        with contextlib.suppress(ValueError):  # a quote is open
            words = shlex.split(pending if here is None else "cat", comments=True)
            if line.endswith("\\\n"):
                continue
            if words:
                yield pending.strip()
            pending = ""
    assert not pending, f"an open quote: {pending}"


def split_words(command: str) -> list[str]:
    """Return the words of a command; operators of the shell are separate words."""
    reader = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars="|&;<>")
    reader.whitespace_split = True
    return list(reader)


def is_operator(word: str) -> bool:
    """Whether a word is an operator of the shell."""
    return bool(re.fullmatch(r"[|&;<>]+", word))


@dataclass
class Shell:
    """Runs commands in a folder. Plain ``odf`` commands run in this process, which is faster."""

    folder: Path
    tools: Path
    output: str = ""
    names: dict[str, object] = field(default_factory=lambda: {"__name__": "page"})

    def run(self, script: str) -> int:
        """Run commands until one fails. Returns the exit code of the last one."""
        self.output, code = "", 0
        for command in split_commands(script):
            assert not code, f"`{command}` is not reached:\n{self.output}"
            code = self._run(command)
        return code

    def _run(self, command: str) -> int:
        words = split_words(command) if "<<" not in command else []
        if words[:1] == ["cd"]:
            self.folder = self.folder / words[1]
            return 0
        target = None
        if words[-2:-1] == [">"]:
            words, target = words[:-2], self.folder / words[-1]
        if words[:1] != ["odf"] or any(map(is_operator, words)) or "$(" in command:
            return self._run_shell(command)
        ran = call_odf(*words[1:], cwd=self.folder)
        if target is not None:
            target.write_text(ran.out)
        self.output += ("" if target else ran.out) + ran.err
        return ran.code

    def _run_shell(self, command: str) -> int:
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", command],
            cwd=self.folder,
            env={**os.environ, "PATH": f"{self.tools}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=180,
        )
        self.output += done.stdout
        return done.returncode

    def run_python(self, code: str) -> None:
        """Execute Python code in the folder; its prints are the output."""
        out = io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(out):
            exec(compile(code, "page", "exec"), self.names)
        self.output = out.getvalue()


def assert_shows(output: str, expected: str) -> None:
    """Assert that the output has the expected lines, in their order. ``…`` matches any text."""
    at = 0
    for line in filter(str.strip, expected.splitlines()):
        words = [re.escape(word).replace("…", ".*?") for word in line.split()]
        found = re.compile(r"^\s*" + r"\s+".join(words) + r"\s*$", re.MULTILINE).search(output, at)
        assert found, f"not in the output: {line}\n{output}"
        at = found.end()


class Pages:
    """Runs each page once, after the page that it continues."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._shells = folder, dict[str, Shell]()
        self.tools = folder / "bin"
        self.tools.mkdir()
        program = self.tools / "odf"
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m odf_tui "$@"\n')
        program.chmod(0o755)

    def run(self, topic: str) -> Shell:
        """Run the blocks of a page in order. Returns the shell with its folder."""
        if topic in self._shells:
            return self._shells[topic]
        if (base := base_of(topic)) is not None:
            shell = Shell(self.run(base).folder, self.tools)
        else:
            folder = self._folder / topic
            folder.mkdir()
            shell = Shell(folder, self.tools)
            if not re.search(r"^odf init$", read_page(topic), re.MULTILINE):
                call_odf("init", cwd=folder)
        for block in blocks_of(topic):
            self._run_block(topic, block, shell)
        self._shells[topic] = shell
        return shell

    def _run_block(self, topic: str, block: Block, shell: Shell) -> None:
        kind, _, rest = block.info.partition(" ")
        where = f"{topic}.md:{block.line}"
        if kind == "sh" and rest in ("", "fails"):
            code = shell.run(block.text)
            assert bool(code) == (rest == "fails"), f"{where}: exit code {code}\n{shell.output}"
        elif kind == "text" and not rest:
            try:
                assert_shows(shell.output, block.text)
            except AssertionError as error:
                raise AssertionError(f"{where}: {error}") from None
        elif kind == "python" and not rest:
            shell.run_python(block.text)
        elif kind == "yaml" and rest not in ("", "fragment"):
            (shell.folder / rest).write_text(block.text)

    def close(self) -> None:
        """Stop the workers."""
        for settings in self._folder.rglob(".odf"):
            call_odf("worker", "stop", cwd=settings.parent)


@pytest.fixture(scope="session")
def help_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    found = Pages(tmp_path_factory.mktemp("pages"))
    yield found
    found.close()


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.complete(after=2)
def test_page_commands_run_with_the_printed_output(help_pages: Pages, topic: str) -> None:
    help_pages.run(topic)


def test_each_topic_has_a_page() -> None:
    folder = Path(read_page.__code__.co_filename).parent
    assert {path.stem for path in folder.glob("*.md")} == set(TOPICS)


@pytest.mark.parametrize("topic", TOPICS)
def test_page_has_title_limited_length_and_valid_blocks(topic: str) -> None:
    page = read_page(topic)
    assert page.startswith("# ")
    assert 40 <= page.count("\n") <= 140
    infos = re.compile(r"sh fails|(sh|text|python)( no-run)?|yaml( fragment| \S+\.yaml)?")
    for block in blocks_of(topic):
        assert infos.fullmatch(block.info), f"{topic}.md:{block.line}: {block.info}"
        widest = max(map(len, block.text.splitlines()), default=0)
        assert widest <= _MAX_CODE_WIDTH, f"{topic}.md:{block.line}: {widest} columns"
    assert page.count("```") == 2 * len(blocks_of(topic))
    for name in re.findall(r"`odf help ([a-z][a-z-]*)`", page):
        assert name in TOPICS or name in root_command.list_commands(
            click.Context(root_command, **root_command.context_settings)
        )


@pytest.mark.parametrize("topic", TOPICS)
def test_page_manifests_are_valid(topic: str) -> None:
    for block in blocks_of(topic):
        if block.info.startswith("yaml"):
            list(yaml.safe_load_all(block.text))
            if block.info != "yaml fragment":
                assert read_manifests(block.text, topic)


@pytest.mark.parametrize("topic", TOPICS)
def test_the_commands_of_a_page_parse(topic: str) -> None:
    """Check commands and options of all blocks, above all of those that are not run."""
    for block in blocks_of(topic):
        if block.info.startswith("sh"):
            for command in split_commands(block.text):
                for arguments in odf_commands(command):
                    parse(arguments, f"{topic}.md:{block.line}")


def odf_commands(command: str) -> Iterator[list[str]]:
    """Yield the arguments of each ``odf`` in a command of the shell."""
    words = split_words(command.partition("<<")[0].replace("$(", " ; ").replace(")", " "))
    arguments: list[str] | None = None
    for word in [*words, ";"]:
        if is_operator(word):
            if arguments is not None:
                yield arguments
            arguments = None
        elif arguments is not None:
            arguments.append(word)
        elif word == "odf":
            arguments = []


def parse(arguments: list[str], where: str) -> None:
    """Parse a command line with click, without running it."""
    command: click.Command = root_command
    context = click.Context(root_command, info_name="odf", **root_command.context_settings)
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        found = command.get_command(context, arguments[0])
        assert found is not None, f"{where}: no command {arguments[0]}"
        command, arguments = found, arguments[1:]
        context = click.Context(command, info_name=command.name, parent=context)
    try:
        command.parse_args(context, list(arguments))
    except click.exceptions.NoArgsIsHelpError:
        pass
    except click.ClickException as error:
        pytest.fail(f"{where}: {error.format_message()}")


def test_the_page_of_keys_lists_the_keys_of_all_actions() -> None:
    """Every listed action has a key on the page, and the page has no other keys."""
    rows = re.findall(r"^\| (.*?`.*?) \|", read_page("keys"), re.MULTILINE)
    shown = {key for row in rows for code in re.findall(r"`([^`]+)`", row) for key in code.split()}
    names = {"⏎": "enter"}  # the page spells it
    keys = {each.id: {names.get(key_name(key), key_name(key)) for key in each.keys} for each in ACTIONS}
    codes = {code for row in rows for code in re.findall(r"`([^`]+)`", row)}
    keys |= {each.id: {DEFAULT_KEYMAP.display_key(each.id)} for each in ACTIONS if each.menu}
    assert not [each.id for each in ACTIONS if each.listed and not keys[each.id] & (shown | codes)]
    keys |= {each.id: {key_name(each.menu_key)} for each in ACTIONS if each.menu}
    assert not shown - set().union(*keys.values())
