"""Commands that need no Spark, and errors of the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.shared.root import odf as odf_group
from odf_tui.cli.shared.root import read_commands
from tests.cli.conftest import Odf, call_odf, run_odf
from tests.sync.builders import make_derivative, make_root
from tests.sync.hostile_server import Exchange, hostile


def test_missing_workspace_error_suggests_init(tmp_path: Path) -> None:
    ran = run_odf("list", cwd=tmp_path)
    assert ran.code == 1
    assert "odf init" in ran.err
    assert ran.out == ""


def test_help_lists_every_command(tmp_path: Path) -> None:
    out = run_odf("--help", cwd=tmp_path).out
    listed = [line.split()[0] for line in out.partition("Commands:\n")[2].splitlines()]
    assert listed == list(read_commands())


def test_help_imports_no_module_of_a_command() -> None:
    script = (
        "import sys; sys.argv = ['odf', '--help']\n"
        "from odf_tui.main import main\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = {f"odf_tui.cli.{name}" for name in read_commands()}
    assert not modules & set(done.stderr.split())


@pytest.mark.parametrize("name", read_commands())
def test_each_command_is_named_after_its_module(name: str) -> None:
    command = odf_group.get_command(click.Context(odf_group), name)
    assert command is not None
    assert command.name == name
    assert (command.help or "").partition("\n")[0] == read_commands()[name].summary


def test_positions_of_commands_in_the_help_are_unique() -> None:
    orders = [info.order for info in read_commands().values()]
    assert len(set(orders)) == len(orders)


@pytest.mark.parametrize("name", read_commands())
def test_help_of_each_command_has_an_example(name: str) -> None:
    assert "Example:" in CliRunner().invoke(odf_group, [name, "--help"]).output


def test_options_of_a_subcommand_may_precede_its_name(fresh: Odf, tmp_path: Path) -> None:
    assert fresh("worker", "--json", "status").json == {"running": False, "status": None}
    assert call_odf("worker", "-w", str(tmp_path), "status", "-q", cwd=Path("/")).code == 0
    assert fresh("keys", "-q", "token", "--json", "list").json == []
    assert fresh("config", "--user", "get", "ui.theme").code == 0
    assert call_odf("config", "--workspace", "list", "list", cwd=tmp_path).code == 1  # no such workspace


def test_usage_errors_exit_with_code_two(fresh: Odf) -> None:
    assert fresh("lst").code == 2
    assert "did you mean 'list'" in fresh("lst").err
    assert fresh("pull").code == 2
    assert fresh("verify", "--range").code == 2


def test_schema_prints_the_json_schema_of_manifests(tmp_path: Path) -> None:
    schema = run_odf("schema", "--manifest-json-schema", cwd=tmp_path).json
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["properties"]["kind"] == {"const": "DatasetSnapshot"}
    assert schema["properties"]["content"] == {"$ref": "#/$defs/DatasetSnapshot"}
    assert "MetadataEvent.SetPollingSource" in schema["$defs"]
    named = run_odf("schema", "stations", "--manifest-json-schema", cwd=tmp_path)
    assert (named.code, named.out) == (2, "")
    assert "NAME" in named.err
    unnamed = run_odf("schema", cwd=tmp_path)
    assert (unnamed.code, unnamed.out) == (2, "")
    assert "NAME" in unnamed.err


@pytest.mark.parametrize("kind", ["--root", "--derivative"])
def test_a_new_manifest_can_be_added(fresh: Odf, kind: str) -> None:
    manifest = fresh("new", "com.example.cases", kind).out
    if kind == "--derivative":
        fresh("add", "-", input=fresh("new", "com.example.input", "--root").out)
    added = fresh("add", "-", input=manifest)
    assert added.code == 0, added.err
    listed = {each["name"]: each for each in fresh("list", "--json").json}
    assert listed["com.example.cases"]["status"] == "new"
    if kind == "--derivative":
        assert fresh("graph", "--json").json["edges"] == [
            {"from": "com.example.input", "to": "com.example.cases"}
        ]
        refused = fresh("delete", "com.example.input", "--yes")
        assert refused.code == 1
        assert "com.example.cases" in refused.err
    assert fresh("rename", "com.example.cases", "cases").code == 0
    assert fresh("delete", "CASES", "--yes").code == 0
    assert "com.example.cases" not in fresh("list", "--json").out


def test_invalid_manifest_is_rejected_with_its_location(fresh: Odf) -> None:
    manifest = fresh("new", "cases", "--root").out.replace("primaryKey", "primaryKeys")
    ran = fresh("add", "-", input=manifest)
    assert ran.code == 1
    assert "stdin:" in ran.err
    assert "primaryKey" in ran.err
    assert fresh("list", "--json").json == []


def test_adding_twice_is_an_error(fresh: Odf) -> None:
    manifest = fresh("new", "cases", "--root").out
    assert fresh("add", "-", input=manifest).code == 0
    again = fresh("add", "-", input=manifest.replace("name: cases", "name: CASES"))
    assert again.code != 0
    assert "CASES already exists" in again.err


def test_workspace_option_is_accepted_before_or_after_the_command(tmp_path: Path) -> None:
    call_odf("init", "here", cwd=tmp_path)
    assert call_odf("-w", "here", "list", "--json", cwd=tmp_path).json == []
    assert call_odf("list", "--json", "-w", "here", cwd=tmp_path).json == []
    assert call_odf("list", "--json", cwd=tmp_path, ODF_WORKSPACE="here").json == []
    call_odf("init", "-w", "there", cwd=tmp_path)
    assert (tmp_path / "there" / ".odf").is_dir() and not (tmp_path / ".odf").exists()


def test_config_reads_sets_and_suggests_settings(fresh: Odf) -> None:
    assert fresh("config", "get", "worker.idleMinutes").out.strip() == "30"
    assert fresh("config", "set", "worker.idleMinutes", "5").code == 0
    assert fresh("config", "list", "--json").json["worker.idleMinutes"] == 5
    wrong = fresh("config", "set", "worker.idleMinute", "5")
    assert wrong.code != 0
    assert "worker.idleMinutes" in wrong.err


def test_block_decode_never_crashes(fresh: Odf) -> None:
    ran = fresh("block", "decode", "-", input=os.urandom(300))
    assert ran.code == 1
    assert "Traceback" not in ran.err
    assert ran.err.startswith("error: ")


def test_read_only_commands_do_not_start_the_worker(fresh: Odf) -> None:
    assert fresh("list").code == 0
    assert fresh("worker", "status", "--json").json == {"running": False, "status": None}


def test_status_reports_a_worker_that_does_not_respond(fresh: Odf) -> None:
    started = fresh("worker", "start", "--json").json["status"]
    assert started["spark"] == "off"
    os.kill(started["pid"], signal.SIGSTOP)
    try:
        ran = fresh("worker", "status")
    finally:
        os.kill(started["pid"], signal.SIGCONT)
    assert ran.code == 1 and f"the worker (process {started['pid']}) does not respond" in ran.err
    assert f"kill -CONT {started['pid']}" in ran.err and "no worker is running" not in ran.err
    assert fresh("worker", "status", "--json").json["running"]


def test_private_keys_are_readable_by_the_owner_only(fresh: Odf, tmp_path: Path) -> None:
    fresh("add", "-", input=fresh("new", "cases", "--root").out)
    keys = list((tmp_path / ".odf" / "keys").iterdir())
    assert any(path.suffix == ".pem" for path in keys)
    assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}


def test_endless_or_slow_manifest_download_is_rejected(
    fresh: Odf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/yaml\r\n"

    def endless(exchange: Exchange) -> None:
        exchange.send(head + b"\r\n")
        exchange.forever(b"# more\n" * 10_000)

    with hostile(tmp_path) as server:
        server.says["endless"] = endless
        ran = fresh("add", f"{server.url}endless.yaml")
        assert (ran.code, ran.out) == (1, "")
        assert "endless.yaml: response too large: more than 16,777,216 bytes" in ran.err
        assert server.sent < 64 << 20

        monkeypatch.setattr("odf_tui.cli.shared.manifests._DOWNLOAD_SECONDS", 0.5)
        for name, answer in (
            ("body", head + b"\r\n" + b"#" * 9000),
            ("head", head + b"X-More: " + b"x" * 9000),
        ):
            server.says[name] = lambda exchange, answer=answer: exchange.slowly(answer)
            ran = fresh("add", f"{server.url}{name}.yaml")
            assert (ran.code, ran.out) == (1, "")
            assert f"{name}.yaml: the download timed out after" in ran.err
            assert "download the manifest and add the file" in ran.err


def test_manifest_download_sends_the_stored_login_and_refuses_web_pages(fresh: Odf, tmp_path: Path) -> None:
    manifest = fresh("new", "cases", "--root").out
    with hostile(tmp_path) as server:
        server.says["cases"] = lambda exchange: exchange.answer(200, manifest.encode())
        server.says["page"] = lambda exchange: exchange.answer(
            200, b"<!DOCTYPE html><html></html>", "Content-Type: text/html"
        )
        assert fresh("repo", "login", server.url, "--stdin", input="secret\n").code == 0
        assert fresh("add", f"{server.url}cases.yaml").code == 0
        assert server.asked[-1].headers["authorization"] == "Bearer secret"
        ran = fresh("add", f"{server.url}page.yaml")
        assert (ran.code, "page.yaml" in ran.err, "HTML" in ran.err) == (1, True, True), ran.err


def test_endless_files_and_pipes_are_refused(fresh: Odf) -> None:
    for arguments in (["add"], ["block", "decode"], ["block", "encode"]):
        ran = fresh(*arguments, "/dev/zero")
        assert (ran.code, ran.out) == (2, "")
        assert "/dev/zero has more than 16,777,216 bytes" in ran.err
    for arguments in (["add", "-"], ["block", "decode", "-"], ["sql", "-"]):
        ran = fresh(*arguments, input=b"#" * ((16 << 20) + 1))
        assert (ran.code, ran.out) == (2, "")
        assert "stdin has more than 16,777,216 bytes" in ran.err
    assert "/dev/zero has more than" in fresh("sql", "@/dev/zero").err


@pytest.mark.parametrize(
    ("name", "proposal"),
    [("air_quality", "air-quality"), ("a_/b_c..d", "a/b-c.d"), ("__", None), ("a/b/c_d", None)],
)
def test_an_invalid_name_has_a_proposal(fresh: Odf, name: str, proposal: str | None) -> None:
    ran = fresh("new", name, "--root")
    assert "letters and digits" in ran.err
    assert ("for example" in ran.err) == (proposal is not None)
    if proposal is not None:
        assert ran.err.rstrip().endswith(f"for example {proposal}")
        assert fresh("new", proposal, "--root").code == 0


def test_delete_checks_dependants_before_it_requires_confirmation(tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path)
    make_derivative(workspace, make_root(workspace, slices=1))
    ran = call_odf("delete", "numbers", cwd=tmp_path)
    assert "downstream datasets: derived" in ran.err, ran.err
    assert "--yes" not in ran.err
    assert "--yes" in call_odf("delete", "%", cwd=tmp_path).err


def test_the_demo_requires_a_terminal_before_it_creates_anything(tmp_path: Path) -> None:
    ran = call_odf("demo", "here", cwd=tmp_path)
    assert (ran.code, "--no-tui" in ran.err) == (2, True)
    assert not (tmp_path / "here").exists()


def test_commands_print_ascii_in_a_locale_without_utf_8(tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path)
    make_derivative(workspace, make_root(workspace, slices=1))
    assert "◇ numbers" in call_odf("graph", cwd=tmp_path, LC_ALL="C.UTF-8").out
    for arguments in (["graph"], ["show", "numbers"], ["list"], ["help", "glossary"], ["show", "né…"]):
        ran = call_odf(*arguments, cwd=tmp_path, LC_ALL="C")
        assert (ran.out + ran.err).isascii(), arguments
    assert call_odf("graph", cwd=tmp_path, LC_ALL="C").out.startswith("o numbers")
    assert "'n\\xe9.'" in call_odf("show", "né…", cwd=tmp_path, LC_ALL="C").err
    call_odf("config", "set", "ui.theme", "né", cwd=tmp_path)
    ran = call_odf("config", "get", "ui.theme", "--json", cwd=tmp_path, LC_ALL="C")
    assert (ran.out, ran.json) == ('"n\\u00e9"\n', "né")


@pytest.mark.parametrize(
    ("word", "command"),
    [("rm", "delete"), ("cat", "tail"), ("ps", "jobs"), ("upload", "push"), ("exprt", "export")],
)
def test_unknown_commands_suggest_one_by_meaning(fresh: Odf, word: str, command: str) -> None:
    ran = fresh(word)
    assert (ran.code, f"did you mean '{command}'?" in ran.err) == (2, True)


def test_suggested_words_are_unique_and_not_commands() -> None:
    commands = read_commands()
    words = [word for info in commands.values() for word in (*info.meanings, *info.aliases)]
    assert len(words) == len(set(words))
    assert not set(words) & set(commands)


def test_ls_is_list(fresh: Odf) -> None:
    assert fresh("ls", "--json").json == fresh("list", "--json").json == []
    assert "List the datasets" in fresh("help", "ls").out
