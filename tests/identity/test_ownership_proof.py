"""Proofs of ownership: what was made is right, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from odf_engine.errors import BadData
from odf_engine.identity import ownership_proof as proofs
from odf_engine.identity.did import DatasetId, KeyStore
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.ownership_proof import (
    OwnershipProof,
    create_proof,
    list_proof_files,
    read_proof,
    store_proof,
    verify_proof,
)

# RFC 8032, section 7.1, test 3: a secret key, its public key, a message of two bytes, its signature.
SECRET = bytes.fromhex("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7")
PUBLIC = bytes.fromhex("fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025")
SIGNATURE = bytes.fromhex(
    "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
    "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
)
OWNER = DatasetId(PUBLIC)
BLOCK = Multihash.sha3_256(b"a block")


def pem() -> str:
    from Crypto.PublicKey import ECC

    return ECC.construct(curve="ed25519", seed=SECRET).export_key(format="PEM")


KEY = pem()
PROOF = create_proof(KEY, BLOCK)


def test_signature_matches_the_rfc_example() -> None:
    key = proofs.load_private_key(KEY)
    assert proofs.dataset_id_of_key(key) == OWNER
    assert proofs.sign(key, b"\xaf\x82") == SIGNATURE
    assert proofs.verify_signature(OWNER, b"\xaf\x82", SIGNATURE)
    assert not proofs.verify_signature(OWNER, b"\xaf\x83", SIGNATURE)


def test_proof_signs_the_multihash_of_the_block() -> None:
    """So that a program of somebody else can check it with nothing but this sentence."""
    assert bytes(BLOCK)[:2] == b"\x16\x20" and len(bytes(BLOCK)) == 34
    assert proofs.verify_signature(OWNER, b"\x16\x20" + BLOCK.digest, PROOF.signature)
    assert json.loads(bytes(PROOF)) == {
        "kind": "DatasetProof",
        "version": 1,
        "datasetId": str(OWNER),
        "head": str(BLOCK),
        "signature": "f" + PROOF.signature.hex(),
    }


@given(st.binary(max_size=100))
@example(b"")
def test_proof_of_any_block_is_valid_and_round_trips(data: bytes) -> None:
    block = Multihash.sha3_256(data)
    made = create_proof(KEY, block)
    verify_proof(made, OWNER, block)
    assert OwnershipProof.from_bytes(bytes(made)) == made


@given(st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=200), st.integers(0, 511))
def test_actor_is_signed_with_the_head(actor: str, bit: int) -> None:
    made = create_proof(KEY, BLOCK, actor)
    verify_proof(made, OWNER, BLOCK)
    assert OwnershipProof.from_bytes(bytes(made)) == made
    assert made.signature == PROOF.signature  # readers that do not know actors verify the same bytes
    signature = bytearray(made.actor_signature)
    signature[bit // 8] ^= 1 << bit % 8
    for forged in (
        replace(made, actor=actor + "x"),
        replace(made, actor_signature=bytes(signature)),
        replace(made, actor_signature=create_proof(KEY, Multihash.sha3_256(b"other"), actor).actor_signature),
        replace(PROOF, actor=actor),
    ):
        with pytest.raises(BadData, match="actor is not signed"):
            verify_proof(forged, OWNER, BLOCK)


@pytest.mark.parametrize("actor", ["x" * 201, "a\nb", "\x1b[2J", "\u202eanna"])
def test_actor_with_control_characters_is_rejected(actor: str) -> None:
    with pytest.raises(BadData, match="actor is not 200 printable characters"):
        OwnershipProof.from_bytes(bytes(create_proof(KEY, BLOCK, actor)))


@given(st.integers(0, 511))
def test_signature_with_a_flipped_bit_is_rejected(bit: int) -> None:
    signature = bytearray(PROOF.signature)
    signature[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadData, match="signature"):
        verify_proof(OwnershipProof(OWNER, BLOCK, bytes(signature)), OWNER, BLOCK)


@given(st.integers(0, 255))
def test_a_proof_is_for_one_block_and_one_dataset(bit: int) -> None:
    flip = lambda data: (int.from_bytes(data, "big") ^ 1 << bit).to_bytes(32, "big")  # noqa: E731
    other = Multihash(BLOCK.code, flip(BLOCK.digest))
    with pytest.raises(BadData, match=r"is for block .*, not for"):
        verify_proof(PROOF, OWNER, other)
    with pytest.raises(BadData, match="signature"):
        verify_proof(OwnershipProof(OWNER, other, PROOF.signature), OWNER, other)
    stranger = DatasetId(flip(PUBLIC))
    with pytest.raises(BadData, match="another dataset"):
        verify_proof(PROOF, stranger, BLOCK)
    with pytest.raises(BadData, match="signature"):
        verify_proof(OwnershipProof(stranger, BLOCK, PROOF.signature), stranger, BLOCK)


def test_public_key_of_small_order_is_rejected() -> None:
    """With a public point of small order, a signature of nothing at all would be right."""
    nobody = DatasetId(b"\x01" + bytes(31))
    assert not proofs.verify_signature(nobody, b"anything", b"\x01" + bytes(63))


@given(st.binary(max_size=300))
@example(b"\xff\xfe")
@example(b"[" * 4096)
@example(b'{"kind": 1}')
@example(b'{"kind":"DatasetProof","version":2,"datasetId":"","head":"","signature":""}')
@example(b'{"kind":"DatasetProof","version":1,"datasetId":"did:odf:zz","head":"f","signature":""}')
@example(bytes(PROOF)[:-20])
@example(bytes(PROOF).replace(b'"signature": "f', b'"signature": "f00'))
@example(bytes(PROOF) + b" " * 4096)
def test_invalid_proof_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(BadData, match="proof"):
        OwnershipProof.from_bytes(data)


def test_proofs_lie_beside_the_chain(tmp_path: Path) -> None:
    assert read_proof(tmp_path, BLOCK) is None and list(list_proof_files(tmp_path)) == []
    path = store_proof(tmp_path, PROOF)
    assert path == tmp_path / "proofs" / str(BLOCK)
    assert read_proof(tmp_path, BLOCK) == PROOF
    store_proof(tmp_path, PROOF)
    (path.parent / ".pending-1").write_text("half")
    assert list(list_proof_files(tmp_path)) == [str(BLOCK)]
    path.write_bytes(bytes(PROOF)[:100])
    with pytest.raises(BadData) as error:
        read_proof(tmp_path, BLOCK)
    assert error.value.where == str(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(BadData, match="cannot be read"):
        read_proof(tmp_path, BLOCK)


def test_keys_of_other_kinds_are_refused() -> None:
    from Crypto.PublicKey import ECC

    curve = ECC.generate(curve="P-256")
    public = ECC.construct(curve="ed25519", seed=SECRET).public_key()
    for text in (curve.export_key(format="PEM"), public.export_key(format="PEM"), "nothing", "", KEY[:60]):
        with pytest.raises(BadData):
            proofs.load_private_key(text)
    locked = proofs.load_private_key(KEY).export_key(
        format="PEM", passphrase="open", protection="PBKDF2WithHMAC-SHA512AndAES256-CBC"
    )
    assert proofs.dataset_id_of_key(proofs.load_private_key(locked, "open")) == OWNER
    for wrong in (None, "", "opem"):
        with pytest.raises(BadData, match="passphrase"):
            proofs.load_private_key(locked, wrong)


def test_a_workspace_keeps_keys_by_id(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys")
    assert list(keys.ids()) == []
    made = keys.generate()
    keys.store(OWNER, KEY)
    (tmp_path / "keys" / "logins.json").write_text("{}")
    (tmp_path / "keys" / "notes.pem").write_text("")
    assert set(keys.ids()) == {made, OWNER}
    assert (tmp_path / "keys" / f"{OWNER.multibase}.pem").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        keys.store(OWNER, "another")
    assert create_proof(keys.private_key_pem(OWNER), BLOCK) == PROOF
