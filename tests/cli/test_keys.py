"""Keys and proofs on the command line, checked with other programs where they support the format."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Odf, call_odf

ROOT = "com.example.cases"


@pytest.fixture
def made(fresh: Odf) -> Odf:
    """A workspace with one dataset."""
    assert fresh("add", "-", input=fresh("new", ROOT, "--root").out).code == 0
    return fresh


def dataset_id(odf: Odf) -> str:
    return odf("show", ROOT, "--json").json["id"]


def folder(odf: Odf) -> Path:
    return Path(odf("path", ROOT).out.strip())


def test_keys_are_listed_with_their_datasets(made: Odf) -> None:
    assert made("keys", "list", "--json").json == [{"id": dataset_id(made), "name": ROOT}]
    assert ROOT in made("keys", "list").out


def test_a_key_outlives_its_dataset(made: Odf, tmp_path: Path) -> None:
    identity, pem = dataset_id(made), made("keys", "export", ROOT).out
    copy = shutil.copytree(folder(made), tmp_path / "copy")
    refused = made("delete", ROOT)
    assert refused.code == 2 and "the private key is not deleted" in refused.err
    deleted = made("delete", ROOT, "-y")
    assert deleted.code == 0 and f"odf keys delete {identity}" in deleted.err
    assert made("keys", "list", "--json").json == [{"id": identity, "name": None}]
    assert "(not in this workspace)" in made("keys", "list").out
    fsck = made("fsck", "--repair", "--now", "--json")
    assert fsck.code == 0 and fsck.json["findings"] == []
    assert made("keys", "export", identity).out == pem
    assert made("pull", "--from", str(copy), "--as", "again").code == 0
    assert made("keys", "list", "--json").json == [{"id": identity, "name": "again"}]
    assert made("keys", "prove", "again").code == 0


def test_a_key_is_deleted_by_its_own_command(made: Odf, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = dataset_id(made)
    refused = made("keys", "delete", ROOT)
    assert refused.code == 2 and "--yes" in refused.err and "odf keys export" in refused.err
    monkeypatch.setattr("odf_tui.cli.keys.is_interactive", lambda: True)
    for typed in ("y\n", "\n", f"{identity}\n", ""):
        ran = made("keys", "delete", ROOT, input=typed)
        assert ran.code == 130 and "cannot be restored" in ran.err and f"Type {ROOT}" in ran.err, ran
        assert len(made("keys", "list", "--json").json) == 1
    assert made("keys", "delete", ROOT, input=f"{ROOT}\n").code == 0
    assert made("keys", "list", "--json").json == []
    assert made("keys", "prove", ROOT).code == 1
    assert made("show", ROOT, "--json").json["trust"] == "not trusted"
    missing = made("keys", "delete", ROOT, "--yes")
    assert missing.code == 1 and "not found" in missing.err


def test_the_key_of_a_deleted_dataset_is_named_by_its_id(made: Odf, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = dataset_id(made)
    made("delete", ROOT, "-y")
    monkeypatch.setattr("odf_tui.cli.keys.is_interactive", lambda: True)
    assert made("keys", "delete", identity, input=f"{ROOT}\n").code == 130
    asked = made("keys", "delete", identity, input=f"{identity[-8:]}\n")
    assert asked.code == 0 and f"Type {identity[-8:]}" in asked.err
    assert made("keys", "list", "--json").json == []


def test_yes_option_deletes_a_key_without_prompt(made: Odf, tmp_path: Path) -> None:
    next((tmp_path / ".odf" / "keys").glob("*.pem")).write_text("damaged")
    assert made("keys", "delete", ROOT, "--yes").code == 0
    assert made("keys", "list", "--json").json == []


@pytest.mark.parametrize("locked", [False, True])
def test_key_can_be_exported_and_imported(made: Odf, tmp_path: Path, locked: bool) -> None:
    secret: list[str] = []
    if locked:
        (tmp_path / "secret").write_text("open sesame\nnot this\n")
        secret = ["--passphrase-file", str(tmp_path / "secret")]
    key = tmp_path / "key.pem"
    ran = made("keys", "export", ROOT, "-o", str(key), *secret)
    assert (ran.code, ran.out) == (0, "") and key.stat().st_mode & 0o777 == 0o600
    text = key.read_text()
    assert text.startswith(f"-----BEGIN {'ENCRYPTED ' if locked else ''}PRIVATE KEY-----")
    again = made("keys", "export", ROOT, "-o", str(key))
    assert again.code == 1 and "already" in again.err and key.read_text() == text

    there = tmp_path / "there"
    call_odf("init", str(there), cwd=tmp_path)
    took = call_odf("keys", "import", str(key), *secret, "--json", cwd=there)
    assert took.json == [{"id": dataset_id(made), "name": None, "status": "imported"}]
    assert call_odf("keys", "import", str(key), *secret, "--json", cwd=there).json[0]["status"] == "known"
    assert call_odf("keys", "export", dataset_id(made), cwd=there).out == made("keys", "export", ROOT).out
    if locked:
        call_odf("init", str(tmp_path / "third"), cwd=tmp_path)
        for wrong in ([], ["--passphrase-file", str(key)]):
            ran = call_odf("keys", "import", str(key), *wrong, cwd=tmp_path / "third")
            assert ran.code == 1 and "passphrase" in ran.err
        assert call_odf("keys", "list", "--json", cwd=tmp_path / "third").json == []


def test_a_damaged_key_is_replaced_and_others_are_refused(made: Odf, tmp_path: Path) -> None:
    pem = made("keys", "export", ROOT).out
    stored = next((tmp_path / ".odf" / "keys").glob("*.pem"))
    stored.write_text("damaged")
    assert made("keys", "export", ROOT).code == 1
    assert made("keys", "prove", ROOT).code == 1
    assert made("keys", "import", "-", "--json", input=pem).json[0]["status"] == "imported"
    assert made("keys", "export", ROOT).out == pem
    from Crypto.PublicKey import ECC

    curve = ECC.generate(curve="P-256").export_key(format="PEM")
    for text in (curve, "", "x" * 100_000, "\udcff\udcfe"):
        ran = made("keys", "import", "-", input=text.encode("utf-8", "surrogateescape"))
        assert ran.code in (1, 2) and "error: " in ran.err and "Traceback" not in ran.err
    assert len(made("keys", "list", "--json").json) == 1


def test_key_is_not_printed_to_a_terminal_unless_requested(
    made: Odf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odf_tui.cli.keys.is_terminal", lambda: True)
    refused = made("keys", "export", ROOT)
    assert refused.code == 2 and "PRIVATE" not in refused.out + refused.err and "-o -" in refused.err
    assert "PRIVATE KEY" in made("keys", "export", ROOT, "-o", "-").out


def test_a_proof_is_made_shown_and_verified(made: Odf) -> None:
    ran = made("keys", "prove", ROOT)
    proof = json.loads(ran.out)
    head = made("show", ROOT, "--json").json["head"]
    assert ran.code == 0 and proof["head"] == head and "the newest" in ran.err
    assert (folder(made) / "proofs" / head).read_text() == ran.out
    first = made("keys", "prove", ROOT, "--block", "0", "--json").json
    shown = made("show", ROOT, "--json").json["proof"]
    assert shown["hash"] == head and shown["newer"] == 0
    assert first["block"] == 0 and first["proof"]["datasetId"] == dataset_id(made)
    assert made("keys", "prove", ROOT, "--block", "99").code == 1
    assert made("keys", "check", ROOT, "-", input=ran.out).code == 0
    assert made("keys", "check", dataset_id(made), "-", "--json", input=ran.out).json["valid"] is True
    wrong = ran.out.replace(head, first["proof"]["head"])
    checked = made("keys", "check", ROOT, "-", input=wrong)
    assert checked.code == 3 and "INVALID" in checked.out
    assert made("keys", "check", ROOT, "-", input="{}").code == 1


def test_proof_without_the_key_is_rejected(made: Odf, tmp_path: Path) -> None:
    next((tmp_path / ".odf" / "keys").glob("*.pem")).unlink()
    ran = made("keys", "prove", ROOT)
    assert ran.code == 1 and "key" in ran.err and "odf keys export and odf keys import" in ran.err
    assert not (folder(made) / "proofs").exists()


def test_files_are_signed(made: Odf, tmp_path: Path) -> None:
    file, kept = tmp_path / "report.bin", tmp_path / "report.sig"
    file.write_bytes(bytes(range(256)) * 100)
    signature = made("keys", "sign", ROOT, str(file)).out
    kept.write_text(signature)
    assert (
        made("keys", "sign", ROOT, "-", "--json", input=file.read_bytes()).json["signature"]
        == signature.strip()
    )
    for given in (str(kept), signature.strip()):
        assert made("keys", "check", ROOT, str(file), given).code == 0
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    wrong = made("keys", "check", dataset_id(made), str(file), str(kept), "--json")
    assert wrong.code == 3 and wrong.json["valid"] is False
    assert made("keys", "check", ROOT, str(file), "nothing").code == 1
    assert made("keys", "sign", ROOT, str(tmp_path / "absent")).code == 1


def test_signing_a_file_never_makes_a_proof(made: Odf) -> None:
    head = bytes.fromhex(made("show", ROOT, "--json").json["head"][1:])
    refused = made("keys", "sign", ROOT, "-", input=head)
    assert refused.code == 2 and "prove" in refused.err and refused.out == ""
    refused = made("keys", "sign", ROOT, "-", input=b"odf actor\n" + head + b"anna")
    assert refused.code == 2 and refused.out == ""


def test_commits_are_signed_with_their_actor(fresh: Odf, tmp_path: Path) -> None:
    assert fresh("config", "set", "signing.commits", "true").code == 0
    assert fresh("config", "set", "signing.actor", "Anna, registry").code == 0
    fresh("add", "-", input=fresh("new", ROOT, "--root").out)
    proofs = folder(fresh) / "proofs"
    assert [path.name for path in proofs.iterdir()] == [fresh("show", ROOT, "--json").json["head"]]
    assert fresh("pull", ROOT, "--set-watermark", "2026-01-01T00:00:00Z").code == 0
    head = fresh("show", ROOT, "--json").json["head"]
    assert len(list(proofs.iterdir())) == 2
    assert fresh("show", ROOT, "--json").json["proof"]["actor"] == "Anna, registry"
    verified = fresh("verify", ROOT)
    assert verified.code == 0 and "the newest, signed by Anna, registry" in verified.out + verified.err
    assert fresh("verify", ROOT, "--json").json["datasets"][0]["actor"] == "Anna, registry"
    # Another name is not signed.
    (proofs / head).write_text((proofs / head).read_text().replace("Anna", "Otto"))
    forged = fresh("verify", ROOT)
    assert forged.code == 3 and "the actor is not signed with the key" in forged.out + forged.err


def test_commit_that_cannot_be_signed_changes_nothing(made: Odf) -> None:
    head = made("show", ROOT, "--json").json["head"]
    made("config", "set", "signing.commits", "true")
    (folder(made) / "proofs").write_text("not a folder")
    failed = made("pull", ROOT, "--set-watermark", "2026-01-01T00:00:00Z")
    assert failed.code == 1 and "Traceback" not in failed.err
    assert made("show", ROOT, "--json").json["head"] == head


def test_invalid_actor_fails_before_the_commit(made: Odf) -> None:
    head = made("show", ROOT, "--json").json["head"]
    made("config", "set", "signing.commits", "true")
    made("config", "set", "signing.actor", "Anna\u202e")
    failed = made("pull", ROOT, "--set-watermark", "2026-01-01T00:00:00Z")
    assert failed.code == 1 and "odf config set signing.actor NAME" in failed.err
    assert made("show", ROOT, "--json").json["head"] == head and not (folder(made) / "proofs").exists()


def test_commits_without_the_key_are_not_signed(made: Odf, tmp_path: Path) -> None:
    next((tmp_path / ".odf" / "keys").glob("*.pem")).unlink()
    made("config", "set", "signing.commits", "true")
    assert made("pull", ROOT, "--set-watermark", "2026-01-01T00:00:00Z").code == 0
    assert not (folder(made) / "proofs").exists()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not here")
def test_openssl_understands_keys_and_proofs(made: Odf, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("open sesame")
    key, message, signature = tmp_path / "key.pem", tmp_path / "message", tmp_path / "signature"
    made("keys", "export", ROOT, "-o", str(key), "--passphrase-file", str(tmp_path / "secret"))
    proof = json.loads(made("keys", "prove", ROOT).out)
    message.write_bytes(bytes.fromhex(proof["head"][1:]))
    signature.write_bytes(bytes.fromhex(proof["signature"][1:]))
    done = subprocess.run(
        [
            *("openssl", "pkeyutl", "-verify", "-rawin", "-inkey", str(key), "-passin", "pass:open sesame"),
            *("-in", str(message), "-sigfile", str(signature)),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "Success" in done.stdout, done.stderr
