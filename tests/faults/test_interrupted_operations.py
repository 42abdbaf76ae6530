"""Operations that are interrupted anywhere leave a workspace that works: a part of two long forms."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from odf_engine.identity.did import KeyStore
from tests.faults.jail import run_jailed
from tests.faults.operations import OPERATIONS, describe_outcome, list_files, read_state, repair
from tests.faults.system_calls import UNTRACED


@pytest.mark.parametrize(
    ("program", "operations", "most"),
    [
        (
            "system_calls",
            "add delete compact compact-chain gc ingest-slices transform pull push-force fsck",
            2,
        ),
        ("crash_states", "add ingest-slices clone pull-many promote push", 3),
    ],
)
@pytest.mark.complete
def test_interrupted_operation_leaves_a_working_workspace(
    program: str, operations: str, most: int, tmp_path: Path
) -> None:
    """All operations in all places: run the programs by hand, without arguments."""
    command = [sys.executable, "-m", f"tests.faults.{program}", *operations.split(), "--most", str(most)]
    done = run_jailed(command, tmp_path, timeout=600)
    if done.returncode == UNTRACED:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def _fail_at(real: Callable[..., Any], part: str) -> Callable[..., Any]:
    """Return a function of the system that fails for paths with this part."""

    def call(path: Any, *arguments: Any, **options: Any) -> Any:
        if part in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, *arguments, **options)

    return call


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("transform", "/.pending-"),
        ("ingest", "/.pending-"),
        ("compact", "/info/keys/"),
        ("pull", "/.pending-"),
        ("clone", "/incoming/"),
        ("prove", "/.pending-"),
    ],
)
def test_a_file_that_cannot_be_removed_hides_no_outcome(name: str, part: str, tmp_path: Path) -> None:
    operation = OPERATIONS[name]
    operation.make(tmp_path)
    before = read_state(tmp_path)
    with mock.patch("os.unlink", _fail_at(os.unlink, part)):
        assert describe_outcome(lambda: operation.run(tmp_path)) == ""
    assert read_state(tmp_path) != before


@pytest.mark.parametrize("part", ["/cache/transform-", "/data"])
def test_an_error_of_the_disk_during_a_transaction_has_a_remedy(part: str, tmp_path: Path) -> None:
    operation = OPERATIONS["transform"]
    operation.make(tmp_path)
    with mock.patch("os.mkdir", _fail_at(os.mkdir, part)):
        outcome = describe_outcome(lambda: operation.run(tmp_path))
    assert "Input/output error" in outcome and "hint: check the disk" in outcome, outcome


@pytest.mark.parametrize(
    ("name", "folder"), [("delete", "datasets"), ("prove", "proofs"), ("update", "refs")]
)
def test_a_change_that_could_not_be_synced_is_not_reported_as_undone(
    name: str, folder: str, tmp_path: Path
) -> None:
    operation = OPERATIONS[name]
    operation.make(tmp_path)
    before = read_state(tmp_path)

    def sync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == folder:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with mock.patch("os.fsync", sync):
        outcome = describe_outcome(lambda: operation.run(tmp_path))
    assert "but could not be synced" in outcome and "do not repeat it" in outcome, outcome
    assert read_state(tmp_path) != before


def test_a_private_key_is_stored_after_the_folder_of_its_dataset(tmp_path: Path) -> None:
    """A power failure leaves no key without the folder by which the next command finds it."""
    OPERATIONS["add"].make(tmp_path)
    synced: set[Path] = set()
    store = KeyStore.store

    def store_later(keys: KeyStore, *arguments: Any) -> None:
        assert tmp_path / ".odf" / "datasets" in synced
        store(keys, *arguments)

    def sync(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())

    with mock.patch("os.fsync", sync), mock.patch.object(KeyStore, "store", store_later):
        assert describe_outcome(lambda: OPERATIONS["add"].run(tmp_path)) == ""


def test_the_repair_removes_a_lock_of_a_pull_without_its_folder(tmp_path: Path) -> None:
    OPERATIONS["add"].make(tmp_path)
    repair(tmp_path)
    before = list_files(tmp_path)
    incoming = tmp_path / ".odf" / "incoming"
    incoming.mkdir()
    (incoming / "1.lock").touch()
    repair(tmp_path)
    assert list_files(tmp_path) == before
