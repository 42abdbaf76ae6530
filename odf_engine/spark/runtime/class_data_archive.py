"""Class-data archives (AppCDS): use, background background recording."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from odf_engine.spark.runtime.jvm import Java, class_path

_REVISION: Final = 2
"""Increment when the flags or the recorded job change, so that older archives are not used."""
_QUIET: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
_QUIET_AHEAD_OF_TIME: Final = ("-Xlog:aot*=off", "-Xlog:cds*=off")
_BASE_SECONDS: Final = 120.0
_KEPT_ARCHIVES: Final = 3
"""An archive has 180 MB, and each version of Java or PySpark needs its own."""


def _use() -> str:
    """Return ``0`` if archives are not used, ``read`` if missing ones are not recorded, or another text."""
    return os.environ.get("ODF_SPARK_ARCHIVE", "1")


def archive_folder() -> Path:
    """Return the folder of the archives, shared by all workspaces of a user."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("odf-workstation")) / "spark"


def archive_path(java: Java) -> Path:
    """Return the path of the archive for this Java runtime and the installed PySpark, whether it exists or
    not.
    """
    program = java.executable.resolve()
    parts = [str(_REVISION), java.full_version]
    for file in (program, *map(Path, class_path())):
        status = file.stat()
        parts += [str(file), str(status.st_size), str(status.st_mtime_ns)]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    return archive_folder() / f"{key}{'.aot' if _uses_aot_cache(java) else '.jsa'}"


def find_archive(java: Java) -> Path | None:
    """Return the archive to start with, or None if there is no complete one."""
    if _use() == "0":
        return None
    path = archive_path(java)
    try:
        sizes = json.loads(_note_path(path).read_text(encoding="utf-8"))
        is_complete = all((path.parent / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return None
    return path if is_complete and path.name in sizes else None


def discard_archive(java: Java) -> None:
    """Invalidate the archive after a failed start."""
    _note_path(archive_path(java)).unlink(missing_ok=True)


def use_flags(java: Java, archive: Path | None) -> list[str]:
    """Return the JVM flags that use an archive; empty without one."""
    if archive is None:
        return []
    if _uses_aot_cache(java):
        return [f"-XX:AOTCache={archive}", *_QUIET_AHEAD_OF_TIME]
    base = _base_path(archive)
    parts = [str(base), str(archive)] if base.exists() else [str(archive)]
    return [f"-XX:SharedArchiveFile={os.pathsep.join(parts)}", *_QUIET]


def record_flags(java: Java, archive: Path) -> list[str]:
    """Return the JVM flags that write an archive at exit; see :func:`create_base_archive`."""
    if _uses_aot_cache(java):
        return [f"-XX:AOTCacheOutput={archive}", *_QUIET_AHEAD_OF_TIME]
    base = _base_path(archive)
    shared = [f"-XX:SharedArchiveFile={base}"] if base.exists() else []
    return [*shared, f"-XX:ArchiveClassesAtExit={archive}", *_QUIET]


def create_base_archive(java: Java, archive: Path) -> None:
    """Create the base archive of Java's own classes, for a Java runtime without one."""
    if _uses_aot_cache(java) or any((java.home / "lib" / "server").glob("classes*.jsa")):
        return
    subprocess.run(
        [str(java.executable), "-Xshare:dump", f"-XX:SharedArchiveFile={_base_path(archive)}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=_BASE_SECONDS,
    )


def publish_archive(java: Java, archive: Path) -> None:
    """Move a new archive to its final path, then write the note that marks it complete; remove the oldest."""
    target = archive_path(java)
    files = {target: archive}
    if _base_path(archive).exists():
        files[_base_path(target)] = _base_path(archive)
    discard_archive(java)
    sizes = {final.name: file.stat().st_size for final, file in files.items()}
    for final, file in files.items():
        file.replace(final)
    note = archive.with_suffix(".json")
    note.write_text(json.dumps(sizes), encoding="utf-8")
    note.replace(_note_path(target))
    notes = sorted(target.parent.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    for old in notes[:-_KEPT_ARCHIVES]:
        for file in old.parent.glob(f"{old.stem}.*"):
            file.unlink(missing_ok=True)


def _uses_aot_cache(java: Java) -> bool:
    return java.version >= 25


def _base_path(archive: Path) -> Path:
    return archive.with_suffix(".base")


def _note_path(archive: Path) -> Path:
    return archive.with_suffix(".json")


_IDLE_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.5


class ArchiveTrainer(threading.Thread):
    """Warms up Spark, then starts the recording process once no job has run for some seconds.

    Args:
        java: the Java runtime of the archive.
        busy: whether a job is waiting or running; called twice a second.
        warm_up: runs a small job.
    """

    def __init__(self, java: Java, busy: Callable[[], bool], warm_up: Callable[[], None]) -> None:
        super().__init__(name="class-data-archive", daemon=True)
        self._java = java
        self._busy = busy
        self._warm_up = warm_up
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Warm up, wait for an idle period, and record the archive."""
        if not self._busy():
            self._warm_up()
        if _use() in ("0", "read") or find_archive(self._java) is not None or not self._wait_until_idle():
            return
        with self._lock:
            if self._stopped.is_set():
                return
            self._process = subprocess.Popen(
                [sys.executable, "-m", "odf_engine.spark.runtime.archive_recorder", str(self._java.home)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._process.wait()

    def stop(self) -> None:
        """Stop; a recording in progress ends immediately and leaves no files."""
        self._stopped.set()
        with self._lock:
            process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait()
        if self.is_alive():
            self.join()

    def _wait_until_idle(self) -> bool:
        idle = 0.0
        while idle < _IDLE_SECONDS:
            if self._stopped.wait(_POLL_SECONDS):
                return False
            idle = 0.0 if self._busy() else idle + _POLL_SECONDS
        return True
