"""The two tiers of tests, their processes, and the fixtures that all of them share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odf_engine.spark.runtime.session import SparkRuntime

# A Java process of a test ends before the second compiler pays. Without it, the code cache would have 48 MB,
# and Java 17 would remove compiled methods and compile them again: a tenth of the processor time.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m")
# Workers of tests use a class-data archive but record none: see `pytest_sessionstart`.
os.environ.setdefault("ODF_SPARK_ARCHIVE", "read")
# Hundreds of commands are started: each would compile the program anew. To compile the tests themselves, with
# their assertions, takes 10 seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How busy the machine is says nothing about the project.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

_MAX_PROCESSES = 4
_LASTING = ("runtime", "demo", "help_pages")
"""Expensive fixtures that last until their process ends, all with Spark. Tests of a folder that use one of
them run in the same process."""
_MOST_TESTS = 200
"""Tests of a folder with Spark that run in the same process."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Use one process more than there are cores, since tests wait at times; only one for single files."""
    if any(".py" in argument for argument in config.args):
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores + 1, _MAX_PROCESSES) if cores > 1 else 0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--complete``."""
    parser.addoption("--complete", action="store_true", help="run all tests, also the long ones")


def _deselect_long_tests(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests marked ``complete``, unless all tests or single files were requested."""
    if config.getoption("complete") or any(".py" in argument for argument in config.args):
        return
    cases: Counter[str] = Counter()
    selected: list[pytest.Item] = []
    deselected: list[pytest.Item] = []
    for item in items:
        test = item.nodeid.partition("[")[0]
        cases[test] += 1
        mark = item.get_closest_marker("complete")
        is_short = mark is None or cases[test] <= mark.kwargs.get("after", 0)
        (selected if is_short else deselected).append(item)
    config.hook.pytest_deselected(items=deselected)
    items[:] = selected


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tier, mark tests that use Spark, and group tests by process.

    Tests with expensive fixtures come first. The groups of single files, at the end, are small, so that no
    process waits long for the others. This runs before the plugins that select and distribute tests, since
    they read the marks.
    """
    _deselect_long_tests(config, items)
    ranks: dict[pytest.Item, int] = {}
    parts: dict[tuple[str, str], int] = {}
    counts: Counter[str] = Counter()
    for item in items:
        file = item.nodeid.partition("::")[0]
        used = [name for name in _LASTING if name in getattr(item, "fixturenames", ())]
        group = f"{file.rpartition('/')[0]} {used[0]}" if used else file
        if used[:1] == ["runtime"]:
            counts[group] += 1
            group = f"{group} {parts.setdefault((group, file), counts[group] // _MOST_TESTS)}"
        item.add_marker(pytest.mark.xdist_group(group))
        if used:
            item.add_marker(pytest.mark.spark)
        ranks[item] = _LASTING.index(used[0]) if used else len(_LASTING)
    items.sort(key=ranks.__getitem__)


_RECORD_ARCHIVE = """
import signal, sys
from odf_engine.spark.runtime.archive_recorder import record_archive
from odf_engine.spark.runtime.jvm import find_java
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
record_archive(find_java())
"""
_recorder = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let ^C interrupt, and record a class-data archive while the first tests run, unless there is one.

    Shells let background commands ignore ^C, and the programs under test would inherit that. The archive
    halves the processor time of starting Spark, which a run of all tests does about a hundred times.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config = session.config
    if config.getoption("tx", None) and not hasattr(config, "workerinput"):
        config.stash[_recorder] = subprocess.Popen(
            [sys.executable, "-c", _RECORD_ARCHIVE], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the recording of the archive, if it has not ended."""
    recorder = session.config.stash.get(_recorder, None)
    if recorder is not None:
        recorder.terminate()
        recorder.wait()


@pytest.fixture(scope="session", autouse=True)
def _no_user_configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither read nor write the configuration of the person who runs them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("user-configuration")))
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """Golden vectors and real files that lie beside the project; the test skips where they are absent."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("the shared vectors and data files are not here")
    return folder


_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_GENERATED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkRuntime]:
    """Spark, started once in each process of tests, on two cores with little memory.

    It interprets expressions: to compile a class for each query of a few rows takes a fifth of the processor
    time. Spark in workers, and in tests with the fixture `generated_code`, compiles them, as for users.
    """
    from odf_engine.spark.runtime.session import SparkRuntime
    from odf_engine.spark.runtime.spark_conf import SparkOptions

    folder = tmp_path_factory.mktemp("spark")
    spark = SparkRuntime(
        SparkOptions(master="local[2]", driver_memory="768m", conf=_INTERPRETED),
        folder / "spark.log",
        folder / "cache",
    )
    spark.start()
    yield spark
    spark.stop()


@pytest.fixture
def generated_code(runtime: SparkRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluate the queries of a test with compiled classes, as users do."""
    open_session = runtime.session

    def session() -> SparkSession:
        opened = open_session()
        for name, value in _GENERATED.items():
            opened.conf.set(name, value)
        return opened

    monkeypatch.setattr(runtime, "session", session)
