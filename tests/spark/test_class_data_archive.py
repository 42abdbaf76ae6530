"""The keeping of class-data archives; that Spark starts with one and without is in test_session."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from odf_engine.spark.runtime import class_data_archive
from odf_engine.spark.runtime.archive_recorder import _exclusive_lock, record_archive
from odf_engine.spark.runtime.class_data_archive import ArchiveTrainer
from odf_engine.spark.runtime.jvm import Java, find_java
from tests.waiting import wait_until


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    """A Java whose archives go to a folder of this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ODF_SPARK_ARCHIVE", raising=False)
    class_data_archive.archive_folder().mkdir(parents=True)
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    return Java(home, 21, "21.0.8", "setting")


def made(folder: Path, java: Java, size: int = 100) -> Path:
    """An archive as a recording leaves it."""
    folder.mkdir(exist_ok=True)
    file = folder / class_data_archive.archive_path(java).name
    file.write_bytes(b"x" * size)
    return file


def test_no_archive_is_found_at_first(java: Java) -> None:
    assert class_data_archive.find_archive(java) is None
    assert class_data_archive.use_flags(java, None) == []


def test_published_archive_is_found(java: Java, tmp_path: Path) -> None:
    class_data_archive.publish_archive(java, made(tmp_path / "new", java))
    found = class_data_archive.find_archive(java)
    assert found == class_data_archive.archive_path(java)
    assert f"-XX:SharedArchiveFile={found}" in class_data_archive.use_flags(java, found)


def test_archive_is_used_together_with_its_base(java: Java, tmp_path: Path) -> None:
    file = made(tmp_path / "new", java)
    file.with_suffix(".base").write_bytes(b"base")
    assert f"-XX:SharedArchiveFile={file.with_suffix('.base')}" in class_data_archive.record_flags(java, file)
    class_data_archive.publish_archive(java, file)
    found = class_data_archive.find_archive(java)
    assert found is not None
    assert f"-XX:SharedArchiveFile={found.with_suffix('.base')}:{found}" in class_data_archive.use_flags(
        java, found
    )
    found.with_suffix(".base").unlink()
    assert class_data_archive.find_archive(java) is None


def test_truncated_or_discarded_archive_is_not_used(java: Java, tmp_path: Path) -> None:
    class_data_archive.publish_archive(java, made(tmp_path / "new", java))
    class_data_archive.archive_path(java).write_bytes(b"x")
    assert class_data_archive.find_archive(java) is None
    class_data_archive.publish_archive(java, made(tmp_path / "new", java))
    assert class_data_archive.find_archive(java) is not None
    class_data_archive.discard_archive(java)
    assert class_data_archive.find_archive(java) is None


@pytest.mark.parametrize("note", ["", "{", "[]", "7", '{"other": 1}', '{"x": {}}'])
def test_archive_with_invalid_note_is_not_used(java: Java, tmp_path: Path, note: str) -> None:
    class_data_archive.publish_archive(java, made(tmp_path / "new", java))
    class_data_archive.archive_path(java).with_suffix(".json").write_text(note)
    assert class_data_archive.find_archive(java) is None


def test_archive_is_disabled_by_environment_variable(
    java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class_data_archive.publish_archive(java, made(tmp_path / "new", java))
    monkeypatch.setenv("ODF_SPARK_ARCHIVE", "0")
    assert class_data_archive.find_archive(java) is None


def test_each_java_has_its_own_archive(java: Java) -> None:
    newer = Java(java.home, 21, "21.0.9", "setting")
    assert class_data_archive.archive_path(newer) != class_data_archive.archive_path(java)
    before = class_data_archive.archive_path(java)
    java.executable.write_text("#!/bin/sh\n# patched\n")
    assert class_data_archive.archive_path(java) != before


def test_only_the_newest_archives_are_kept(java: Java, tmp_path: Path) -> None:
    javas = [Java(java.home, 21, f"21.0.{update}", "setting") for update in range(5)]
    for place, older in enumerate(javas):
        class_data_archive.publish_archive(older, made(tmp_path / "new", older))
        note = class_data_archive.archive_path(older).with_suffix(".json")
        os.utime(note, (place, place))
    kept = [class_data_archive.find_archive(older) is not None for older in javas]
    assert kept == [False, False, True, True, True]
    assert len(list(class_data_archive.archive_folder().iterdir())) == 6


def test_java_25_uses_an_aot_cache(java: Java) -> None:
    newest = Java(java.home, 25, "25.0.2", "setting")
    file = class_data_archive.archive_path(newest)
    assert file.suffix == ".aot"
    assert f"-XX:AOTCache={file}" in class_data_archive.use_flags(newest, file)
    assert f"-XX:AOTCacheOutput={file}" in class_data_archive.record_flags(newest, file)


def test_only_one_process_records(java: Java) -> None:
    lock = class_data_archive.archive_path(java).with_suffix(".lock")
    with _exclusive_lock(lock) as alone:
        assert alone
        assert record_archive(java) is None


def test_training_waits_while_there_is_work(java: Java, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_data_archive, "_IDLE_SECONDS", 0.05)
    monkeypatch.setattr(class_data_archive, "_POLL_SECONDS", 0.01)
    asked: list[int] = []
    warmed: list[int] = []
    thread = ArchiveTrainer(java, lambda: asked.append(1) is None, lambda: warmed.append(1))
    thread.start()
    wait_until(lambda: len(asked) > 20)
    assert thread.is_alive()
    thread.stop()
    assert not thread.is_alive()
    assert warmed == []
    assert list(class_data_archive.archive_folder().iterdir()) == []


def test_trainer_with_existing_archive_only_warms_up(java: Java, tmp_path: Path) -> None:
    class_data_archive.publish_archive(java, made(tmp_path / "new", java))
    warmed: list[int] = []
    thread = ArchiveTrainer(java, lambda: False, lambda: warmed.append(1))
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert warmed == [1]


def test_started_recorder_module_has_a_main_function(java: Java, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def start(command: list[str], **_: object) -> SimpleNamespace:
        started.append(command)
        return SimpleNamespace(wait=lambda: 0, poll=lambda: 0)

    monkeypatch.setattr(class_data_archive, "subprocess", SimpleNamespace(Popen=start, DEVNULL=None))
    monkeypatch.setattr(ArchiveTrainer, "_wait_until_idle", lambda self: True)
    thread = ArchiveTrainer(java, lambda: True, lambda: None)
    thread.start()
    thread.join(60)
    ((_, option, module, home),) = started
    assert (option, home) == ("-m", str(java.home))
    assert callable(import_module(module).main)


def test_archive_of_real_java_is_in_the_archive_folder() -> None:
    assert class_data_archive.archive_path(find_java()).parent == class_data_archive.archive_folder()
