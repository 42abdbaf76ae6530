"""References: read tolerantly, swapped only when they are what was expected."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from odf_engine.errors import Conflict, MalformedBlock, NotFound
from odf_engine.identity.multiformats import Multihash, base58btc_encode
from odf_engine.storage.refs import RefStore

ONE, TWO = Multihash.sha3_256(b"1"), Multihash.sha3_256(b"2")


@pytest.fixture
def refs(tmp_path: Path) -> RefStore:
    return RefStore(tmp_path / "refs")


def test_reference_with_the_expected_value_is_replaced(refs: RefStore) -> None:
    assert refs.get("head") is None
    refs.compare_and_set("head", None, ONE)
    assert refs.get("head") == ONE
    refs.compare_and_set("head", ONE, TWO)
    assert (refs.folder / "head").read_bytes() == str(TWO).encode()  # and no newline
    assert [path.name for path in refs.folder.iterdir()] == ["head"]


@pytest.mark.parametrize("expected", [None, TWO])
def test_reference_with_an_unexpected_value_is_a_conflict(refs: RefStore, expected: Multihash | None) -> None:
    refs.compare_and_set("head", None, ONE)
    with pytest.raises(Conflict):
        refs.compare_and_set("head", expected, TWO)
    assert refs.get("head") == ONE


@pytest.mark.parametrize(
    "text",
    [f"{ONE}\n", f" \t{ONE}\r\n", base58btc_encode(bytes(ONE)), "F" + str(ONE)[1:].upper()],
)
def test_reference_in_another_spelling_or_with_whitespace_is_read(refs: RefStore, text: str) -> None:
    refs.folder.mkdir()
    (refs.folder / "head").write_text(text)
    assert refs.get("head") == ONE
    assert refs.read("head") == text.strip()


@pytest.mark.parametrize("content", [b"", b"nonsense", b"f1620", b"\xff\xfe", b"f" * 100_000])
def test_invalid_reference_is_rejected(refs: RefStore, content: bytes) -> None:
    refs.folder.mkdir()
    (refs.folder / "head").write_bytes(content)
    with pytest.raises(MalformedBlock) as caught:
        refs.get("head")
    assert caught.value.where == str(refs.folder / "head")


def test_only_one_concurrent_writer_wins(refs: RefStore, tmp_path: Path) -> None:
    refs.compare_and_set("head", None, ONE)
    won: list[Multihash] = []
    start = threading.Barrier(8)

    def swap(number: int) -> None:
        mine = Multihash.sha3_256(bytes([number]))
        start.wait()
        try:
            RefStore(tmp_path / "refs").compare_and_set("head", ONE, mine)
        except Conflict:
            return
        won.append(mine)

    threads = [threading.Thread(target=swap, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [refs.get("head")]


def test_lock_is_reentrant_and_exclusive(
    refs: RefStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odf_engine.storage.refs._LOCK_SECONDS", 0.05)
    other = RefStore(tmp_path / "refs")
    with refs.locked():
        with refs.locked():
            pass
        refs.compare_and_set("head", None, ONE)
        with pytest.raises(Conflict, match="lock"):
            other.compare_and_set("head", ONE, TWO)
    other.compare_and_set("head", ONE, TWO)


def test_unreadable_reference_is_not_found(refs: RefStore) -> None:
    (refs.folder / "head").mkdir(parents=True)
    with pytest.raises(NotFound, match="cannot be read"):
        refs.get("head")
