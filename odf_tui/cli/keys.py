"""Manage private keys, ownership proofs and tokens.

The id of a dataset is a public key. The owner of the dataset is the holder of its private key.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from odf_engine.api import (
    ALL_DATASETS,
    AccessToken,
    DatasetId,
    OwnershipProof,
    multibase_decode,
    verify_proof,
    verify_signature,
)
from odf_engine.api.operations.key_files import MAX_PEM, parse_private_key, write_secret_file
from odf_engine.api.text import format_time, format_zoned_time, signed_range_text
from odf_engine.errors import BadData, InvalidIdentity, NotFound, UsageError
from odf_tui.cli.shared.input import is_interactive, read_bytes
from odf_tui.cli.shared.options import DATASET, CommandGroup, F, options_of
from odf_tui.cli.shared.output import Table, print_json, print_note, select_fields, show
from odf_tui.cli.shared.workspace import open_workspace, use_timezone

ORDER = 350
MEANINGS = "key token tokens sign"

_MAX_FILE: Final = 1 << 28
_TYPED_CHARACTERS: Final = 8

command = CommandGroup("keys", help=__doc__, example="odf keys prove port-haven.stations")


def _passphrase_option(text: str) -> Callable[[F], F]:
    return click.option("--passphrase-file", type=click.Path(path_type=Path), help=text)


@command.subcommand("list", example="odf keys list --json", json=True)
def list_keys() -> None:
    """List the private keys in the workspace.

    Keys of datasets that are not in the workspace are included.
    """
    keys = open_workspace().private_keys()
    show(
        [{"id": key.id, "name": key.name or None} for key in sorted(keys, key=lambda key: str(key.id))],
        Table(
            ["dataset", "id"],
            sorted([key.name or "(not in this workspace)", str(key.id)] for key in keys),
            empty="no private keys: new datasets get one, odf keys import adds others",
        ),
    )


@command.subcommand("export", example="odf keys export port-haven.stations -o stations.pem")
@click.argument("name", type=DATASET)
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(), help="New file for its owner only; - for stdout."
)
@_passphrase_option("Encrypt the key with the first line of this file.")
def export_key(name: str, output: str | None, passphrase_file: Path | None) -> None:
    """Export the private key of a dataset as PKCS#8 PEM.

    Protect the file like a password.
    """
    if output is None and is_terminal():
        raise UsageError(
            "private keys are not printed to a terminal by default",
            hint="use -o FILE, or -o - to print the key",
        )
    workspace = open_workspace()
    secret = None if passphrase_file is None else _read_passphrase(passphrase_file)
    text = workspace.private_key_pem(workspace.dataset_id(name), name, secret)
    if output in (None, "-"):
        sys.stdout.write(text)
        return
    write_secret_file(Path(output), text)
    print_note(
        f"exported the private key of {name} to {output}: its holder can prove ownership of the dataset"
    )


@command.subcommand("import", example="odf keys import stations.pem", json=True)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@_passphrase_option("Decrypt the keys with the first line of this file.")
def import_keys(files: tuple[str, ...], passphrase_file: Path | None) -> None:
    """Import private keys of datasets from PEM files.

    FILE is - for stdin. The datasets of the keys may be pulled later.
    """
    workspace = open_workspace()
    secret = None if passphrase_file is None else _read_passphrase(passphrase_file)
    keys: dict[DatasetId, str] = {}
    for file in files:
        try:
            dataset, pem = parse_private_key(_read_limited(file, MAX_PEM), secret)
        except BadData as error:
            raise BadData(error.message, hint=error.hint, where=file) from None
        keys[dataset] = pem
    names = {dataset.id: dataset.name for dataset in workspace}
    document = [
        {"id": dataset, "name": names.get(str(dataset)), "status": workspace.store_private_key(dataset, pem)}
        for dataset, pem in keys.items()
    ]
    show(document, lambda: _print_imported(document))


def _print_imported(keys: Sequence[Mapping[str, Any]]) -> None:
    for key in keys:
        owner = key["name"] or f"{key['id']} (not in this workspace)"
        outcome = "already in this workspace" if key["status"] == "known" else "imported"
        print_note(f"private key of {owner}: {outcome}")


@command.subcommand("delete", example="odf keys delete port-haven.stations")
@click.argument("name", type=DATASET)
@click.option("-y", "--yes", is_flag=True, help="Do not prompt for confirmation.")
def delete_key(name: str, yes: bool) -> None:
    """Delete the private key of a dataset.

    NAME is the name or the id of a dataset. The key cannot be created again: without a copy of it,
    ownership of the dataset cannot be proven any more. The data of the dataset are not deleted.
    """
    workspace = open_workspace()
    dataset_id = workspace.dataset_id(name)
    dataset = next((known for known in workspace if known.id == str(dataset_id)), None)
    label = str(dataset_id) if dataset is None else dataset.name
    if not yes and workspace.has_private_key(dataset_id):
        if not is_interactive():
            raise UsageError(
                f"deleting the private key of {label} requires confirmation",
                hint=f"save it with odf keys export {label} -o FILE, then use --yes to skip the prompt",
            )
        is_own = dataset is not None and workspace.trust_status(dataset.id).trust == "own"
        _confirm_deletion(dataset_id, dataset and dataset.name, is_own)
    workspace.delete_private_key(dataset_id)
    print_note(f"deleted the private key of {label}")


def _confirm_deletion(dataset: DatasetId, name: str | None, is_own: bool) -> None:
    """Print the consequences, and prompt for the name of the dataset, or the end of its id."""
    label = name or str(dataset)
    lines = [
        f"The private key of {label} cannot be restored. Without a copy of it, ownership proofs of",
        "new blocks and signatures of files and query results are no longer possible.",
        f"To save a copy, use odf keys export {label} -o FILE.",
    ]
    if name is None:
        lines.append("The dataset is not in this workspace, but a repository may have it.")
    elif is_own:
        lines.append(f"The source of the dataset does not run until it is trusted: odf trust {label}.")
    click.echo("\n".join(lines), err=True)
    expected = name or str(dataset)[-_TYPED_CHARACTERS:]
    typed = click.prompt(f"Type {expected} to delete the key", default="", show_default=False, err=True)
    if typed.strip() != expected:
        print_note("the key is unchanged")
        raise click.Abort


@command.subcommand("prove", example="odf keys prove port-haven.stations", json=True)
@click.argument("name", type=DATASET)
@click.option("--block", metavar="BLOCK", help="Number or hash of a block. Default: the newest block.")
def prove(name: str, block: str | None) -> None:
    """Sign a block with the private key of the dataset.

    The signature is an ownership proof of the block and all earlier blocks. It is stored with the
    dataset, included in pulls and pushes, and verified by `odf verify`. It names the actor: the setting
    signing.actor, by default the login name. To sign all commits, set signing.commits to true.
    """
    dataset = open_workspace().resolve(name)
    proven = dataset.prove(block)
    document = {
        "name": dataset.name,
        "block": proven.block,
        "file": str(proven.file),
        "proof": proven.proof.document,
    }
    show(document, lambda: sys.stdout.writelines([bytes(proven.proof).decode()]))
    if not options_of().json:
        signed = signed_range_text(proven.block, proven.later, proven.proof.actor)
        print_note(f"{dataset.name}: ownership proven {signed}")


@command.subcommand("sign", example="odf keys sign port-haven.stations report.pdf > report.sig", json=True)
@click.argument("name", type=DATASET)
@click.argument("file", type=click.Path())
def sign(name: str, file: str) -> None:
    """Sign a file with the private key of a dataset.

    Prints the ed25519 signature over the bytes of FILE. FILE is - for stdin.
    """
    workspace = open_workspace()
    dataset = workspace.dataset_id(name)
    data = _read_limited(file, _MAX_FILE)
    signature = workspace.sign(dataset, data)
    show({"id": dataset, "signature": signature}, signature)


@command.subcommand("check", example="odf keys check port-haven.stations report.pdf report.sig", json=True)
@click.argument("name", type=DATASET)
@click.argument("file", type=click.Path())
@click.argument("signature", required=False)
def check(name: str, file: str, signature: str | None) -> None:
    """Verify a signature or an ownership proof.

    NAME is the name or the id of the dataset whose key signed FILE. SIGNATURE is a file with the
    signature, or its text. Without SIGNATURE, FILE is a proof as printed by `odf keys prove`. Exits with
    3 if the signature is invalid.
    """
    dataset = _read_id(name)
    data = _read_limited(file, _MAX_FILE)
    document: dict[str, Any] = {"id": dataset}
    if signature is None:
        proof = OwnershipProof.from_bytes(data)
        document["head"] = proof.head
        try:
            verify_proof(proof, dataset, proof.head)
            problem = ""
        except BadData as error:
            problem = error.message
    else:
        is_valid = verify_signature(dataset, data, _read_signature(signature))
        problem = "" if is_valid else f"not a signature of {name} over this file"
    show(
        {**document, "valid": not problem, "message": problem or None},
        f"INVALID: {problem}" if problem else f"valid: signed with the key of {name}",
    )
    sys.exit(3 if problem else 0)


def _read_id(name: str) -> DatasetId:
    """Return the id of a dataset by its name or id. An id needs no workspace."""
    try:
        return DatasetId.parse(name)
    except InvalidIdentity:
        return open_workspace().dataset_id(name)


def _read_signature(argument: str) -> bytes:
    path = Path(argument)
    text = _read_limited(argument, 1024).decode("ascii", "replace").strip() if path.is_file() else argument
    try:
        return multibase_decode(text)
    except InvalidIdentity as error:
        raise NotFound(f"{argument} is neither a file nor a signature: {error.message}") from None


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


def _read_limited(name: str, max_bytes: int) -> bytes:
    return read_bytes(name, max_bytes, hint="for a large file, sign its hash")


def _read_passphrase(file: Path) -> str:
    """Return the first line of a file.

    Passphrases are never arguments: every user of the machine can read the command line of a process.
    """
    lines: Sequence[str] = _read_limited(str(file), 4096).decode("utf-8", "replace").splitlines()
    if not lines or not lines[0]:
        raise UsageError(f"{file}: missing passphrase in the first line")
    return lines[0]


token = CommandGroup(
    "token",
    help="""Manage the tokens for pushes to this workspace, and for queries of it.

    `odf serve --allow-push` accepts pushes by clients with a token, and
    `odf serve --flight --require-token` accepts queries.
    """,
    example="odf keys token new nightly --dataset 'weather.%' --days 90",
)
command.add_command(token)


@token.subcommand("new", example="odf keys token new nightly --dataset 'weather.%' --days 90", json=True)
@click.argument("name")
@click.option(
    "--dataset",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    type=DATASET,
    help="Datasets that can be pushed, and queried with Flight. Can be repeated. Default: all.",
)
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True),
    help="Days until the token expires. Default: it does not expire.",
)
def new_token(name: str, patterns: tuple[str, ...], days: float | None) -> None:
    """Create a token and print it.

    The token cannot be printed again, because only its hash is stored. It is valid for the datasets
    that match one of the patterns: ids, names, or names with %. Clients store it with
    `odf repo login URL`.
    """
    workspace = open_workspace()
    token, text = workspace.push_tokens.create(name, patterns or (ALL_DATASETS,), days)
    if options_of().json:
        print_json({**_token_json(token), "token": text})
        return
    sys.stdout.write(text + "\n")
    use_timezone(workspace)
    end = "revoked" if token.expires is None else format_zoned_time(_format_utc(token.expires))
    datasets = ", ".join(token.datasets)
    print_note(f"token '{name}' is valid for {datasets} until {end}; it is not printed again")


@token.subcommand("list", example="odf keys token list", json=True)
def list_tokens() -> None:
    """List the tokens, with their datasets, expiry and last use."""
    workspace = open_workspace()
    tokens = workspace.push_tokens.list_tokens()
    zone = use_timezone(workspace)
    rows = [
        [
            token.name,
            ", ".join(token.datasets),
            format_time(_format_utc(token.created)),
            "expired" if token.has_expired else format_time(_format_utc(token.expires)) or "never",
            format_time(_format_utc(token.last_used)) or "never",
        ]
        for token in tokens
    ]
    headers = ["token", "datasets", f"created ({zone})", f"expires ({zone})", f"last used ({zone})"]
    show(
        [_token_json(token) for token in tokens],
        Table(headers, rows, empty="no tokens yet: odf keys token new NAME"),
    )


@token.subcommand("revoke", example="odf keys token revoke nightly")
@click.argument("name")
def revoke_token(name: str) -> None:
    """Revoke a token.

    Running servers reject it immediately.
    """
    token = open_workspace().push_tokens.revoke(name)
    print_note(f"revoked token '{token.name}'")


def _token_json(token: AccessToken) -> dict[str, object]:
    """Return a token for ``--json``, without its hash. Times are in UTC, to the second."""
    return {
        **select_fields(token, "name", "datasets"),
        "created": _format_utc(token.created),
        "expires": _format_utc(token.expires),
        "last_used": _format_utc(token.last_used),
        "expired": token.has_expired,
    }


def _format_utc(time: datetime | None) -> str | None:
    return None if time is None else time.strftime("%Y-%m-%dT%H:%M:%SZ")
