"""Queries of datasets that are not trusted: shut in, and the same results."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from odf_engine.base.config import Config, SandboxConfig
from odf_engine.base.settings import set_value
from odf_engine.derive.verify.integrity import verify
from odf_engine.derive.verify.replay import Replay
from odf_engine.engines.engine_router import engines_for
from odf_engine.engines.sandbox import Sandbox
from odf_engine.engines.spark_engine import SparkEngine
from odf_engine.errors import InvalidQuery, NotTrusted, OdfError
from odf_engine.isolation import sandbox_process
from odf_engine.isolation.namespaces import (
    PROGRAMS,
    MountSandbox,
    Program,
    SandboxLimits,
    unavailable_reason,
)
from odf_engine.isolation.sandbox_process import LimitWatch
from odf_engine.metadata.model import Sql, SqlQueryStep
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_folders import ORIGIN_FILE
from odf_engine.workspace.trust import Trust
from tests.derive.deriving import Deriving
from tests.log_lines import LogLines

LOOKS = """
import os, socket, sys
given, out, secret = sys.argv[1:]
def can(look, *arguments):
    try:
        look(*arguments)
    except OSError:
        return False
    return True
network = socket.socket()
network.settimeout(2)
print(
    open(given).read(),
    can(open, given, "a"),
    can(open, given + ".new", "w"),
    can(open, out + "/new", "w"),
    can(open, secret),
    can(network.connect, ("192.0.2.1", 80)),
    can(socket.create_server, ("127.0.0.1", 0)),
    sum(name.isdigit() for name in os.listdir("/proc")) < 5,
)
"""


LIMITS = SandboxLimits(memory=1 << 30, file=2 << 20, tmp=1 << 20, processes=40)


def plain_walls(**more: dict[Path, Path]) -> MountSandbox:
    system = [Path(each) for each in ("/usr", "/bin", "/lib", "/lib64", sys.prefix, sys.base_prefix)]
    return MountSandbox({each: each for each in system} | more.get("read", {}), more.get("write", {}), LIMITS)


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> Program:
    if (reason := unavailable_reason(request.param, plain_walls())) is not None:
        pytest.skip(f"{request.param}: {reason}")
    return request.param


def test_sandbox_sees_only_its_mounts_and_no_network(tmp_path: Path, program: Program) -> None:
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "in" / "rows = 1").write_text("rows")
    (tmp_path / "secret").write_text("secret")
    walls = plain_walls(read={Path("/x/in"): tmp_path / "in"}, write={Path("/x/out"): tmp_path / "out"})
    command = [sys.executable, "-c", LOOKS, "/x/in/rows = 1", "/x/out", str(tmp_path / "secret")]
    done = subprocess.run(walls.wrap_command(program, command), capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.split() == ["rows", "False", "False", "True", "False", "False", "True", "True"]
    assert (tmp_path / "out" / "new").exists()


FILLS = """
import errno, sys
def fill(path):
    try:
        with open(path, "ab", buffering=0) as file:
            for _ in range(32):
                file.write(bytes(1 << 17))
    except OSError as error:
        return errno.errorcode[error.errno]
print(*map(fill, sys.argv[1:]))
"""
FULL = {
    "/tmp/x": ("ENOSPC",),
    "/dev/shm/x": ("ENOSPC", "ENOENT"),
    "/x/out/x": ("EFBIG",),
    "/x/new": ("EROFS",),
    "/dev/new": ("EROFS",),
    "/proc/self/oom_score_adj": ("EROFS",),
    "/proc/sys/kernel/core_pattern": ("EROFS",),
}


def test_files_are_limited(tmp_path: Path, program: Program) -> None:
    """Whatever is in memory, the size of a file, and what belongs to the machine."""
    walls = plain_walls(write={Path("/x/out"): tmp_path})
    command = [sys.executable, "-c", FILLS, *FULL]
    done = subprocess.run(walls.wrap_command(program, command), capture_output=True, text=True, check=False)
    assert done.stderr == ""
    found = dict(zip(FULL, done.stdout.split(), strict=True))
    assert all(found[path] in wanted for path, wanted in FULL.items()), found
    assert (tmp_path / "x").stat().st_size == LIMITS.file


SPREADS = """
import os, sys, time
for at in range(64):
    with open(f"/x/out/{at}", "wb") as file:
        file.write(bytes(1 << 19))
time.sleep(600)
"""
PRINTS = "import time; print('x' * 100_000); time.sleep(600)"
FORKS = """
import os, time
for _ in range(200):
    if os.fork() == 0:
        time.sleep(600)
time.sleep(600)
"""
WAITS = "import time; time.sleep(600)"


@dataclass(frozen=True)
class Ended:
    """How a process in a sandbox ended: why it was killed, where it was, and what it printed."""

    error: OdfError | None
    code: int
    printed: str


@pytest.fixture
def watched(tmp_path: Path, program: Program) -> Callable[[str], Ended]:
    """Runs code in a sandbox of small limits until it ends."""

    def run(code: str) -> Ended:
        out, log = tmp_path / "out", tmp_path / "log"
        out.mkdir()
        command = plain_walls(write={Path("/x/out"): out}).wrap_command(program, [sys.executable, "-c", code])
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            config = SandboxConfig(disk="4m", processes=LIMITS.processes)
            watch = LimitWatch(process, [out], (log, 0), config)
            watch.start()
            watch.join(60)
            assert not watch.is_alive()
        finally:
            process.kill()
        return Ended(watch.exceeded, process.wait(), log.read_text())

    return run


def test_disk_space_is_limited(watched: Callable[[str], Ended]) -> None:
    ended = watched(SPREADS)
    assert "used more than sandbox.disk (4m)" in str(ended.error)
    assert ended.code == -signal.SIGKILL


def test_processes_are_limited(watched: Callable[[str], Ended]) -> None:
    ended = watched(FORKS)
    if ended.error is None:  # the kernel refused them, which it does not for root
        assert "Resource temporarily unavailable" in ended.printed
    else:
        assert "started more than sandbox.processes (40)" in ended.error.message
        assert "sandbox.processes NUMBER" in str(ended.error.hint)


def test_output_is_limited(watched: Callable[[str], Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_process, "_MAX_OUTPUT_BYTES", 50_000)
    assert "printed more" in str(watched(PRINTS).error)


def test_a_disk_does_not_fill_up(watched: Callable[[str], Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleted files that are still open are not seen, but the space that they leave."""
    free = iter([8 << 30, 2 << 30])
    monkeypatch.setattr(sandbox_process, "_free_bytes", lambda folder: next(free, 1 << 20))
    assert "the disk is almost full" in str(watched(WAITS).error)


def test_exceeded_limit_fails_the_query_and_commits_nothing(deriving: Deriving, shut_in: None) -> None:
    deriving.rows(deriving.root(), (1, "a", 1))
    made = deriving.derivative("SELECT event_time, x FROM input")
    odf = deriving.workspace.odf
    config = Config(sandbox=SandboxConfig(processes=20))  # Java needs more
    head = made.dataset.head()
    with closing(Sandbox(config, odf / "cache", odf / "sandbox.log", "output", deriving.engine)) as engine:
        deriving.engine = engine
        reason = "did not start" if os.getuid() else r"started more than sandbox\.processes \(20\)"
        with pytest.raises(OdfError, match=reason):
            deriving.run(made)
    assert made.dataset.head() == head
    assert list((odf / "cache").glob("sandbox-*")) == []


@pytest.fixture
def shut_in() -> None:
    if all(unavailable_reason(each, plain_walls()) for each in PROGRAMS):
        pytest.skip("nothing can shut a process in here")


@pytest.mark.complete
def test_untrusted_query_in_the_sandbox_gives_equal_rows(
    deriving: Deriving, runtime: SparkRuntime, shut_in: None
) -> None:
    root = deriving.root()
    made = deriving.derivative(
        "SELECT window.end AS event_time, sum(x) AS s FROM input GROUP BY window(event_time, '1 day')"
    )
    wrong = deriving.derivative("SELECT event_time,\n  nothing FROM input", name="wrong")
    rereads = deriving.derivative("SELECT * FROM input WHERE x IN (SELECT x - 1 FROM input)", name="rereads")
    (made.dataset.folder / ORIGIN_FILE).write_text("https://example.com/output.yaml")
    reporter, here = LogLines(), deriving.engine
    with engines_for(deriving.workspace, made, lambda: runtime) as deriving.engine:
        for day in (1, 2):
            deriving.rows(root, (day, "a", day), (day, "b", 1))
            assert deriving.run(made, reporter) == deriving.run(rereads) == 1
        with pytest.raises(InvalidQuery) as error:
            deriving.run(wrong)
    assert error.value.where == "query, line 2, column 3"
    said = [line for line in reporter.lines if "runs in a sandbox" in line]
    assert len(said) == 1 and said[0].startswith("output is untrusted")
    assert list((deriving.workspace.odf / "cache").glob("sandbox-*")) == []
    assert deriving.result(made, "s") == [(2,)]
    assert deriving.result(rereads, "city") == [("a",), ("b",), ("b",)]
    for each in (made, rereads):
        replay = Replay(deriving.workspace, each, here, reporter)
        assert verify(each.dataset, reporter, None, None, replay).findings == []


def test_missing_sandbox_is_refused_unless_allowed(
    deriving: Deriving, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "odf_engine.isolation.sandbox_process.unavailable_reason", lambda program, walls: "not permitted"
    )
    deriving.rows(deriving.root(), (1, "a", 1))
    made = deriving.derivative("SELECT event_time, x FROM input")
    odf, here = deriving.workspace.odf, deriving.engine
    deriving.engine = Sandbox(Config(), odf / "cache", odf / "sandbox.log", "output", here)
    with pytest.raises(NotTrusted, match="bwrap: not permitted; unshare: not permitted") as error:
        deriving.run(made)
    assert "odf trust output" in str(error.value.hint) and "sandbox.allowWithout" in str(error.value.hint)
    allowed = set_value(Config(), "sandbox.allowWithout", "true")
    deriving.engine = Sandbox(allowed, odf / "cache", odf / "sandbox.log", "output", here)
    reporter = LogLines()
    assert deriving.run(made, reporter) == 1
    assert "no sandbox is available: the query runs without one (sandbox.allowWithout)" in reporter.lines
    assert list((odf / "cache").glob("sandbox-*")) == []


def test_untrusted_queries_run_in_a_sandbox_until_trusted(deriving: Deriving, runtime: SparkRuntime) -> None:
    deriving.root()
    made = deriving.derivative("SELECT event_time, x FROM input")

    def engine() -> object:
        with engines_for(deriving.workspace, made, lambda: runtime) as engines:
            return engines.get_engine("spark")

    assert isinstance(engine(), SparkEngine)
    (made.dataset.folder / ORIGIN_FILE).write_text("https://example.com/output.yaml")
    assert isinstance(engine(), Sandbox)
    trust = Trust(deriving.workspace)
    assert [(execution.kind, execution.text) for execution in trust.list_executions(made)] == [
        ("query", "SELECT event_time, x FROM input\n")
    ]
    trust.require_trust(made)  # it runs all the same
    trust.grant(made)
    assert isinstance(engine(), SparkEngine)
    transform = made.dataset.state().transform
    assert transform is not None
    other = Sql(engine="spark", queries=[SqlQueryStep(query="SELECT event_time FROM input")])
    deriving.commit(made, [replace(transform, transform=other)])
    assert isinstance(engine(), Sandbox)
