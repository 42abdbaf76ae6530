"""Trust: which sources of other authors may run, and proofs by the owner of a dataset's key."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from odf_engine.base.atomic_files import make_folder, read_small_file, replace_text_file
from odf_engine.base.files import remove_file, translate_os_errors
from odf_engine.chain.block_search import block_numbers
from odf_engine.errors import BadData, Conflict, InvalidManifest, NotFound, NotTrusted, OdfError, disk_hint
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.ownership_proof import (
    OwnershipProof,
    create_and_store_proof,
    list_proof_files,
    read_proof,
    verify_proof,
)
from odf_engine.metadata import model
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.mirror.catalog import ORIGIN_FILE
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.environment import find_variables
from odf_engine.workspace.seals import is_marked_own, is_sealed, mark_own, seal
from odf_engine.workspace.workspace import Workspace

_MAX_PROOFS: Final = 1000  # takes two seconds


class ProvenBlock(NamedTuple):
    """A block with a valid proof.

    Attributes:
        number: its sequence number.
        newer: the number of blocks after it.
        actor: who signed it, or "" if the proof does not name the actor.
    """

    number: int
    hash: Multihash
    newer: int
    actor: str


def find_newest_proven_block(entry: DatasetEntry) -> ProvenBlock | None:
    """Return the newest block with a valid proof by the dataset's key, or None.

    Invalid proofs, and proofs of blocks that are not in the chain, are ignored.

    Raises:
        OdfError: the chain cannot be read.
    """
    return next(_iter_proven_blocks(entry), None)


def list_proven_blocks(entry: DatasetEntry) -> list[ProvenBlock]:
    """Return the blocks with a valid proof, newest first; at most the newest 1000 proofs are checked.

    Raises:
        OdfError: the chain cannot be read.
    """
    return list(_iter_proven_blocks(entry))


def _iter_proven_blocks(entry: DatasetEntry) -> Iterator[ProvenBlock]:
    names = list(list_proof_files(entry.dataset.folder))
    if not names:
        return
    state = entry.dataset.state()
    numbers = sorted(block_numbers(entry.dataset, names).items(), key=lambda item: -item[1])
    for name, number in numbers[:_MAX_PROOFS]:
        block = Multihash.parse(name)
        try:
            proof = read_proof(entry.dataset.folder, block)
            if proof is None:
                continue
            verify_proof(proof, state.dataset_id, block)
        except BadData:
            continue
        yield ProvenBlock(number, block, state.sequence_number - number, proof.actor)


def prove_block(workspace: Workspace, entry: DatasetEntry, block: Multihash | None = None) -> OwnershipProof:
    """Create and store a proof of a block, by default the head, with the dataset's private key.

    Raises:
        NotFound: the key is not in the workspace, or the block is not in the chain.
        OdfError: the proof cannot be written.
    """
    state = entry.dataset.state()
    block = block or state.head
    if block != state.head and not entry.dataset.contains_block(block):
        raise NotFound(f"block {block} not found in {entry.alias}")
    try:
        key = workspace.keys.private_key_pem(state.dataset_id)
    except NotFound:
        hint = "transfer the key with odf keys export and odf keys import: only the owner can sign"
        raise NotFound(f"the private key of {entry.alias} is not in this workspace", hint=hint) from None
    try:
        return create_and_store_proof(entry.dataset.folder, state.dataset_id, key, block, workspace.actor)
    except OSError as error:
        raise OdfError(
            f"the proof cannot be written: {error.strerror or error}",
            where=str(error.filename or entry.dataset.folder),
            hint=disk_hint(error),
        ) from error


EXECUTION_KINDS: Final = {
    "url": "reads the URL",
    "file": "reads the file",
    "files": "reads the files",
    "header": "sends the header",
    "variable": "reads the environment variable",
    "image": "runs the container",
    "logs": "reads the logs of",
    "topic": "receives the messages of",
    "command": "with the command",
    "set": "with the variable",
    "pipe": "pipes the data through",
    "push": "accepts rows pushed to",
    "query": "runs the query",
    "other": "has a source of kind",
}
"""The kinds of executions, with their descriptions for the user."""
_MAX_PUSH_SOURCE_BLOCKS: Final = 100_000


class Execution(msgspec.Struct, frozen=True):
    """A command that a source runs, or data that it reads.

    Attributes:
        kind: one of :data:`EXECUTION_KINDS`.
        text: a command line, an address, a name or a query, with control characters escaped.
        block: the block that defines it.
    """

    kind: str
    text: str
    block: Multihash


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The permission to run the sources of a dataset.

    Attributes:
        blocks: hashes of the blocks that define the sources, as text.
        runs: kind and text of every execution, to describe later changes.
        private_network: whether addresses of this machine and of private networks are allowed.
        granted: time of the permission.
        seal: the user's seal. A grant without it is not valid: the workspace may come from somebody else.
    """

    blocks: list[str]
    runs: list[tuple[str, str]]
    private_network: bool
    granted: str
    seal: str = ""


class Trust:
    """Permissions to run the sources of a workspace's datasets."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def is_own(self, entry: DatasetEntry) -> bool:
        """Return whether this user created the dataset, and its definition has no other author.

        The private key alone does not show this: the workspace may come from somebody else, with its keys.
        """
        keys = self._workspace.keys
        return keys.has_key(entry.id) and self.read_origin(entry) is None and is_marked_own(keys, entry.id)

    def is_claimable(self, entry: DatasetEntry) -> bool:
        """Return whether the dataset would be an own one if this user had created the workspace."""
        has_key = self._workspace.keys.has_key(entry.id)
        return has_key and self.read_origin(entry) is None and not self.is_own(entry)

    def claim(self, entries: Sequence[DatasetEntry]) -> None:
        """Record datasets as own ones: this user created them.

        Raises:
            OdfError: a record cannot be written.
        """
        for entry in entries:
            mark_own(self._workspace.keys, entry.id)

    def read_origin(self, entry: DatasetEntry) -> str | None:
        """Return the origin of the definition, or None if it has no other author, or if unknown."""
        try:
            return read_small_file(entry.dataset.folder / ORIGIN_FILE).decode("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError):
            return "an unknown location"

    def is_trusted(self, entry: DatasetEntry) -> bool:
        """Return whether the current sources may run: the dataset is own, or all sources are granted."""
        if self.is_own(entry):
            return True
        grant = self.find_grant(entry)
        return grant is not None and {str(block) for block, _ in _find_sources(entry)} <= set(grant.blocks)

    def describe_status(self, entry: DatasetEntry) -> Literal["own", "trusted", "not trusted"]:
        """Return the trust status of the dataset."""
        if self.is_own(entry):
            return "own"
        return "trusted" if self.is_trusted(entry) else "not trusted"

    def allows_private_network(self, entry: DatasetEntry) -> bool:
        """Return whether the sources may access addresses of this machine and of private networks."""
        if self.is_own(entry):
            return True
        grant = self.find_grant(entry)
        return grant is not None and grant.private_network and self.is_trusted(entry)

    def list_executions(self, entry: DatasetEntry) -> list[Execution]:
        """Return everything that the active sources run or read, in the order of execution."""
        return [
            Execution(kind, _escape_controls(text), block)
            for block, event in _find_sources(entry)
            for kind, text in self._of_source(event)
        ]

    def grant(
        self,
        entry: DatasetEntry,
        *,
        private_network: bool = False,
        shown: Sequence[Execution] | None = None,
    ) -> Grant:
        """Permit the current sources to run; replace an earlier grant.

        Args:
            entry: the dataset.
            private_network: whether private addresses are allowed.
            shown: the executions that the user has confirmed.

        Raises:
            Conflict: the sources differ from ``shown``.
        """
        runs = self.list_executions(entry)
        if shown is not None and list(shown) != runs:
            raise Conflict(
                f"the sources of {entry.alias} have changed",
                hint="review what they run now, then try again",
            )
        grant = Grant(
            blocks=[str(block) for block, _ in _find_sources(entry)],
            runs=[(run.kind, run.text) for run in runs],
            private_network=private_network,
            granted=str(Timestamp.now()),
        )
        grant = replace(grant, seal=seal(*_sealed_parts(entry, grant)))
        path = self._workspace.grant_path(entry.id)
        with translate_os_errors(path.parent):
            make_folder(path.parent, 0o700)
        replace_text_file(path, msgspec.json.encode(grant).decode())
        return grant

    def revoke(self, entry: DatasetEntry) -> bool:
        """Remove the grant; return whether there was one."""
        return remove_file(self._workspace.grant_path(entry.id))

    def find_grant(self, entry: DatasetEntry) -> Grant | None:
        """Return the last grant by this user, whether or not it is still valid, or None if absent."""
        try:
            grant = msgspec.json.decode(read_small_file(self._workspace.grant_path(entry.id)), type=Grant)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return grant if is_sealed(grant.seal, *_sealed_parts(entry, grant)) else None

    def require_trust(self, entry: DatasetEntry) -> None:
        """Check that the sources of a dataset may run. Every run must call this first.

        Raises:
            NotTrusted: the dataset is by a third party, and its sources were not granted, or have changed.
        """
        if self.is_trusted(entry) or not (runs := self.list_executions(entry)):
            return
        if entry.dataset.state().kind is model.DatasetKind.Derivative:
            return  # an untrusted query runs in a sandbox
        hint = f"review what it runs; to allow it, run odf trust {entry.alias}"
        grant = self.find_grant(entry)
        if grant is None:
            origin = self.read_origin(entry)
            foreign = f"definition from {origin}" if origin else "not created by you"
            if self.is_claimable(entry):
                known = (
                    "if you created it, with an earlier version or on another machine, run odf trust --own"
                )
                hint = f"{known}; otherwise {hint}"
            raise NotTrusted(
                f"{entry.alias} is untrusted ({foreign}): it would run {_join_executions(runs)}", hint=hint
            )
        block = next(run.block for run in runs if str(run.block) not in grant.blocks)
        changes = _describe_changes(grant.runs, runs)
        raise NotTrusted(f"block {block} changed the source after it was trusted: {changes}", hint=hint)

    def _of_source(self, event: Any) -> Iterator[tuple[str, str]]:
        if isinstance(event, model.SetTransform):
            yield from _iter_queries(event.transform)
            return
        if isinstance(event, model.AddPushSource):
            yield "push", event.source_name
        else:
            yield from self._of_fetch(event.fetch)
            for step in event.prepare or ():
                # A filter of this program reads no files, and opens no connections.
                if isinstance(step, model.Pipe) and step.command[:2] != ["odf", "filter"]:
                    yield "pipe", shlex.join(step.command)
        yield from _iter_queries(event.preprocess)

    def _of_fetch(self, fetch: Any) -> Iterator[tuple[str, str]]:
        match fetch:
            case model.Url():
                headers = [f"{header.name}: {header.value}" for header in fetch.headers or ()]
                local = urlsplit(fetch.url).scheme.lower() in ("", "file")
                yield ("file", str(self._workspace.resolve_path(fetch.url))) if local else ("url", fetch.url)
                yield from (("header", header) for header in headers)
                yield from _iter_variables([fetch.url, *headers])
            case model.FilesGlob():
                yield "files", str(self._workspace.resolve_path(fetch.path))
            case model.Container():
                yield "image", fetch.image
                if command := [*(fetch.command or ()), *(fetch.args or ())]:
                    yield "command", shlex.join(command)
                env = fetch.env or []
                yield from (
                    ("set", f"{entry.name}={entry.value}") for entry in env if entry.value is not None
                )
                yield from _iter_variables(entry.value for entry in env if entry.value is not None)
                yield from (("variable", entry.name) for entry in env if entry.value is None)
            case model.Mqtt():
                yield from (
                    ("topic", f"mqtt://{fetch.host}:{fetch.port} {topic.path}") for topic in fetch.topics
                )
                yield from _iter_variables([fetch.username or "", fetch.password or ""])
            case model.EthereumLogs():
                yield "logs", fetch.node_url or f"Ethereum chain {fetch.chain_id}"
                yield from _iter_variables([fetch.node_url or ""])
            case _:
                yield "other", model.kind_of(fetch)


def _sealed_parts(entry: DatasetEntry, grant: Grant) -> list[str]:
    return ["grant", str(entry.id), msgspec.json.encode(replace(grant, seal="")).decode()]


def _find_sources(entry: DatasetEntry) -> list[tuple[Multihash, Any]]:
    """Return the active sources, or the transform, with the blocks that define them."""
    dataset, sources = entry.dataset, []
    newest = dataset.list_blocks(1, kinds={"SetPollingSource", "DisablePollingSource"})
    for row in newest + dataset.list_blocks(1, kinds={"SetTransform"}):
        if row.kind != "DisablePollingSource":
            sources.append((row.hash, dataset.block(row.hash).block.event))
    names: set[str] = set()
    for row in dataset.list_blocks(_MAX_PUSH_SOURCE_BLOCKS, kinds={"AddPushSource", "DisablePushSource"}):
        event: Any = dataset.block(row.hash).block.event
        if event.source_name not in names and row.kind == "AddPushSource":
            sources.append((row.hash, event))
        names.add(event.source_name)
    return sources


def _iter_queries(sql: Any) -> Iterator[tuple[str, str]]:
    if isinstance(sql, model.Sql):
        queries = sql.queries or [model.SqlQueryStep(query=sql.query or "")]
        yield from (("query", step.query) for step in queries)


def _iter_variables(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    names: list[str] = []
    for text in texts:
        with contextlib.suppress(InvalidManifest):  # the fetch step reports it
            names += find_variables(text)
    yield from (("variable", name) for name in dict.fromkeys(names))


def _escape_controls(text: str) -> str:
    """Escape control characters, which could hide a part of the text."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()
        for char in text
    )


def _join_executions(runs: Iterable[Execution]) -> str:
    return ", ".join(_shorten(run.kind, run.text) for run in runs)


def _shorten(kind: str, text: str) -> str:
    text = " ".join(text.split())
    return f"{kind} `{text if len(text) <= 120 else text[:119] + '…'}`"


def _describe_changes(before: Iterable[tuple[str, str]], runs: Iterable[Execution]) -> str:
    old, new = list(before), [(run.kind, run.text) for run in runs]
    added = [_shorten(*item) for item in new if item not in old]
    removed = [_shorten(*item) for item in old if item not in new]
    parts = ([f"new: {', '.join(added)}"] if added else []) + (
        [f"removed: {', '.join(removed)}"] if removed else []
    )
    return "; ".join(parts) or "it runs the same commands, but reads or merges differently"
