"""Queries of datasets that are not trusted: shut in, and the same results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from odf_engine.errors import InvalidQuery, NotTrusted
from odf_engine.metadata.model import Sql, SqlQueryStep
from odf_engine.progress import Reporter
from odf_engine.spark.session import SparkRuntime
from odf_engine.transform.engines import engines_for
from odf_engine.transform.sandbox import Sandbox
from odf_engine.transform.spark_engine import SparkEngine
from odf_engine.transform.walls import PROGRAMS, Program, Walls, why_not
from odf_engine.verify.integrity import verify
from odf_engine.verify.replay import Replay
from odf_engine.workspace.config import Config, set_value
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import ORIGIN_FILE
from tests.transform.deriving import Deriving

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


def plain_walls(**more: dict[Path, Path]) -> Walls:
    system = [Path(each) for each in ("/usr", "/bin", "/lib", "/lib64", sys.prefix, sys.base_prefix)]
    return Walls({each: each for each in system} | more.get("read", {}), more.get("write", {}))


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> Program:
    if (reason := why_not(request.param, plain_walls())) is not None:
        pytest.skip(f"{request.param}: {reason}")
    return request.param


def test_what_is_seen_from_within(tmp_path: Path, program: Program) -> None:
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "in" / "rows = 1").write_text("rows")
    (tmp_path / "secret").write_text("secret")
    walls = plain_walls(read={Path("/x/in"): tmp_path / "in"}, write={Path("/x/out"): tmp_path / "out"})
    command = [sys.executable, "-c", LOOKS, "/x/in/rows = 1", "/x/out", str(tmp_path / "secret")]
    done = subprocess.run(walls.around(program, command), capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.split() == ["rows", "False", "False", "True", "False", "False", "True", "True"]
    assert (tmp_path / "out" / "new").exists()


@pytest.fixture
def shut_in() -> None:
    if all(why_not(each, plain_walls()) for each in PROGRAMS):
        pytest.skip("nothing can shut a process in here")


class Listening(Reporter):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def line(self, text: str, level: str = "info") -> None:
        self.lines.append(text)


def test_a_foreign_query_gives_the_same(deriving: Deriving, runtime: SparkRuntime, shut_in: None) -> None:
    root = deriving.root()
    made = deriving.derivative(
        "SELECT window.end AS event_time, sum(x) AS s FROM input GROUP BY window(event_time, '1 day')"
    )
    wrong = deriving.derivative("SELECT event_time,\n  nothing FROM input", name="wrong")
    (made.dataset.folder / ORIGIN_FILE).write_text("https://example.com/output.yaml")
    reporter, here = Listening(), deriving.engine
    with engines_for(deriving.workspace, made, runtime) as deriving.engine:
        for day in (1, 2):
            deriving.rows(root, (day, "a", day), (day, "b", 1))
            assert deriving.run(made, reporter) == 1
        with pytest.raises(InvalidQuery) as error:
            deriving.run(wrong)
    assert error.value.where == "query, line 2, column 3"
    said = [line for line in reporter.lines if "runs in a sandbox" in line]
    assert len(said) == 1 and said[0].startswith("output is not trusted")
    assert list((deriving.workspace.odf / "cache").glob("sandbox-*")) == []
    assert deriving.result(made, "s") == [(2,)]
    replay = Replay(deriving.workspace, made, here, reporter)
    assert verify(made.dataset, reporter, None, None, replay).findings == []


def test_where_no_sandbox_can_be_had(
    deriving: Deriving, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("odf_engine.transform.sandbox.why_not", lambda program, walls: "not permitted")
    deriving.rows(deriving.root(), (1, "a", 1))
    made = deriving.derivative("SELECT event_time, x FROM input")
    odf, here = deriving.workspace.odf, deriving.engine
    deriving.engine = Sandbox(Config(), odf / "cache", odf / "sandbox.log", "output", here)
    with pytest.raises(NotTrusted, match="bwrap: not permitted; unshare: not permitted") as error:
        deriving.run(made)
    assert "odf trust output" in str(error.value.hint) and "sandbox.allowWithout" in str(error.value.hint)
    allowed = set_value(Config(), "sandbox.allowWithout", "true")
    deriving.engine = Sandbox(allowed, odf / "cache", odf / "sandbox.log", "output", here)
    reporter = Listening()
    assert deriving.run(made, reporter) == 1
    assert "there is no sandbox here: the query runs like one's own, as allowed" in reporter.lines
    assert list((odf / "cache").glob("sandbox-*")) == []


def test_who_is_shut_in(deriving: Deriving, runtime: SparkRuntime) -> None:
    deriving.root()
    made = deriving.derivative("SELECT event_time, x FROM input")

    def engine() -> object:
        with engines_for(deriving.workspace, made, runtime) as engines:
            return engines.named("spark")

    assert isinstance(engine(), SparkEngine)
    (made.dataset.folder / ORIGIN_FILE).write_text("https://example.com/output.yaml")
    assert isinstance(engine(), Sandbox)
    trust = Trust(deriving.workspace)
    assert [(each.kind, each.text) for each in trust.what_runs(made)] == [
        ("query", "SELECT event_time, x FROM input\n")
    ]
    trust.check(made)  # it runs all the same
    trust.grant(made)
    assert isinstance(engine(), SparkEngine)
    transform = made.dataset.state().transform
    assert transform is not None
    other = Sql(engine="spark", queries=[SqlQueryStep(query="SELECT event_time FROM input")])
    deriving.commit(made, [replace(transform, transform=other)])
    assert isinstance(engine(), Sandbox)
