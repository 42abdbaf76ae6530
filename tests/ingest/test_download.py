"""What is kept of a download that broke off, and for how long; which addresses are public."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from odf_engine.base.config import FetchConfig
from odf_engine.base.progress import Reporter
from odf_engine.errors import Cancelled
from odf_engine.net import address_policy, download
from odf_engine.net.connector import Connector
from odf_engine.net.download import PartialDownload, run_with_retries

KILLED = """
import os, sys
from pathlib import Path
from odf_engine.net import download
download._SYNC = 1000
partial = download.PartialDownload(Path(sys.argv[1]), "key")
partial.restart(validator="one")
for _ in range(25):
    partial.write(bytes(100))
os._exit(9)
"""


def test_killed_process_leaves_only_synced_bytes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, cwd=Path.cwd())
    partial = PartialDownload(tmp_path, "key")
    assert partial.facts == {"validator": "one"}
    assert partial.size == 2_000
    partial.write(b"rest")
    partial.finish(tmp_path / "done")
    assert (tmp_path / "done").read_bytes() == bytes(2_000) + b"rest"
    assert [path.name for path in tmp_path.iterdir()] == ["done"]


def test_second_writer_does_not_change_a_partial_download(tmp_path: Path) -> None:
    first = PartialDownload(tmp_path, "key")
    first.restart(validator="one")
    first.write(b"first")
    second = PartialDownload(tmp_path, "key")
    second.restart(validator="one")
    second.write(b"other")
    second.close()
    first.close()
    third = PartialDownload(tmp_path, "key")
    assert third.size == 5
    third.finish(tmp_path / "done")
    assert (tmp_path / "done").read_bytes() == b"first"
    with pytest.raises(Cancelled):
        third.write(b"late")
    assert PartialDownload(tmp_path, "key").size == 0
    assert PartialDownload(tmp_path, "another key").size == 0


@pytest.mark.parametrize("harm", [b"", b"{}", b"[1]", b'{"size": 99, "facts": {"a": "b"}}'])
def test_invalid_facts_discard_a_partial_download(tmp_path: Path, harm: bytes) -> None:
    partial = PartialDownload(tmp_path, "key")
    partial.restart(validator="one")
    partial.write(b"first")
    partial.close()
    (facts,) = tmp_path.glob("*.json")
    facts.write_bytes(harm)
    assert PartialDownload(tmp_path, "key").size == (5 if b"99" in harm else 0)


def test_old_partial_downloads_are_removed(tmp_path: Path) -> None:
    for number in range(30):
        partial = PartialDownload(tmp_path, f"key {number}")
        partial.restart(validator="one")
        partial.write(b"first")
        partial.close()
        for path in tmp_path.glob("*.part"):
            if time.time() - path.stat().st_mtime < 30:  # the newest
                os.utime(path, (time.time() - 3_000 + number, time.time() - 3_000 + number))
    PartialDownload(tmp_path, "new").close()
    assert len(list(tmp_path.glob("*.part"))) == len(list(tmp_path.glob("*.json"))) == 20
    assert PartialDownload(tmp_path, "key 29").size == 5
    for path in tmp_path.glob("*.part"):
        os.utime(path, (time.time() - 8 * 86_400, time.time() - 8 * 86_400))
    PartialDownload(tmp_path, "new").close()
    assert [path for path in tmp_path.iterdir() if path.suffix in (".part", ".json")] == []


def test_nothing_is_kept_on_a_full_disk(tmp_path: Path) -> None:
    partial = PartialDownload(tmp_path, "key")
    partial.restart(validator="one")
    partial.write(b"first")

    def once() -> None:
        raise OSError(errno.ENOSPC, "no space left", "x.part")

    with pytest.raises(OSError, match="no space left") as caught:
        run_with_retries(once, partial=partial, abort=lambda: None, config=FetchConfig(), reporter=Reporter())
    assert download.is_disk_error(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True), ("8.8.8.8", True), ("2606:2800:220:1::1", True), ("64:ff9b::808:808", True),
        ("2002:808:808::1", True), ("::ffff:8.8.8.8", True),
        ("127.0.0.1", False), ("127.255.0.3", False), ("0.0.0.0", False), ("10.1.2.3", False),
        ("172.31.0.1", False), ("192.168.0.1", False), ("169.254.169.254", False), ("100.64.0.1", False),
        ("192.0.0.192", False), ("168.63.129.16", False), ("198.18.0.1", False), ("224.0.0.1", False),
        ("255.255.255.255", False), ("240.0.0.1", False), ("192.0.2.1", False),
        ("::1", False), ("::", False), ("fe80::1%eth0", False), ("fc00::1", False), ("fec0::1", False),
        ("ff02::1", False), ("::ffff:10.0.0.1", False), ("::7f00:1", False), ("64:ff9b::7f00:1", False),
        ("64:ff9b:1::1", False), ("2002:7f00:1::1", False), ("2001:0:1::1", False), ("2001:db8::1", False),
        ("fd00:ec2::254", False),
    ],
)  # fmt: skip
def test_private_and_reserved_addresses_are_not_public(address: str, public: bool) -> None:
    assert address_policy.is_public_address(address) is public


def test_connection_uses_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that says a public address first, and a private one when asked again, gains nothing."""
    answers = iter([["8.8.8.8", "10.0.0.1"], ["127.0.0.1"]])
    connected: list[tuple[str, int]] = []

    def resolve(host: str, port: int, **rest: object) -> list[tuple[object, ...]]:
        return [(0, 0, 0, "", (address, port)) for address in next(answers)]

    def connect(sock: object, address: tuple[str, int]) -> None:
        connected.append(address)
        raise TimeoutError

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    monkeypatch.setattr("socket.socket.connect", connect)
    connector = Connector(address_policy.PublicAddresses(), 1, Reporter())
    for _ in range(2):
        with pytest.raises(TimeoutError):
            connector.connect("rebinding.example", 80)
    assert connected == [("8.8.8.8", 80)] * 2
