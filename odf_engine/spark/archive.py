"""Class-data archives: what Java learned about Spark's classes in one start, kept for the next.

With an archive Spark starts in a third of the time. An archive belongs to one Java, one pyspark and
one class path; it lies in the user's cache folder, and it may vanish or break without harm.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Final

from odf_engine.spark.java import Java
from odf_engine.spark.launch import class_path

_REVISION: Final = 2
"""Counts up when flags or the recorded job change, so that old archives are not used."""

_QUIET: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
_QUIET_AHEAD_OF_TIME: Final = ("-Xlog:aot*=off", "-Xlog:cds*=off")
_BASE_SECONDS: Final = 120.0


def enabled() -> bool:
    """Whether archives are wanted: ``ODF_SPARK_ARCHIVE=0`` switches them off."""
    return os.environ.get("ODF_SPARK_ARCHIVE", "1") != "0"


def folder() -> Path:
    """Where archives lie, shared by all workspaces of a user."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("odf-workstation")) / "spark"


def path_for(java: Java) -> Path:
    """Where the archive for this Java and this pyspark is, or would be."""
    program = java.executable.resolve()
    parts = [str(_REVISION), java.full_version]
    for file in (program, *map(Path, class_path())):
        status = file.stat()
        parts += [str(file), str(status.st_size), str(status.st_mtime_ns)]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    return folder() / f"{key}{'.aot' if _ahead_of_time(java) else '.jsa'}"


def find(java: Java) -> Path | None:
    """The archive to start with, when there is a whole one."""
    if not enabled():
        return None
    path = path_for(java)
    try:
        sizes = json.loads(_note(path).read_text(encoding="utf-8"))
        whole = all((path.parent / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return None
    return path if whole and path.name in sizes else None


def discard(java: Java) -> None:
    """Forgets the archive: it did not work."""
    _note(path_for(java)).unlink(missing_ok=True)


def flags_to_use(java: Java, archive: Path | None) -> list[str]:
    """Flags of Java to start with an archive; none without."""
    if archive is None:
        return []
    if _ahead_of_time(java):
        return [f"-XX:AOTCache={archive}", *_QUIET_AHEAD_OF_TIME]
    base = _base(archive)
    parts = [str(base), str(archive)] if base.exists() else [str(archive)]
    return [f"-XX:SharedArchiveFile={os.pathsep.join(parts)}", *_QUIET]


def flags_to_record(java: Java, archive: Path) -> list[str]:
    """Flags of Java to write an archive when it ends; see :func:`make_base`."""
    if _ahead_of_time(java):
        return [f"-XX:AOTCacheOutput={archive}", *_QUIET_AHEAD_OF_TIME]
    base = _base(archive)
    shared = [f"-XX:SharedArchiveFile={base}"] if base.exists() else []
    return [*shared, f"-XX:ArchiveClassesAtExit={archive}", *_QUIET]


def make_base(java: Java, archive: Path) -> None:
    """Makes the archive of Java's own classes, for a Java that came without one."""
    if _ahead_of_time(java) or any((java.home / "lib" / "server").glob("classes*.jsa")):
        return
    subprocess.run(
        [str(java.executable), "-Xshare:dump", f"-XX:SharedArchiveFile={_base(archive)}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=_BASE_SECONDS,
    )


def publish(java: Java, made: Path) -> None:
    """Puts a freshly made archive in its place, and last a note that says it is whole."""
    target = path_for(java)
    files = {target: made}
    if _base(made).exists():
        files[_base(target)] = _base(made)
    discard(java)
    sizes = {final.name: file.stat().st_size for final, file in files.items()}
    for final, file in files.items():
        file.replace(final)
    fresh = made.with_suffix(".json")
    fresh.write_text(json.dumps(sizes), encoding="utf-8")
    fresh.replace(_note(target))


def _ahead_of_time(java: Java) -> bool:
    return java.version >= 25


def _base(archive: Path) -> Path:
    return archive.with_suffix(".base")


def _note(archive: Path) -> Path:
    return archive.with_suffix(".json")
