"""Pipe steps: commands without a shell, without secrets, bounded, and gone when cancelled."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from odf_engine.base.config import SandboxConfig
from odf_engine.errors import BadData, Cancelled, InvalidManifest, OdfError, Unsupported
from odf_engine.ingest import prep_step
from odf_engine.ingest.prep_step import PreparedFile, PrepareLimits, run_pipe
from odf_engine.isolation.namespaces import PROGRAMS, MountSandbox, Program, unavailable_reason
from odf_engine.isolation.sandbox_process import kernel_limits, python_paths
from odf_engine.metadata.model import Pipe
from tests.ingest.recorder import Recorder
from tests.waiting import is_running, wait_until


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_text("b\na\n")
    return path


def pipe(source: Path, reporter: Recorder, *command: str, most_bytes: int = 1 << 20) -> str:
    target = source.parent / "target"
    file = PreparedFile(source, "x.csv")
    run_pipe(Pipe(list(command)), file, source.parent, target, reporter, PrepareLimits(most_bytes))
    assert sorted(each.name for each in source.parent.iterdir()) == ["source", "target"]
    return target.read_text()


def test_command_reads_the_input_and_writes_the_output(source: Path, reporter: Recorder) -> None:
    assert pipe(source, reporter, "sort") == "a\nb\n"
    assert reporter.amounts["bytes"] == 4
    assert pipe(source, reporter, "printf", "%s", "$HOME;", "*", "two words") == "$HOME;*two words"
    assert pipe(source, reporter, "true") == ""
    source.write_bytes(b"x" * 3_000_000)
    assert pipe(source, reporter, "head", "-c1") == "x"  # which does not read all of it


def test_scripts_of_the_workspace_are_found(source: Path, reporter: Recorder) -> None:
    scripts = source.parent / "scripts"
    scripts.mkdir()
    (scripts / "upper.sh").write_text("#!/bin/sh\ntr a-z A-Z\n")
    (scripts / "upper.sh").chmod(0o755)
    target = scripts / "target"
    for command in (["scripts/upper.sh"], ["./scripts/upper.sh"], ["sh", "scripts/upper.sh"]):
        run_pipe(
            Pipe(command), PreparedFile(source, "x"), source.parent, target, reporter, PrepareLimits(100)
        )
        assert target.read_text() == "B\nA\n"


def test_a_filter_runs_without_the_odf_of_the_path(
    source: Path, reporter: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    source.write_text("Title,,\na,b,c\n1,2,3\nTotal,,3\n")
    command = ["odf", "filter", "csv", "--skip", "1", "--drop-last", "1"]
    assert pipe(source, reporter, *command) == "a,b,c\n1,2,3\n"
    source.write_text("a,b\n1,2\n3\n")
    with pytest.raises(BadData) as error:
        pipe(source, reporter, "odf", "filter", "csv")
    assert str(error.value) == "x.csv: line 3: 1 value for 2 columns"
    assert error.value.hint is not None and "--ragged pad" in error.value.hint
    assert pipe(source, reporter, "odf", "filter", "csv", "--ragged", "skip") == "a,b\n1,2\n"
    assert reporter.warnings == [
        "x.csv: left out 1 record with another number of values, the first in line 3"
    ]
    with pytest.raises(BadData, match="unknown filter 'cvs'"):
        pipe(source, reporter, "odf", "filter", "cvs")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_filter_has_no_network_and_reads_no_other_files(
    source: Path, reporter: Recorder, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = MountSandbox({path: path for path in python_paths()}, {}, kernel_limits(SandboxConfig()))
    if (reason := unavailable_reason(program, sandbox)) is not None:
        pytest.skip(reason)
    limits = PrepareLimits(sandbox=SandboxConfig(program=program))
    folder = source.parent / "scratch"
    folder.mkdir()
    command, environment = prep_step._isolated_filter(["odf", "filter", "csv"], folder, limits)
    script = (
        "import os, socket\n"
        f"print(os.path.exists({str(source)!r}), os.path.exists('/scratch'))\n"
        "try:\n    socket.create_connection(('127.0.0.1', 9), 1)\n"
        "except OSError as error:\n    print(type(error).__name__)\n"
    )
    end = command.index("-m")
    ran = subprocess.run([*command[:end], "-c", script], env=environment, capture_output=True, text=True)
    assert ran.stdout.split() in (
        ["False", "True", name] for name in ("ConnectionRefusedError", "OSError")
    ), ran
    source.write_text("a;b\n" + "1,5;2\n" * 400_000)  # several blocks
    step = Pipe(["odf", "filter", "csv", "--separator", ";", "--decimal", ","])
    target = source.parent / "target"
    run_pipe(step, PreparedFile(source, "x.csv"), source.parent, target, reporter, limits)
    assert target.read_text() == "a,b\n" + "1.5,2\n" * 400_000


def test_stderr_lines_are_logged_and_bounded(source: Path, reporter: Recorder) -> None:
    script = "echo one >&2; printf '\\033[31mtwo\\r\\rthree' >&2; cat"
    assert pipe(source, reporter, "sh", "-c", script) == "b\na\n"
    assert [text for _, text in reporter.lines][1:] == ["sh: one", "sh: [31mtwo", "sh: three"]
    many = Recorder()
    pipe(source, many, "sh", "-c", "seq 5000 >&2; head -c 100000 /dev/zero | tr '\\0' x >&2")
    assert len(many.lines) < 2100 and "more lines" in many.warnings[0]
    assert max(len(text) for _, text in many.lines) < 3000


def test_failed_command_reports_exit_code_and_last_lines(source: Path, reporter: Recorder) -> None:
    with pytest.raises(BadData) as caught:
        pipe(source, reporter, "sh", "-c", "seq 7 >&2; echo some; exit 3")
    assert str(caught.value) == (
        "x.csv: command sh -c 'seq 7 >&2; echo some; exit 3' exited with code 3: 3 / 4 / 5 / 6 / 7"
    )
    with pytest.raises(BadData, match="was killed by signal 9"):
        pipe(source, reporter, "sh", "-c", "kill -9 $$")


@pytest.mark.parametrize(
    ("command", "kind", "said"),
    [
        (["no-such-program", "-x"], Unsupported, "'no-such-program' not found"),
        (["/etc"], Unsupported, "'/etc' cannot be started: Permission denied"),
        (["cat", "a\0b"], Unsupported, "null byte"),
        ([], InvalidManifest, "missing command"),
        (["", "x"], InvalidManifest, "missing command"),
    ],
)
def test_command_that_cannot_start_is_rejected(
    source: Path, reporter: Recorder, command: list[str], kind: type[OdfError], said: str
) -> None:
    with pytest.raises(kind, match=said):
        pipe(source, reporter, *command)


def test_a_command_gets_no_secrets(source: Path, reporter: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t")
    seen = dict(line.partition("=")[::2] for line in pipe(source, reporter, "env").splitlines())
    assert set(seen) - {"PWD", "SHLVL", "_"} <= {"PATH", "HOME", "LANG", "TMPDIR"}
    assert seen["PATH"] == os.environ["PATH"]
    folder = Path(pipe(source, reporter, "sh", "-c", 'cd "$TMPDIR"; pwd; touch left-behind').strip())
    assert folder.parent == source.parent and not folder.exists()


def test_output_is_bounded(source: Path, reporter: Recorder) -> None:
    with pytest.raises(BadData, match=r"'yes' wrote more than 100,000 bytes") as caught:
        pipe(source, reporter, "yes", most_bytes=100_000)
    assert "prepare.mostBytes" in (caught.value.hint or "")


@pytest.mark.parametrize("closes", ["", "exec >&- 2>&-; "])
def test_cancelling_kills_all_child_processes(source: Path, reporter: Recorder, closes: str) -> None:
    notes = source.parent / "source"
    script = f"{closes}exec 3>> {notes}; trap '' TERM INT; sleep 600 & echo $! >&3; echo $$ >&3; "
    script += "wait; echo end >&3"

    def cancel_when_it_works() -> None:
        wait_until(lambda: len(notes.read_text().split()) == 4)
        reporter.cancel()

    threading.Thread(target=cancel_when_it_works, daemon=True).start()
    with pytest.raises(Cancelled):
        pipe(source, reporter, "sh", "-c", script)
    started = [int(line) for line in notes.read_text().split()[2:]]
    assert len(started) == 2  # and not the word that follows their end
    wait_until(lambda: not any(map(is_running, started)))
