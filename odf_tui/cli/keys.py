"""The verbs about the keys behind dataset ids: list, export, import, prove, sign, check; and token."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from odf_engine.errors import AlreadyExists, BadData, InvalidIdentity, NotFound, OdfError, UsageError
from odf_engine.identity import ownership_proof as proofs
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash, multibase_decode, multibase_encode
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.output import (
    common_options,
    open_workspace,
    options_of,
    print_json,
    print_table,
    read_bytes,
    say,
    verb,
)
from odf_tui.verdict import up_to

_LONGEST_PEM: Final = 1 << 16
_LONGEST_FILE: Final = 1 << 28
_LOCK: Final = "scryptAndAES256-CBC"
_ROUNDS: Final = 1 << 14  # 16 MB of memory: half of what openssl allows for reading it


class _Keys(click.Group):
    """The group; what is about tokens is loaded when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, "token"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "token":
            from odf_tui.cli.tokens import token_verb

            return token_verb
        return super().get_command(ctx, cmd_name)


@click.group("keys", cls=_Keys, epilog="Example:  odf keys prove port-haven.stations")
@common_options
def keys_verb() -> None:
    """The key pairs behind dataset ids: who has the private key of a dataset owns it."""


@verb("list", example="odf keys list --json", json=True)
def list_keys() -> None:
    """Lists the datasets whose private keys are here."""
    workspace = open_workspace()
    names = {entry.id: str(entry.alias) for entry in workspace.datasets()}
    held = list(workspace.keys.ids())
    if options_of().json:
        print_json([{"id": each, "name": names.get(each)} for each in held])
        return
    if not held:
        say("no private keys are here: a dataset that is made here gets one, odf keys import takes others")
        return
    rows = sorted((names.get(each, ""), str(each)) for each in held)
    print_table(["dataset", "id"], [[name or "(not here)", each] for name, each in rows])


# --- Taking keys elsewhere ---------------------------------------------------------------------


@verb("export", example="odf keys export port-haven.stations -o stations.pem")
@click.argument("name")
@click.option(
    "-o", "--output", type=click.Path(), metavar="FILE", help="A new file, for you alone; - for stdout."
)
@click.option("--passphrase-file", type=click.Path(path_type=Path), help="Locks it with the line in there.")
def export_key(name: str, output: str | None, passphrase_file: Path | None) -> None:
    """Writes a dataset's private key as PKCS#8 PEM: keep it as you keep passwords."""
    if output is None and is_terminal():
        raise UsageError(
            "a private key does not go to a terminal by itself",
            hint="name a file: -o FILE; or say that you want to see it: -o -",
        )
    workspace = open_workspace()
    dataset = _dataset_id(name, workspace)
    pem = workspace.keys.private_key_pem(dataset)
    key = proofs.load_private_key(pem)
    if proofs.dataset_id_of_key(key) != dataset:
        raise BadData(f"the file of the key of {name} holds another key", hint="odf fsck says more")
    if passphrase_file is not None:
        secret = _passphrase(passphrase_file)
        rounds: Any = {"iteration_count": _ROUNDS, "block_size": 8, "parallelization": 1}
        pem = key.export_key(format="PEM", passphrase=secret, protection=_LOCK, prot_params=rounds)
    text = pem.rstrip("\n") + "\n"
    if output in (None, "-"):
        sys.stdout.write(text)
        return
    _write_new(Path(output), text)
    say(f"the private key of {name} is in {output}: who has it can prove to be its owner")


def is_terminal() -> bool:
    """Whether somebody looks at what is printed."""
    return sys.stdout.isatty()


def _write_new(path: Path, text: str) -> None:
    """Makes a file that only its owner can read."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise AlreadyExists(f"{path} is there already", hint="choose another name") from None
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
    except OSError:
        path.unlink(missing_ok=True)
        raise


@verb("import", example="odf keys import stations.pem", json=True)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option("--passphrase-file", type=click.Path(path_type=Path), help="What they are locked with.")
def import_keys(files: tuple[str, ...], passphrase_file: Path | None) -> None:
    """Takes private keys of datasets in, from PEM files; - is stdin. The datasets may come later."""
    workspace = open_workspace()
    secret = None if passphrase_file is None else _passphrase(passphrase_file)
    found: dict[DatasetId, str] = {}
    for file in files:
        try:
            key = proofs.load_private_key(_read(file, _LONGEST_PEM), secret)
        except BadData as error:
            raise BadData(error.message, hint=error.hint, where=file) from None
        found[proofs.dataset_id_of_key(key)] = key.export_key(format="PEM")
    names = {entry.id: str(entry.alias) for entry in workspace.datasets()}
    document = [
        {"id": each, "name": names.get(each), "status": _keep(workspace, each, pem)}
        for each, pem in found.items()
    ]
    if options_of().json:
        print_json(document)
        return
    for each in document:
        whose = each["name"] or f"{each['id']}, which is not here yet"
        say(f"the key of {whose}: {'was here already' if each['status'] == 'known' else 'taken in'}")


def _keep(workspace: Workspace, dataset: DatasetId, pem: str) -> str:
    try:
        workspace.keys.store(dataset, pem)
    except FileExistsError:
        if _is_key_of(workspace, dataset):
            return "known"
        workspace.keys.delete(dataset)  # a damaged file
        workspace.keys.store(dataset, pem)
    return "imported"


def _is_key_of(workspace: Workspace, dataset: DatasetId) -> bool:
    try:
        return (
            proofs.dataset_id_of_key(proofs.load_private_key(workspace.keys.private_key_pem(dataset)))
            == dataset
        )
    except (OdfError, OSError, UnicodeDecodeError):
        return False


# --- Proofs and signatures ---------------------------------------------------------------------


@verb("prove", example="odf keys prove port-haven.stations", json=True)
@click.argument("name")
@click.option("--block", metavar="BLOCK", help="A number or a hash, instead of the newest block.")
def prove(name: str, block: str | None) -> None:
    """Signs a block with the dataset's key: its owner stands behind it, and behind all before it.

    The proof is kept beside the dataset, travels with it when it is pulled and pushed, and is checked by
    `odf verify`.
    """
    from odf_engine.chain.block_search import resolve_block_number
    from odf_engine.coordinator.endpoint import notify_datasets_changed
    from odf_engine.workspace.trust import prove_block

    workspace = open_workspace()
    entry = workspace.resolve(name)
    state = entry.dataset.state()
    number = state.sequence_number if block is None else resolve_block_number(entry.dataset, block)
    wanted = state.head if block is None else entry.dataset.block(number).hash
    made = prove_block(workspace, entry, wanted)
    notify_datasets_changed(workspace.folder)
    file = entry.dataset.folder / proofs.PROOFS_FOLDER / str(made.head)
    if options_of().json:
        print_json({"name": str(entry.alias), "block": number, "file": str(file), "proof": made.document})
        return
    sys.stdout.write(bytes(made).decode())
    say(f"{entry.alias} is proven {up_to(number, state.sequence_number - number)}")


@verb("sign", example="odf keys sign port-haven.stations report.pdf > report.sig", json=True)
@click.argument("name")
@click.argument("file", type=click.Path())
def sign(name: str, file: str) -> None:
    """Signs the bytes of a file with a dataset's key (ed25519); - is stdin. Prints the signature."""
    workspace = open_workspace()
    dataset = _dataset_id(name, workspace)
    key = proofs.load_private_key(workspace.keys.private_key_pem(dataset))
    data = _read(file, _LONGEST_FILE)
    if _is_hash(data):
        raise UsageError(
            "this is the hash of a block: signing it would prove that you stand behind it",
            hint=f"if that is what you want: odf keys prove {name} --block HASH",
        )
    signature = multibase_encode(proofs.sign(key, data))
    if options_of().json:
        print_json({"id": dataset, "signature": signature})
    else:
        sys.stdout.write(signature + "\n")


@verb("check", example="odf keys check port-haven.stations report.pdf report.sig", json=True)
@click.argument("name")
@click.argument("file", type=click.Path())
@click.argument("signature", required=False)
def check(name: str, file: str, signature: str | None) -> None:
    """Checks a signature over a file by the key of a dataset, NAME being its name or its id.

    SIGNATURE is a file with it, or its text. Without one FILE is a proof, as `prove` prints it. The exit
    code is 3 when it is wrong.
    """
    dataset = _dataset_id(name, None)
    data = _read(file, _LONGEST_FILE)
    document: dict[str, Any] = {"id": dataset}
    if signature is None:
        proof = proofs.OwnershipProof.from_bytes(data)
        document["head"] = proof.head
        try:
            proofs.verify_proof(proof, dataset, proof.head)
            problem = ""
        except BadData as error:
            problem = error.message
    else:
        right = proofs.verify_signature(dataset, data, _signature(signature))
        problem = "" if right else f"this is no signature of the key of {name} over these bytes"
    if options_of().json:
        print_json({**document, "valid": not problem, "message": problem or None})
    elif problem:
        sys.stdout.write(f"WRONG: {problem}\n")
    else:
        sys.stdout.write(f"right: signed with the key of {name}\n")
    sys.exit(3 if problem else 0)


# --- What people give --------------------------------------------------------------------------


def _dataset_id(name: str, workspace: Workspace | None) -> DatasetId:
    """The id that a person means; one may be written down of a dataset that is not here."""
    try:
        return DatasetId.parse(name)
    except InvalidIdentity:
        return (workspace or open_workspace()).resolve(name).id


def _signature(given: str) -> bytes:
    path = Path(given)
    text = _read(given, 1024).decode("ascii", "replace").strip() if path.is_file() else given
    try:
        return multibase_decode(text)
    except InvalidIdentity as error:
        raise NotFound(f"there is no file {given}, and it is no signature: {error.message}") from None


def _is_hash(data: bytes) -> bool:
    try:
        Multihash.from_bytes(data)
    except InvalidIdentity:
        return False
    return True


def _read(name: str, at_most: int) -> bytes:
    return read_bytes(name, at_most, hint="of a large file, sign a hash of it")


def _passphrase(file: Path) -> str:
    """The first line of a file: passphrases on the command line are seen by everybody on the machine."""
    lines: Sequence[str] = _read(str(file), 4096).decode("utf-8", "replace").splitlines()
    if not lines or not lines[0]:
        raise UsageError(f"{file} has no passphrase in its first line")
    return lines[0]


for _command in (list_keys, export_key, import_keys, prove, sign, check):
    keys_verb.add_command(_command)
