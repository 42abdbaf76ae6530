"""Arguments that are not UTF-8: file names may be other bytes, all other arguments are errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from odf_tui.cli.shared.root import odf as odf_group
from odf_tui.cli.shared.root import read_commands
from tests.cli.conftest import Odf, call_odf, run_odf

WRONG = "caf\udce9"  # as Python has the byte E9 of a command line


def _commands(
    command: click.Command, words: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(odf_group)):
            found = command.get_command(click.Context(odf_group), name)
            assert found is not None
            yield from _commands(found, (*words, name))
    else:
        yield words, command


def _usual(param: click.Parameter) -> str:
    return param.type.choices[0] if isinstance(param.type, click.Choice) else "x"


def _lines() -> Iterator[tuple[str, ...]]:
    """A command line for each argument and option of each command, in which that one is not UTF-8."""
    for name in read_commands():
        top = odf_group.get_command(click.Context(odf_group), name)
        assert top is not None
        for words, command in _commands(top, (name,)):
            arguments = [param for param in command.params if isinstance(param, click.Argument)]
            for argument in arguments:
                yield (*words, *(WRONG if other is argument else _usual(other) for other in arguments))
            for param in command.params:
                if isinstance(param, click.Option) and not param.is_flag:
                    yield (*words, *map(_usual, arguments), param.opts[-1], WRONG)


def _goes_on(line: tuple[str, ...]) -> bool:
    """Whether the line is right as it is, and makes a folder or a server."""
    return line[0] in ("init", "demo") or line == ("engine", "serve", "--workspace", WRONG)


@pytest.mark.parametrize(
    "line",
    [line for line in _lines() if not _goes_on(line)],
    ids=lambda line: " ".join(line).replace(WRONG, "?"),
)
def test_every_command_accepts_or_rejects_non_utf8_arguments(tmp_path: Path, line: tuple[str, ...]) -> None:
    ran = call_odf(*line, cwd=tmp_path)
    assert ran.code in (0, 1, 2), ran
    assert bool(ran.err) == bool(ran.code) and "Traceback" not in ran.err


def test_rejected_argument_is_named(fresh: Odf) -> None:
    ran = fresh("tail", WRONG)
    assert (ran.code, ran.err) == (2, "error: 'NAME' is not UTF-8 text: 'caf\\udce9'\n")
    assert "'--as-at' is not UTF-8 text" in fresh("tail", "x", "--as-at", WRONG).err


def test_non_utf8_file_name_is_accepted_or_reported(fresh: Odf, tmp_path: Path) -> None:
    path = tmp_path / f"{WRONG}.yaml"
    path.write_text(fresh("new", "cases", "--root").out)
    assert fresh("add", path.name).err == "added cases\n"
    assert fresh("keys", "sign", "cases", path.name).code == 0
    assert fresh("block", "encode", path.name).err.startswith("error: caf\\udce9.yaml:")
    ran = fresh("ingest", "cases", path.name)
    assert (ran.code, ran.out) == (2, "") and "cannot be sent to the worker: not UTF-8" in ran.err
    assert fresh("digest", path.name).err.startswith("error: caf\\udce9.yaml: the file name is not UTF-8")


@pytest.mark.complete
def test_workspace_at_non_utf8_path_works_without_a_worker(tmp_path: Path) -> None:
    folder = tmp_path / WRONG
    folder.mkdir()
    for line in (["init"], ["list"], ["config", "list"], ["fsck"], ["repo", "list", "--json"]):
        ran = run_odf(*line, cwd=folder, LC_ALL="C.UTF-8")
        assert ran.code == 0, ran
    manifest = call_odf("new", "cases", "--root", cwd=folder).out
    assert call_odf("add", "-", cwd=folder, input=manifest).code == 0
    assert run_odf("path", "cases", cwd=folder, LC_ALL="C.UTF-8").code == 0
    ran = run_odf("worker", "start", cwd=folder, LC_ALL="C.UTF-8")
    assert ran.code == 1 and "the worker cannot be started: the path of the workspace is not UTF-8" in ran.err


@pytest.mark.parametrize(
    "line",
    [
        ("push", "cases", "--to", "./copy"),
        ("pull", "--from", "./copy", "--as", "cases"),
        ("repo", "add", "copy", "./copy"),
        ("push", "cases", "--to", "file:///tmp/caf%E9/copy"),
    ],
)
def test_remote_in_a_non_utf8_folder_is_reported(fresh: Odf, tmp_path: Path, line: tuple[str, ...]) -> None:
    added = fresh("add", "-", input=fresh("new", "cases", "--root").out)
    assert added.code == 0, added.err
    folder = tmp_path / WRONG
    folder.mkdir(exist_ok=True)
    ran = call_odf("-w", str(fresh("path", "cases").out).partition("/.odf/")[0], *line, cwd=folder)
    assert (ran.code, ran.out) == (2, "")
    assert "caf\\udce9/copy: the path of the folder is not UTF-8\n  hint: rename the folder" in ran.err
