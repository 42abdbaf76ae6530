"""Hashes and identities as bytes and as text: golden values, every encoding, malformed input."""

from __future__ import annotations

import base64
import pickle
import stat
from pathlib import Path

import pytest
from Crypto.PublicKey import ECC
from hypothesis import given
from hypothesis import strategies as st

from odf_engine.errors import InvalidIdentity, NotFound
from odf_engine.identity.did import DatasetId, KeyStore
from odf_engine.identity.multiformats import (
    ARROW0_SHA3_256,
    ED25519_PUB,
    SHA2_256,
    SHA3_256,
    Multihash,
    base58btc_encode,
    multibase_decode,
    multibase_encode,
    varint_decode,
    varint_encode,
)

HASH_HEX = "162008c3792b2a4deed1bd7ea2328fb5de5531eccf0fbfa04a7d800cdc267137c635"
HASH_BASE58 = "zW1a3CNT52HXiJNniLkWMeev3CPRy9QiNRMWGyTrVNg4hY8"
ID_TEXT = "did:odf:fed012e6fcce36701dc791488e0d0b1745cc1e33a4c1c9fcc41c63bd343dbbe0970e6"
ID_BASE58 = "z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"


def _b64(data: bytes, altchars: bytes, *, pad: bool) -> str:
    text = base64.b64encode(data, altchars).decode()
    return text if pad else text.rstrip("=")


ENCODERS = {
    "f": lambda data: data.hex(),
    "F": lambda data: data.hex().upper(),
    "b": lambda data: base64.b32encode(data).decode().lower().rstrip("="),
    "B": lambda data: base64.b32encode(data).decode().rstrip("="),
    "z": lambda data: base58btc_encode(data)[1:],
    "m": lambda data: _b64(data, b"+/", pad=False),
    "u": lambda data: _b64(data, b"-_", pad=False),
    "U": lambda data: _b64(data, b"-_", pad=True),
}


@pytest.mark.parametrize("prefix", ENCODERS)
@given(data=st.binary(max_size=80))
def test_every_final_encoding_decodes(prefix: str, data: bytes):
    assert multibase_decode(prefix + ENCODERS[prefix](data)) == data


# The test vectors of the multibase specification for "yes mani !" and leading zeros.
@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("f796573206d616e692021", b"yes mani !"),
        ("F796573206D616E692021", b"yes mani !"),
        ("bpfsxgidnmfxgsibb", b"yes mani !"),
        ("BPFSXGIDNMFXGSIBB", b"yes mani !"),
        ("z7paNL19xttacUY", b"yes mani !"),
        ("meWVzIG1hbmkgIQ", b"yes mani !"),
        ("ueWVzIG1hbmkgIQ", b"yes mani !"),
        ("UeWVzIG1hbmkgIQ==", b"yes mani !"),
        ("f00796573206d616e692021", b"\0yes mani !"),
        ("z17paNL19xttacUY", b"\0yes mani !"),
        ("baaahszltebwwc3tjeaqq", b"\0\0yes mani !"),
        ("z117paNL19xttacUY", b"\0\0yes mani !"),
        ("f", b""),
        ("z", b""),
        ("fAb", b"\xab"),
        ("FaB", b"\xab"),
    ],
)
def test_multibase_matches_the_published_vectors(text: str, data: bytes):
    assert multibase_decode(text) == data


@pytest.mark.parametrize(
    "text",
    [
        "", "x00", "0101", "9123", "f0", "f0g", "f 00", "f00\n", "f0x00", "b1", "b8", "ba", "bab=", "z0",
        "zO", "zI", "zl", "mA", "mAA=", "mAA==", "mA-", "uA+", "uAA/", "UAA", "UAA=", "UA===", "U=", "é",
        "fé", "f١٢",
        # low bits that no encoder would set
        "mAB", "uAR", "UAB==", "bab",
        "z" + "2" * 5000, "f" + "0" * 5000,
    ],
)  # fmt: skip
def test_malformed_multibase_is_refused(text: str):
    with pytest.raises(InvalidIdentity):
        multibase_decode(text)


@given(text=st.text(max_size=30))
def test_any_text_is_multibase_or_refused(text: str):
    try:
        data = multibase_decode(text)
    except InvalidIdentity:
        return
    again = text[0] + ENCODERS[text[0]](data)
    assert again.lower() == text.lower() if text[0] in "fFbB" else again == text


@given(data=st.binary(max_size=80))
def test_written_encoding_is_lower_case_base16(data: bytes):
    assert multibase_encode(data) == "f" + data.hex()


@pytest.mark.parametrize(
    ("number", "data"),
    [
        (0, b"\0"), (1, b"\1"), (127, b"\x7f"), (128, b"\x80\x01"), (SHA2_256, b"\x12"), (SHA3_256, b"\x16"),
        (ED25519_PUB, b"\xed\x01"), (ARROW0_SHA3_256, b"\x96\x80\xc0\x01"),
        (2**63 - 1, b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
    ],
)  # fmt: skip
def test_varints_match_known_encodings(number: int, data: bytes):
    assert varint_encode(number) == data
    assert varint_decode(b"x" + data + b"rest", 1) == (number, 1 + len(data))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x80\0", b"\xff\x80\0", b"\xff" * 9, b"\xff" * 9 + b"\1"])
def test_malformed_varint_is_rejected(data: bytes):
    with pytest.raises(InvalidIdentity):
        varint_decode(data)


@given(number=st.integers(0, 2**63 - 1))
def test_varints_round_trip(number: int):
    assert varint_decode(varint_encode(number)) == (number, len(varint_encode(number)))


def test_multihash_matches_the_golden_value():
    golden = Multihash.parse("f" + HASH_HEX)
    assert golden == Multihash.parse(HASH_BASE58) == Multihash.parse("F" + HASH_HEX.upper())
    assert golden.code == SHA3_256
    assert str(golden) == "f" + HASH_HEX
    assert golden.abbreviated == str(golden)[5:13]
    assert base58btc_encode(bytes(golden)) == HASH_BASE58
    assert repr(golden) == f"Multihash(f{HASH_HEX})"


def test_hash_text_starts_with_its_algorithm_prefix():
    assert str(Multihash(SHA3_256, bytes(32))).startswith("f1620")
    assert str(Multihash(ARROW0_SHA3_256, bytes(32))).startswith("f9680c00120")
    assert str(Multihash(SHA2_256, bytes(32))).startswith("f1220")
    # "prev" is what the golden blocks take as their previous block
    assert str(Multihash.sha3_256(b"prev")) == (
        "f16209eb949bd8ff0bb1d827f11809aebc6bd0d5955c7f368469a913c70d196620272"
    )


hashes = st.builds(
    Multihash, st.sampled_from([SHA2_256, SHA3_256, ARROW0_SHA3_256]), st.binary(min_size=32, max_size=32)
)


@pytest.mark.parametrize("prefix", ENCODERS)
@given(value=hashes)
def test_hashes_survive_every_encoding(prefix: str, value: Multihash):
    again = Multihash.parse(prefix + ENCODERS[prefix](bytes(value)))
    assert again == value
    assert hash(again) == hash(value)
    assert Multihash.from_bytes(bytes(value)) == value
    assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x16", b"\x16\x20", b"\x16\x20" + bytes(31), b"\x16\x1f" + bytes(32), b"\x16\x1f" + bytes(31),
        b"\x16\x21" + bytes(33), b"\x11\x20" + bytes(32), b"\x16\xa0\0" + bytes(32),
        b"\x96\x80\xc0" + bytes(32),
    ],
)  # fmt: skip
def test_malformed_multihash_is_rejected(data: bytes):
    with pytest.raises(InvalidIdentity):
        Multihash.from_bytes(data)


def test_hashes_cannot_change_and_differ_by_algorithm():
    value = Multihash(SHA3_256, bytes(32))
    assert value != Multihash(SHA2_256, bytes(32))
    assert value != str(value)
    with pytest.raises(AttributeError):
        value.code = SHA2_256


def test_dataset_id_matches_the_golden_value():
    golden = DatasetId.parse(ID_TEXT)
    assert golden == DatasetId.parse("did:odf:" + ID_BASE58) == DatasetId.parse("DID:odf:" + ID_BASE58)
    assert str(golden) == ID_TEXT
    assert len(str(golden)) == 77
    assert golden.multibase == ID_TEXT.removeprefix("did:odf:")
    assert len(bytes(golden)) == 34
    assert bytes(golden)[:2] == b"\xed\x01"


@pytest.mark.parametrize("prefix", ENCODERS)
@given(key=st.binary(min_size=32, max_size=32))
def test_ids_survive_every_encoding(prefix: str, key: bytes):
    value = DatasetId(key)
    assert DatasetId.parse("did:odf:" + prefix + ENCODERS[prefix](bytes(value))) == value
    assert DatasetId.from_bytes(bytes(value)) == value
    assert pickle.loads(pickle.dumps(value)) == value
    assert hash(DatasetId.parse(str(value))) == hash(value)


@pytest.mark.parametrize(
    "text",
    ["", "did:odf:", "did:key:" + ID_BASE58, ID_TEXT[8:], ID_TEXT[:-2], ID_TEXT + "00",
     "did:odf:" + HASH_BASE58,     "did:odf:fec01" + "00" * 32, " " + ID_TEXT, ID_TEXT + "\n"],
)  # fmt: skip
def test_malformed_id_is_rejected(text: str):
    with pytest.raises(InvalidIdentity):
        DatasetId.parse(text)


def test_ids_before_version_034_are_rejected_with_a_hint():
    with pytest.raises(InvalidIdentity, match=r"before Open Data Fabric 0\.34") as caught:
        DatasetId.from_bytes(b"\x01\xed\x01\x16\x20" + bytes(32))
    assert caught.value.hint


def test_keys_are_kept_for_their_owner_alone(tmp_path: Path):
    store = KeyStore(tmp_path / "ws" / "keys")
    first, second = store.generate(), store.generate()
    assert first != second
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    files = sorted(store.folder.iterdir())
    assert len(files) == 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert {file.name for file in files} == {f"{first.multibase}.pem", f"{second.multibase}.pem"}


def test_the_private_key_belongs_to_the_id(tmp_path: Path):
    store = KeyStore(tmp_path)
    dataset_id = store.generate()
    key = ECC.import_key(store.private_key_pem(dataset_id))
    assert key.has_private()
    assert key.public_key().export_key(format="raw") == dataset_id.public_key


def test_missing_key_raises_not_found(tmp_path: Path):
    store = KeyStore(tmp_path)
    dataset_id = store.generate()
    store.delete(dataset_id)
    store.delete(dataset_id)
    with pytest.raises(NotFound, match="is not in this workspace"):
        store.private_key_pem(dataset_id)
