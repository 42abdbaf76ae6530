"""Archives of blocks: what is written is what kamu reads, and nothing but such an archive is read."""

from __future__ import annotations

import gzip
import io
import tarfile
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.errors import BadData, Unsupported
from odf_engine.identity.multiformats import Multihash, base58btc_encode
from odf_engine.sync.remotes.base import MAX_BLOCK_BYTES
from odf_engine.sync.smart import messages
from odf_engine.sync.smart.messages import read_archive, write_archive

HERE = "odf+http://host/city/"
MOST = 1 << 24


def named(data: bytes) -> tuple[Multihash, bytes]:
    return Multihash.sha3_256(data), data


def tar_of(*entries: tuple[str, bytes], change=lambda info: None) -> bytes:
    """An archive as the usual tool writes it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in entries:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0
            change(info)
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(out.getvalue(), mtime=0)


def read(data: bytes, blocks: int) -> list[tuple[Multihash, bytes]]:
    return list(read_archive(data, blocks, HERE))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=2000), unique=True, max_size=8))
def test_archive_round_trips(blocks):
    expected = [named(data) for data in blocks]
    assert read(write_archive(expected, MOST), len(blocks)) == expected


def test_archive_is_a_standard_tar():
    blocks = [named(b"one"), named(b"x" * 512), named(b"")]
    packed = write_archive(blocks, MOST)
    usual = tar_of(*((str(name), data) for name, data in blocks))
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert [(item.name, item.mode, item.mtime, item.size) for item in tar] == [
            (str(name), 0, 0, len(data)) for name, data in blocks
        ]
    assert gzip.decompress(usual).startswith(gzip.decompress(packed))  # but for zeros at its end
    assert read(usual, 3) == blocks
    assert write_archive(blocks, MOST) == packed


def test_names_in_base58_are_read():
    name, data = named(b"old")
    assert read(tar_of((base58btc_encode(bytes(name)), data)), 1) == [(name, data)]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_wrong_block_count_is_rejected(count):
    blocks = [named(b"one"), named(b"two")]
    with pytest.raises(BadData, match="announced"):
        read(write_archive(blocks, MOST), count)


@pytest.mark.parametrize(
    "kind",
    [
        *(tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE),
        *(tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, b"9"),
    ],
)
def test_entry_that_is_not_a_plain_file_is_rejected(kind):
    name, _ = named(b"one")

    def change(info):
        info.type, info.linkname = kind, "/etc/passwd"

    with pytest.raises(BadData, match="not a plain file"):
        read(tar_of((str(name), b""), change=change), 1)


@pytest.mark.parametrize(
    "name",
    ["../" + str(named(b"one")[0]), "./" + str(named(b"one")[0]), "/etc/passwd", "f1620", "", "\x1b[2J"],
)
def test_entry_name_that_is_not_a_hash_is_rejected(name):
    with pytest.raises(BadData, match="not a hash") as caught:
        read(tar_of((name, b"one")), 1)
    assert "\x1b" not in caught.value.message


def test_duplicate_block_is_rejected():
    name, data = named(b"one")
    other = base58btc_encode(bytes(name))
    with pytest.raises(BadData, match="twice"):
        read(tar_of((str(name), data), (other, data)), 2)


def test_oversized_block_is_rejected():
    with pytest.raises(BadData, match="more than 1,048,576 bytes"):
        read(tar_of((str(named(b"")[0]), bytes(MAX_BLOCK_BYTES + 1))), 1)


@pytest.mark.parametrize("size", [b"77777777777\0", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"xyz"])
def test_header_with_wrong_size_is_rejected(size):
    raw = bytearray(gzip.decompress(tar_of((str(named(b"one")[0]), b"one"))))
    raw[124 : 124 + len(size)] = size
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    with pytest.raises(BadData):
        read(gzip.compress(bytes(raw)), 1)


@pytest.mark.parametrize(
    "garbage",
    [b"", b"<html>", b"\x1f\x8b", gzip.compress(b"text", mtime=0), gzip.compress(b"x" * 9999, mtime=0)],
)
def test_unreadable_archive_is_rejected(garbage):
    with pytest.raises(BadData, match="cannot be read"):
        read(garbage, 1)


def test_a_bomb_is_refused_before_it_takes_memory():
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(1 << 20)
    parts = []
    for number in range(64):
        info = tarfile.TarInfo(str(named(b"%d" % number)[0]))
        info.size = len(zeros)
        parts.append(packer.compress(info.tobuf(tarfile.GNU_FORMAT)) + packer.compress(zeros))
    bomb = b"".join(parts) + packer.flush()
    tracemalloc.start()
    try:
        with pytest.raises(BadData, match="250 times its size"):
            for _ in read_archive(bomb, 64, HERE):
                pass
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_oversized_total_is_rejected(monkeypatch):
    monkeypatch.setattr(messages, "MAX_UNPACKED_BYTES", 2000)
    with pytest.raises(BadData, match="more than 2,000 bytes"):
        read(write_archive([named(b"one"), named(bytes(2000))], MOST), 2)


def test_blocks_that_exceed_a_message_are_not_written():
    noise = b"".join(Multihash.sha3_256(b"%d" % number).digest for number in range(100))
    with pytest.raises(Unsupported, match="more than 1,000 bytes"):
        write_archive([named(noise)], 1000)
