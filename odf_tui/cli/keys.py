"""keys, trust, untrust: keys, ownership proofs, tokens and trusted datasets."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from odf_engine.api.key_files import (
    MAX_PEM,
    export_private_key,
    parse_private_key,
    store_private_key,
    write_secret_file,
)
from odf_engine.api.text import format_time, format_zoned_time, signed_range_text
from odf_engine.errors import BadData, InvalidIdentity, NotFound, UsageError
from odf_engine.identity import ownership_proof as proofs
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash, multibase_decode, multibase_encode
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.tokens import ALL_DATASETS, AccessToken, Tokens
from odf_engine.workspace.trust import KINDS, Execution, Trust
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.output import (
    common_options,
    console,
    open_workspace,
    options_of,
    print_json,
    print_note,
    print_table,
    read_bytes,
    use_timezone,
    verb,
)

_MAX_FILE: Final = 1 << 28
_TYPED_CHARACTERS: Final = 8


class _KeysGroup(click.Group):
    """The group of commands; the commands for tokens are a separate group."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, "token"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "token":
            return token_verb
        return super().get_command(ctx, cmd_name)


@click.group("keys", cls=_KeysGroup, epilog="Example:  odf keys prove port-haven.stations")
@common_options
def keys_verb() -> None:
    """Manage private keys, ownership proofs and tokens.

    The id of a dataset is a public key. The owner of the dataset is the holder of its private key.
    """


@verb("list", example="odf keys list --json", json=True)
def list_keys() -> None:
    """List the private keys in the workspace.

    Keys of datasets that are not in the workspace are included.
    """
    workspace = open_workspace()
    names = {entry.id: str(entry.alias) for entry in workspace.datasets()}
    ids = list(workspace.keys.ids())
    if options_of().json:
        print_json([{"id": each, "name": names.get(each)} for each in ids])
        return
    if not ids:
        print_note("no private keys: new datasets get one, odf keys import adds others")
        return
    rows = sorted((names.get(each, ""), str(each)) for each in ids)
    print_table(["dataset", "id"], [[name or "(not in this workspace)", each] for name, each in rows])


# --- Export and import -------------------------------------------------------------------------


@verb("export", example="odf keys export port-haven.stations -o stations.pem")
@click.argument("name")
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="FILE",
    help="New file, readable by its owner only; - for stdout.",
)
@click.option(
    "--passphrase-file",
    type=click.Path(path_type=Path),
    help="Encrypt the key with the first line of this file.",
)
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
    dataset = _resolve_id(name, workspace)
    secret = None if passphrase_file is None else _read_passphrase(passphrase_file)
    text = export_private_key(workspace, dataset, name, secret)
    if output in (None, "-"):
        sys.stdout.write(text)
        return
    write_secret_file(Path(output), text)
    print_note(
        f"exported the private key of {name} to {output}: its holder can prove ownership of the dataset"
    )


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


@verb("import", example="odf keys import stations.pem", json=True)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option(
    "--passphrase-file",
    type=click.Path(path_type=Path),
    help="Decrypt the keys with the first line of this file.",
)
def import_keys(files: tuple[str, ...], passphrase_file: Path | None) -> None:
    """Import private keys of datasets from PEM files.

    FILE is - for stdin. The datasets of the keys may be pulled later.
    """
    workspace = open_workspace()
    secret = None if passphrase_file is None else _read_passphrase(passphrase_file)
    found: dict[DatasetId, str] = {}
    for file in files:
        try:
            dataset, pem = parse_private_key(_read_limited(file, MAX_PEM), secret)
        except BadData as error:
            raise BadData(error.message, hint=error.hint, where=file) from None
        found[dataset] = pem
    names = {entry.id: str(entry.alias) for entry in workspace.datasets()}
    document = [
        {"id": each, "name": names.get(each), "status": store_private_key(workspace, each, pem)}
        for each, pem in found.items()
    ]
    if options_of().json:
        print_json(document)
        return
    for each in document:
        owner = each["name"] or f"{each['id']} (not in this workspace)"
        done = "already in this workspace" if each["status"] == "known" else "imported"
        print_note(f"private key of {owner}: {done}")


# --- Deletion ----------------------------------------------------------------------------------


@verb("delete", example="odf keys delete port-haven.stations")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not prompt for confirmation.")
def delete_key(name: str, yes: bool) -> None:
    """Delete the private key of a dataset.

    NAME is the name or the id of a dataset. The key cannot be created again: without a copy of it,
    ownership of the dataset cannot be proven any more. The data of the dataset are not deleted.
    """
    from odf_engine.coordinator.endpoint import notify_datasets_changed

    workspace = open_workspace()
    dataset = _resolve_id(name, workspace)
    entry = next((each for each in workspace.datasets() if each.id == dataset), None)
    label = str(dataset if entry is None else entry.alias)
    if not yes and workspace.keys.has_key(dataset):
        if not is_interactive():
            raise UsageError(
                f"deleting the private key of {label} requires confirmation",
                hint=f"save it with odf keys export {label} -o FILE, then use --yes to skip the prompt",
            )
        _confirm_deletion(workspace, dataset, entry)
    workspace.delete_key(dataset)
    notify_datasets_changed(workspace.folder)
    print_note(f"deleted the private key of {label}")


def is_interactive() -> bool:
    """Return whether stdin is a terminal."""
    return sys.stdin.isatty()


def _confirm_deletion(workspace: Workspace, dataset: DatasetId, entry: DatasetEntry | None) -> None:
    """Print the consequences, and prompt for the name of the dataset.

    Raises:
        Abort: another text was typed.
    """
    label = str(dataset if entry is None else entry.alias)
    lines = [
        f"The private key of {label} cannot be restored. Without a copy of it, ownership proofs of",
        "new blocks and signatures of files and query results are no longer possible.",
        f"To save a copy, use odf keys export {label} -o FILE.",
    ]
    if entry is None:
        lines.append("The dataset is not in this workspace, but a repository may have it.")
    elif Trust(workspace).is_own(entry):
        lines.append(f"The source of the dataset does not run until it is trusted: odf trust {label}.")
    click.echo("\n".join(lines), err=True)
    expected = str(dataset)[-_TYPED_CHARACTERS:] if entry is None else str(entry.alias)
    typed = click.prompt(f"Type {expected} to delete the key", default="", show_default=False, err=True)
    if typed.strip() != expected:
        print_note("the key is unchanged")
        raise click.Abort


# --- Proofs and signatures ---------------------------------------------------------------------


@verb("prove", example="odf keys prove port-haven.stations", json=True)
@click.argument("name")
@click.option("--block", metavar="BLOCK", help="Number or hash of a block. Default: the newest block.")
def prove(name: str, block: str | None) -> None:
    """Sign a block with the private key of the dataset.

    The signature is an ownership proof of the block and all earlier blocks. It is stored with the
    dataset, included in pulls and pushes, and verified by `odf verify`.
    """
    from odf_engine.chain.block_search import resolve_block_number
    from odf_engine.coordinator.endpoint import notify_datasets_changed
    from odf_engine.workspace.trust import prove_block

    workspace = open_workspace()
    entry = workspace.resolve(name)
    state = entry.dataset.state()
    number = state.sequence_number if block is None else resolve_block_number(entry.dataset, block)
    block_hash = state.head if block is None else entry.dataset.block(number).hash
    proof = prove_block(workspace, entry, block_hash)
    notify_datasets_changed(workspace.folder)
    file = entry.dataset.folder / proofs.PROOFS_FOLDER / str(proof.head)
    if options_of().json:
        print_json({"name": str(entry.alias), "block": number, "file": str(file), "proof": proof.document})
        return
    sys.stdout.write(bytes(proof).decode())
    print_note(f"{entry.alias}: ownership proven {signed_range_text(number, state.sequence_number - number)}")


@verb("sign", example="odf keys sign port-haven.stations report.pdf > report.sig", json=True)
@click.argument("name")
@click.argument("file", type=click.Path())
def sign(name: str, file: str) -> None:
    """Sign a file with the private key of a dataset.

    Prints the ed25519 signature over the bytes of FILE. FILE is - for stdin.
    """
    workspace = open_workspace()
    dataset = _resolve_id(name, workspace)
    key = proofs.load_private_key(workspace.keys.private_key_pem(dataset))
    data = _read_limited(file, _MAX_FILE)
    if _is_hash(data):
        raise UsageError(
            "the file is the hash of a block: its signature would be an ownership proof",
            hint=f"to create a proof, use odf keys prove {name} --block HASH",
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
    """Verify a signature or an ownership proof.

    NAME is the name or the id of the dataset whose key signed FILE. SIGNATURE is a file with the
    signature, or its text. Without SIGNATURE, FILE is a proof as printed by `odf keys prove`. Exits with
    3 if the signature is invalid.
    """
    dataset = _resolve_id(name, None)
    data = _read_limited(file, _MAX_FILE)
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
        is_valid = proofs.verify_signature(dataset, data, _read_signature(signature))
        problem = "" if is_valid else f"not a signature of {name} over this file"
    if options_of().json:
        print_json({**document, "valid": not problem, "message": problem or None})
    elif problem:
        sys.stdout.write(f"INVALID: {problem}\n")
    else:
        sys.stdout.write(f"valid: signed with the key of {name}\n")
    sys.exit(3 if problem else 0)


# --- Arguments ---------------------------------------------------------------------------------


def _resolve_id(name: str, workspace: Workspace | None) -> DatasetId:
    """Return the id of a dataset by its name or id; a dataset with an id may be missing in the workspace."""
    try:
        return DatasetId.parse(name)
    except InvalidIdentity:
        return (workspace or open_workspace()).resolve(name).id


def _read_signature(argument: str) -> bytes:
    path = Path(argument)
    text = _read_limited(argument, 1024).decode("ascii", "replace").strip() if path.is_file() else argument
    try:
        return multibase_decode(text)
    except InvalidIdentity as error:
        raise NotFound(f"{argument} is neither a file nor a signature: {error.message}") from None


def _is_hash(data: bytes) -> bool:
    try:
        Multihash.from_bytes(data)
    except InvalidIdentity:
        return False
    return True


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


for _command in (list_keys, export_key, import_keys, delete_key, prove, sign, check):
    keys_verb.add_command(_command)


@click.group("token", epilog="Example:  odf keys token new nightly --dataset 'weather.%' --days 90")
@common_options
def token_verb() -> None:
    """Manage the tokens for pushes to this workspace.

    `odf serve --allow-push` accepts pushes by clients with a token.
    """


@verb("new", example="odf keys token new nightly --dataset 'weather.%' --days 90", json=True)
@click.argument("name")
@click.option(
    "--dataset",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Datasets that can be pushed. Can be repeated. Default: all.",
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
    token, text = Tokens(workspace.odf).create(name, patterns or (ALL_DATASETS,), days)
    if options_of().json:
        print_json({**_token_json(token), "token": text})
        return
    sys.stdout.write(text + "\n")
    use_timezone(workspace)
    until = (
        "until revoked" if token.expires is None else f"until {format_zoned_time(_format_utc(token.expires))}"
    )
    print_note(f"token '{name}' is valid for {', '.join(token.datasets)} {until}; it is not printed again")


@verb("list", example="odf keys token list", json=True)
def list_tokens() -> None:
    """List the tokens, with their datasets, expiry and last use."""
    workspace = open_workspace()
    tokens = Tokens(workspace.odf).list_tokens()
    if options_of().json:
        print_json([_token_json(token) for token in tokens])
        return
    if not tokens:
        print_note("no tokens yet: odf keys token new NAME")
        return
    zone = use_timezone(workspace)
    print_table(
        ["token", "datasets", f"created ({zone})", f"expires ({zone})", f"last used ({zone})"],
        [
            [
                token.name,
                ", ".join(token.datasets),
                format_time(_format_utc(token.created)),
                "expired" if token.has_expired else format_time(_format_utc(token.expires)) or "never",
                format_time(_format_utc(token.last_used)) or "never",
            ]
            for token in tokens
        ],
    )


@verb("revoke", example="odf keys token revoke nightly")
@click.argument("name")
def revoke_token(name: str) -> None:
    """Revoke a token.

    Running servers reject it immediately.
    """
    token = _open_tokens().revoke(name)
    print_note(f"revoked token '{token.name}'")


token_verb.add_command(new_token)
token_verb.add_command(list_tokens)
token_verb.add_command(revoke_token)


def _open_tokens() -> Tokens:
    return Tokens(open_workspace().odf)


def _token_json(token: AccessToken) -> dict[str, object]:
    return {
        "name": token.name,
        "datasets": list(token.datasets),
        "created": _format_utc(token.created),
        "expires": _format_utc(token.expires),
        "last_used": _format_utc(token.last_used),
        "expired": token.has_expired,
    }


def _format_utc(time: datetime | None) -> str | None:
    return None if time is None else time.strftime("%Y-%m-%dT%H:%M:%SZ")


@verb("trust", example="odf trust com.example.cases", json=True)
@click.argument("name", required=False)
@click.option(
    "--own",
    is_flag=True,
    help="Confirm that you created the datasets whose private keys are in the workspace.",
)
@click.option(
    "--private-network", is_flag=True, help="Allow requests to this machine and its private network."
)
@click.option("-y", "--yes", is_flag=True, help="Do not prompt for confirmation.")
def trust_verb(name: str | None, own: bool, private_network: bool, yes: bool) -> None:
    """Trust the source of a third-party dataset.

    Prints what the source runs, and prompts for confirmation. If a later block changes the source,
    the dataset is untrusted again.

    The query of an untrusted derivative dataset runs in a sandbox. It has no network access, and reads
    no files except the rows of its inputs.

    Your own datasets need no trust. With --own, you confirm that you created this workspace, for example
    on another machine: its datasets with private keys are your own from then on.
    """
    workspace = open_workspace()
    if own or name is None:
        if not own or private_network:
            raise UsageError("use either NAME or --own", hint="trust one dataset: odf trust NAME")
        _claim_datasets(workspace, name, yes)
        return
    entry, trust = workspace.resolve(name), Trust(workspace)
    runs = trust.list_executions(entry)
    needs_grant = not trust.is_own(entry) and bool(runs)
    if not options_of().json:
        _print_executions(trust, entry, runs)
    if needs_grant and not yes:
        _confirm_trust(trust, entry, runs, private_network)
    if needs_grant:
        trust.grant(entry, private_network=private_network, shown=runs)
    if options_of().json:
        print_json(_trust_json(trust, entry, runs))
    elif needs_grant:
        print_note(f"{entry.alias} is trusted until a block changes its source")


def _claim_datasets(workspace: Workspace, name: str | None, yes: bool) -> None:
    """Record datasets with private keys as own ones, after a confirmation."""
    trust = Trust(workspace)
    entries = workspace.datasets() if name is None else [workspace.resolve(name)]
    entries = [entry for entry in entries if trust.is_claimable(entry)]
    runs = {entry.id: trust.list_executions(entry) for entry in entries}
    if not options_of().json:
        for entry in entries:
            _print_executions(trust, entry, runs[entry.id])
    if entries and not yes:
        if not is_interactive():
            raise UsageError(
                "this requires confirmation",
                hint="check that you created the datasets, then use --yes to skip the prompt",
            )
        click.confirm(f"Did you create {_count_datasets(entries)}?", abort=True, err=True)
    trust.claim(entries)
    if options_of().json:
        print_json([_trust_json(trust, entry, runs[entry.id]) for entry in entries])
    elif entries:
        print_note(f"{', '.join(str(entry.alias) for entry in entries)}: recorded as your own")
    else:
        print_note("there is no dataset with a private key that is not your own already")


def _count_datasets(entries: Sequence[DatasetEntry]) -> str:
    return "this dataset" if len(entries) == 1 else f"these {len(entries)} datasets"


@verb("untrust", example="odf untrust com.example.cases", json=True)
@click.argument("name")
def untrust_verb(name: str) -> None:
    """Revoke trust in a dataset.

    Until it is trusted again, its source does not run, and its query runs in a sandbox.
    """
    workspace = open_workspace()
    entry, trust = workspace.resolve(name), Trust(workspace)
    was_trusted = trust.revoke(entry)
    if options_of().json:
        print_json(_trust_json(trust, entry, trust.list_executions(entry)))
    elif trust.is_own(entry):
        print_note(f"{entry.alias} is your own dataset and needs no trust")
    else:
        print_note(f"revoked trust in {entry.alias}" if was_trusted else f"{entry.alias} was not trusted")


def _confirm_trust(
    trust: Trust, entry: DatasetEntry, runs: Sequence[Execution], private_network: bool
) -> None:
    if not sys.stdin.isatty():
        if options_of().json:
            print_json(_trust_json(trust, entry, runs))
        raise UsageError(
            f"trusting {entry.alias} requires confirmation",
            hint="check what it runs, then use --yes to skip the prompt",
        )
    also = " with access to the private network" if private_network else ""
    click.confirm(f"Allow {entry.alias} to run this on each pull{also}?", abort=True, err=True)


def _print_executions(trust: Trust, entry: DatasetEntry, runs: Sequence[Execution]) -> None:
    if trust.is_own(entry):
        print_note(f"{entry.alias} is your own dataset and needs no trust")
        return
    if not runs:
        print_note(f"{entry.alias} has no source and needs no trust")
        return
    out = console()
    if trust.is_claimable(entry):
        out.print(f"{entry.alias} has its private key in this workspace, but was not created by you here.")
    else:
        origin = trust.read_origin(entry)
        out.print(f"{entry.alias} is a dataset by another author" + (f" ({origin})" if origin else "") + ".")
    block = None
    for run in runs:
        if run.block != block:
            block = run.block
            out.print(f"\nDefined by block {block}:", soft_wrap=True)
        lines = run.text.splitlines() or [""]
        out.print(f"  {KINDS.get(run.kind, run.kind):<32}  {lines[0]}", soft_wrap=True)
        for line in lines[1:]:
            out.print(f"{'':36}{line}", soft_wrap=True)
    kinds = {run.kind for run in runs}
    out.print()
    if "variable" in kinds:
        out.print("The source reads only the variables that the setting allowedEnv lists for it.")
    if kinds & {"pipe", "image"}:
        out.print("Commands and containers have full network access. Commands run with your permissions.")
    if kinds & {"variable", "pipe", "image"}:
        out.print()


def _trust_json(trust: Trust, entry: DatasetEntry, runs: Sequence[Execution]) -> dict[str, Any]:
    return {
        "id": entry.id,
        "name": str(entry.alias),
        "trust": trust.describe_status(entry),
        "origin": trust.read_origin(entry),
        "private_network": trust.allows_private_network(entry),
        "runs": [{"kind": run.kind, "text": run.text, "block": run.block} for run in runs],
    }
