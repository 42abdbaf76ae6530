"""Changes of a workspace that need no job: datasets, settings, credentials, remotes, file check."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, NamedTuple, TypeVar

from msgspec.structs import replace

from odf_engine.api.operations.file_check import check_files, collect_files
from odf_engine.api.operations.key_files import (
    PrivateKey,
    export_private_key,
    export_to_file,
    import_from_file,
    list_private_keys,
    store_private_key,
)
from odf_engine.api.operations.server_process import ServerProcess
from odf_engine.api.readers.dataset_reader import WorkspaceEntries
from odf_engine.automation.alerts.store import Delivery, has_queue, read_newest, read_terminal_messages
from odf_engine.base import settings
from odf_engine.base.config import Config
from odf_engine.base.lazy import LazyModule
from odf_engine.base.progress import Reporter
from odf_engine.chain.block_search import resolve_block_number
from odf_engine.checks.reports import RejectedBatch, list_rejected
from odf_engine.errors import InvalidIdentity, NotFound, UsageError
from odf_engine.identity import ownership_proof
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import multibase_encode
from odf_engine.identity.names import DatasetAlias
from odf_engine.net.credentials import Credentials
from odf_engine.net.urls import origin_of
from odf_engine.on_demand import definitions, document_store
from odf_engine.storage.scratch import spool_stream
from odf_engine.worker.endpoint import notify_datasets_changed
from odf_engine.workspace.tokens import Tokens
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from odf_engine.api import alerts as workspace_alerts
    from odf_engine.api import flows as workspace_flows
    from odf_engine.api.operations import document_check, health
    from odf_engine.automation.alerts import metrics as workspace_metrics
    from odf_engine.automation.flows import trial as flow_trial
    from odf_engine.automation.flows.definition import Flow
    from odf_engine.automation.flows.trial import FlowTrial
    from odf_engine.workspace.documents.document import Document
    from odf_engine.workspace.fsck import FsckReport
else:
    workspace_alerts = LazyModule("odf_engine.api.alerts")
    document_check = LazyModule("odf_engine.api.operations.document_check")
    workspace_flows = LazyModule("odf_engine.api.flows")
    flow_trial = LazyModule("odf_engine.automation.flows.trial")
    health = LazyModule("odf_engine.api.operations.health")
    workspace_metrics = LazyModule("odf_engine.automation.alerts.metrics")

D = TypeVar("D", bound="Document[Any]")
_MAX_PROOF_BYTES: Final = 4 << 20
_SAFE: Final = "safeDirectories"


SettingsCheck = Callable[[Mapping[str, Any]], object]
"""Raises UsageError if the changed settings of a file are invalid."""


class VariableAccess(NamedTuple):
    """The environment variables of a dataset.

    Attributes:
        setting: key of the setting that allows them.
        allowed: the allowed variables.
        used: the variables that the definition uses.
    """

    setting: str
    allowed: list[str]
    used: list[str]


class Administration(WorkspaceEntries):
    """Changes datasets, settings, credentials and remotes of a workspace."""

    def rename(self, dataset: str, name: str) -> list[str]:
        """Rename a dataset, and return the keys of the settings that refer to its old name.

        Raises:
            AlreadyExists: another dataset has the name.
            OdfError: the name is invalid, or the dataset does not exist.
        """
        entry = self.entry(dataset)
        old = str(entry.alias).casefold()
        self._workspace.rename(entry, DatasetAlias.parse(name))
        notify_datasets_changed(self.folder)
        config = settings.load_workspace(self._workspace.odf)
        mappings: dict[str, Mapping[str, object]] = {
            "allowedEnv": config.allowed_env,
            "allowedLateness": config.allowed_lateness,
            "fetch.cache": config.fetch.cache,
            "labels": config.labels,
            "onBadRows": config.on_bad_rows,
            "onConflict": config.on_conflict,
            "watermark.maxAhead": config.watermark.max_ahead,
            "watermark.delay": config.watermark.delay,
            "watermark.static": config.watermark.static,
        }
        return [
            f"{group}.{key}" for group, values in mappings.items() for key in values if key.casefold() == old
        ]

    def duplicate(self, dataset: str, name: str) -> bool:
        """Create a dataset with the definition of another one, and without its rows.

        The copy of a third-party definition has the same author.

        Returns:
            Whether the copy requires trust.

        Raises:
            AlreadyExists: a dataset has the name.
            OdfError: the name is invalid, or the definition cannot be read.
        """
        entry = self.entry(dataset)
        snapshot = replace(definitions.read_definition(entry, self._workspace.datasets()), name=name)
        is_own = self._trusts.is_own(entry)
        origin = self._trusts.read_origin(entry) or f"dataset {entry.id}"
        self._workspace.add([snapshot], None if is_own else {name: origin})
        notify_datasets_changed(self.folder)
        return not is_own

    def check_deletable(self, datasets: Collection[str]) -> None:
        """Check that no other datasets are derived from datasets.

        Raises:
            Conflict: there are some; they are named.
        """
        self._workspace.check_deletable([self.entry(dataset) for dataset in datasets])

    def delete(self, dataset: str) -> bool:
        """Delete a dataset and its data.

        Returns:
            Whether its private key remains in the workspace.

        Raises:
            OdfError: other datasets are derived from it, or it cannot be deleted.
        """
        entry = self.entry(dataset)
        self._workspace.delete(entry)
        notify_datasets_changed(self.folder)
        return self._workspace.keys.has_key(entry.id)

    def find_blocks(self, dataset: str, span: str) -> tuple[int | None, int | None]:
        """Return the numbers of the blocks of a range ``FROM..TO``, or None for an omitted end.

        Raises:
            OdfError: it is not a range, or a block does not exist.
        """
        first, dots, last = span.partition("..")
        if not dots:
            raise UsageError(f"{span}: not of the form FROM..TO", hint="FROM or TO can be omitted: 10..")
        chain = self.entry(dataset).dataset
        numbers = [
            resolve_block_number(chain, text.strip()) if text.strip() else None for text in (first, last)
        ]
        return numbers[0], numbers[1]

    def variables(self, dataset: str) -> VariableAccess:
        """Return the environment variables that a dataset uses, and those that it may read."""
        entry = self.entry(dataset)
        names = (str(entry.alias), str(entry.id))
        config = settings.load_workspace(self._workspace.odf)
        keys = {key.casefold(): key for key in config.allowed_env}
        key = next((keys[name.casefold()] for name in names if name.casefold() in keys), names[0])
        used = [
            execution.text
            for execution in self._trusts.list_executions(entry)
            if execution.kind == "variable"
        ]
        return VariableAccess(f"allowedEnv.{key}", config.allowed_for(*names), list(dict.fromkeys(used)))

    def allows_private_network(self, dataset: str) -> bool:
        """Return whether the sources of a dataset may access private addresses."""
        return self._trusts.allows_private_network(self.entry(dataset))

    @property
    def credentials(self) -> Credentials:
        """The stored credentials of repositories and servers."""
        return Credentials(self._workspace.odf)

    def private_keys(self) -> list[PrivateKey]:
        """Return the private keys in the workspace, its datasets' first, by name."""
        return list_private_keys(self._workspace)

    def export_private_key(self, key: PrivateKey, path: Path, passphrase: str | None) -> None:
        """Export a private key to a new file, readable by its owner only.

        Raises:
            AlreadyExists: the file exists.
            OdfError: the key cannot be read, or the file cannot be written.
        """
        export_to_file(self._workspace, key.id, key.name or str(key.id), path, passphrase)

    def import_private_key(
        self, path: Path, passphrase: str | None
    ) -> tuple[DatasetId, Literal["known", "imported"]]:
        """Import a private key from a PEM file. Return its dataset, and whether the key was new.

        Raises:
            OdfError: the file cannot be read, or contains no such key.
        """
        imported = import_from_file(self._workspace, path, passphrase)
        notify_datasets_changed(self.folder)
        return imported

    def dataset_id(self, name: str) -> DatasetId:
        """Return the id of a dataset by its name or id. With an id, it may be missing in the workspace.

        Raises:
            NotFound: there is no dataset of this name.
        """
        try:
            return DatasetId.parse(name)
        except InvalidIdentity:
            return self._workspace.resolve(name).id

    def has_private_key(self, dataset: DatasetId | str) -> bool:
        """Return whether the private key of a dataset is in the workspace."""
        return self._workspace.keys.has_key(DatasetId.parse(str(dataset)))

    def private_key_pem(self, dataset: DatasetId, label: str, passphrase: str | None) -> str:
        """Return the private key of a dataset as PKCS#8 PEM, encrypted if there is a passphrase.

        Raises:
            NotFound: the key is not in the workspace.
            BadData: the stored file contains another key.
        """
        return export_private_key(self._workspace, dataset, label, passphrase)

    def store_private_key(self, dataset: DatasetId, pem: str) -> Literal["known", "imported"]:
        """Store a private key in the workspace, and return whether it was known."""
        return store_private_key(self._workspace, dataset, pem)

    def sign(self, dataset: DatasetId, data: bytes) -> str:
        """Return the ed25519 signature of bytes with the private key of a dataset, in multibase.

        Raises:
            NotFound: the key is not in the workspace.
            UsageError: the signature would be a part of an ownership proof.
        """
        if ownership_proof.is_statement(data):
            raise UsageError(
                "the file is what an ownership proof signs: its signature would be a part of a proof",
                hint=f"to create a proof, use odf keys prove {dataset} --block HASH",
            )
        key = ownership_proof.load_private_key(self._workspace.keys.private_key_pem(dataset))
        return multibase_encode(ownership_proof.sign(key, data))

    def delete_private_key(self, dataset: DatasetId) -> None:
        """Delete the private key of a dataset. Its ownership can no longer be proven."""
        self._workspace.delete_key(dataset)
        notify_datasets_changed(self.folder)

    @property
    def push_tokens(self) -> Tokens:
        """The tokens of clients that push to the server of the workspace."""
        return Tokens(self._workspace.odf)

    def spool(
        self, stream: BinaryIO, name: str, on_size: Callable[[int], None]
    ) -> AbstractContextManager[Path]:
        """Copy a stream to a file that jobs can read. The file is removed at the end of the ``with`` body.

        Args:
            stream: such as stdin.
            name: the name of the file.
            on_size: called with the number of bytes so far.
        """
        return spool_stream(self._workspace.odf, stream, name, on_size)

    def start_server(self, options: list[str]) -> ServerProcess:
        """Start a server for the datasets, and wait until it is ready.

        Args:
            options: the options of ``odf serve``.

        Raises:
            OdfError: the server does not start.
        """
        return ServerProcess.start(self.folder, options)

    def check_health(self, *, start_spark: bool = False) -> list[health.HealthCheck]:
        """Check that jobs can run: the disk, permissions, clock, versions of rows, worker, Spark and memory.

        Args:
            start_spark: start Spark too, which takes some seconds.
        """
        return health.check_workspace(self._workspace, start=start_spark)

    def collect_files(
        self, datasets: Collection[str], reporter: Reporter, *, dry_run: bool, now: bool
    ) -> FsckReport:
        """Remove expired old heads, and files that no reference uses.

        Args:
            datasets: the ids of the datasets to clean.
            reporter: for progress.
            dry_run: only list the files.
            now: also remove files and old heads of the last hour.
        """

        entries = [self.entry(dataset) for dataset in datasets]
        return collect_files(self._workspace, entries, reporter, dry_run=dry_run, now=now)

    def check_files(self, reporter: Reporter, *, repair: bool = False, now: bool = False) -> FsckReport:
        """Check the files of the workspace, and repair them if requested.

        Args:
            reporter: for progress.
            repair, now: see :class:`odf_engine.workspace.fsck.FsckReport`.

        Raises:
            Conflict: the jobs of the running worker cannot be read.
        """

        # A new workspace has no cached state.
        return check_files(Workspace(self.folder), reporter, repair=repair, now=now)

    def documents(self, kind: type[D]) -> document_store.Documents[D]:
        """Return the documents of a kind: flows, checks or alerts."""
        return document_store.Documents(self._workspace.odf, kind)

    def check_document(self, document: Document[Any]) -> list[str]:
        """Check targets and columns of a flow, check or alert; return the names of the target datasets.

        Raises:
            InvalidManifest: a target or a column does not exist.
        """
        return document_check.check_document(self._workspace, document)

    @property
    def alerts(self) -> workspace_alerts.WorkspaceAlerts:
        """The alerts."""
        return workspace_alerts.WorkspaceAlerts(self._workspace)

    def metrics(self) -> str:
        """Return metrics in the text format of Prometheus."""
        return workspace_metrics.collect_metrics(self._workspace, self._workspace.summaries())

    def write_metrics(self, path: Path) -> None:
        """Replace a file by metrics in the text format of Prometheus, atomically."""
        workspace_metrics.write_metrics(self._workspace, path)

    def try_flow(self, flow: Flow) -> FlowTrial:
        """Return what a run of a flow would do, and whether it can. Nothing is run or changed.

        Raises:
            NotFound: a target matches no dataset.
            OdfError: a dataset cannot be read.
        """
        return flow_trial.try_flow(self._workspace, flow, time.time())

    def flows(self) -> workspace_flows.WorkspaceFlows:
        """Return the flows. The caller closes them."""
        return workspace_flows.WorkspaceFlows(self._workspace.odf)

    def dataset_checks(self, dataset: str, commits: int) -> workspace_flows.ChecksView:
        """Return the checks of a dataset with the results of up to ``commits`` commits."""
        return workspace_flows.read_dataset_checks(self.folder, dataset, commits)

    def rejected_batches(self, datasets: Collection[str]) -> list[RejectedBatch]:
        """Return the batches of rows that checks of datasets rejected, newest first."""
        return list_rejected(self._workspace.odf, list(map(DatasetId.parse, datasets)))

    def alert_messages(self, limit: int) -> list[Delivery]:
        """Return the newest messages of alerts, newest first."""
        return read_newest(self._workspace.odf, limit)

    def terminal_messages(self, after: float | None) -> tuple[float, list[Delivery]] | None:
        """Return the messages of alerts for terminals, or None without alerts.

        Args:
            after: the time that the last call returned, or None to get only the time.

        Returns:
            The time of the last message that the worker handled, and the messages after ``after``.
        """
        odf = self._workspace.odf
        return read_terminal_messages(odf, after) if has_queue(odf) else None

    def saved_config(self) -> Config:
        """Return the settings that the files have now."""
        return settings.load_workspace(self._workspace.odf)

    def settings(self, *, user: bool = False) -> list[settings.Setting]:
        """Return the settings of the workspace, or the user's for all workspaces."""
        odf = self._workspace.odf
        config = settings.load_config(settings.user_file()) if user else settings.load_workspace(odf)
        return settings.list_settings(config)

    def change_setting(
        self, key: str, value: str | None, *, user: bool = False, check: SettingsCheck | None = None
    ) -> Path | None:
        """Change a setting of the workspace, or of the user. See :func:`change_setting`."""
        return change_setting(key, value, None if user else self._workspace.odf, check)


def change_setting(
    key: str, value: str | None, odf: Path | None, check: SettingsCheck | None = None
) -> Path | None:
    """Change a setting.

    A setting of a workspace that only the user's configuration may contain is written there.

    Args:
        key: the setting.
        value: its value; None removes it.
        odf: the ``.odf`` folder of the workspace, or None for a setting of the user, for all workspaces.
        check: checks the changed settings before they are written.

    Returns:
        The file that was written, or None if there was nothing to remove.

    Raises:
        UsageError: the key is unknown, or the value is invalid.
        OdfError: a file cannot be read or written.
    """
    is_own = settings.is_user_setting(key)
    if key == _SAFE and odf is not None and value is not None:
        raise UsageError(
            f"{_SAFE} can only be set for all workspaces",
            hint=f"run odf config set --user {_SAFE} {shlex.quote(value)}",
        )
    path = (
        settings.user_file()
        if odf is None
        else settings.workspace_user_file(odf)
        if is_own
        else odf / settings.CONFIG_FILE
    )
    is_written = value is not None or path.exists()
    if is_written:
        plain = settings.apply_change(path, key, value)
        if check is not None:
            check(plain)
        settings.write(plain, path, odf)
    if odf is not None and is_own and (odf / settings.CONFIG_FILE).exists():
        # The setting is invalid in the configuration of the workspace.
        own_path = odf / settings.CONFIG_FILE
        settings.write(settings.apply_change(own_path, key, None), own_path, odf)
    return path if is_written else None


def read_proof(file: Path) -> str:
    """Return the text of a proof.

    Raises:
        NotFound: the file cannot be read.
        UsageError: it is too large.
    """
    try:
        with file.open("rb") as source:
            data = source.read(_MAX_PROOF_BYTES + 1)
    except OSError as error:
        raise NotFound(f"{file} cannot be read: {error.strerror}") from None
    if len(data) > _MAX_PROOF_BYTES:
        raise UsageError(f"{file} is too large for a proof")
    return data.decode("utf-8", "replace")


def unencrypted_warning(url: str) -> str:
    """Return a warning if credentials for a URL are sent unencrypted to another machine; else nothing."""
    host = origin_of(url).partition("://")[2]
    if host.startswith(("localhost", "127.", "[::1]")):
        return ""
    if url.startswith(("http:", "odf+http:", "s3+http:")):
        return "they are sent unencrypted over http: use https if possible"
    if url.startswith("mqtt:") and not host.endswith(":8883"):  # the port of MQTT over TLS
        return "they are sent unencrypted: use port 8883 of the broker if possible"
    return ""
