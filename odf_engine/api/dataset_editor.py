"""Adds datasets, changes their definitions, grants and revokes trust."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from odf_engine.api.model import (
    ManifestChange,
    PendingEvent,
    TrustStatus,
)
from odf_engine.api.readers.dataset_reader import WorkspaceEntries
from odf_engine.api.samples import make_demo
from odf_engine.base.atomic_files import rewrite_text_file, write_error
from odf_engine.base.progress import Reporter
from odf_engine.errors import Conflict, InvalidManifest, NotFound, OdfError, SourceUnavailable
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata import model
from odf_engine.net.credentials import Credentials, RemoteAccess
from odf_engine.on_demand import (
    definition_update,
    definitions,
    http_client,
    manifest_translation,
    metadata_yaml,
    net_download,
    private_source,
    query_check,
)
from odf_engine.worker.endpoint import notify_datasets_changed
from odf_engine.worker.protocol import Request

if TYPE_CHECKING:
    from odf_engine.metadata.resources import ValueSet
    from odf_engine.sql.manifest_translation import ManifestTranslation, TranslatedQuery
    from odf_engine.workspace.definitions.definition import PlannedUpdate
    from odf_engine.workspace.definitions.definition_update import ManifestDrift


class DatasetEditor(WorkspaceEntries):
    """Adds datasets, changes their definitions, grants and revokes trust."""

    def add_manifest(
        self, path: Path, on_progress: Callable[[float], None] = lambda _: None
    ) -> dict[str, str]:
        """Add the datasets of a manifest file, all or none.

        Args:
            path: the file.
            on_progress: called with the progress in percent. If it raises an error, no dataset is created.

        Returns:
            Their names by id.

        Raises:
            NotFound: the file cannot be read.
            InvalidManifest: the manifest is invalid.
            OdfError: a dataset cannot be added.
        """
        entries = self._workspace.add(self._manifests(path), on_progress=on_progress)
        self.record_manifest([str(entry.id) for entry in entries], path)
        notify_datasets_changed(self.folder)
        return {str(entry.id): str(entry.alias) for entry in entries}

    def record_manifest(self, datasets: Iterable[str], path: Path) -> None:
        """Store that a manifest file defines these datasets. Errors are ignored."""
        with suppress(OdfError):
            for dataset in datasets:
                definition_update.record_manifest(self.folder, self.entry(dataset), path)

    def manifest_change(
        self, dataset: str, text: str, *, drifted: bool = False, keeps_comments: bool = False
    ) -> ManifestChange | None:
        """Return the change of the manifest file that defines a dataset to a definition.

        None if no such file is known, or it already has this text.

        Args:
            dataset: id of the dataset.
            text: the definition.
            drifted: only if the file differs from the dataset by more than its text.
            keeps_comments: whether the text of the file is edited if only columns and queries of sources
                differ.

        Raises:
            OdfError: the file cannot be read, or no longer defines the dataset.
        """
        entry = self.entry(dataset)
        path = definition_update.find_manifest(self.folder, entry)
        if path is None:
            return None
        datasets = self._workspace.datasets()
        if drifted and definition_update.find_manifest_drift(self.folder, entry, datasets) is None:
            return None
        new = definition_update.replace_definition(path, entry, text, keeps_comments=keeps_comments)
        old = path.read_text(encoding="utf-8")
        return None if new == old else ManifestChange(path, old, new)

    def write_manifest(self, change: ManifestChange) -> None:
        """Write a changed manifest file.

        Raises:
            Conflict: the file has changed since.
            OdfError: the file cannot be written.
        """
        try:
            if change.path.read_text(encoding="utf-8") != change.old:
                raise Conflict("the file has changed since", where=str(change.path), hint="press e again")
        except OSError as error:
            raise write_error(change.path, error) from error
        rewrite_text_file(change.path, change.new)

    def _manifests(self, path: Path) -> list[model.DatasetSnapshot]:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise InvalidManifest("is not UTF-8 text", where=str(path)) from None
        except FileNotFoundError:
            raise NotFound("file not found", where=str(path)) from None
        except OSError as error:
            raise NotFound(f"cannot be read: {error.strerror}", where=str(path)) from None
        name = str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) else str(path)
        return metadata_yaml.read_manifests(text, name)

    def add_definitions(
        self,
        definitions: Sequence[model.DatasetSnapshot],
        origins: Mapping[str, str],
        on_progress: Callable[[float], None] = lambda _: None,
    ) -> list[str]:
        """Add datasets, all or none, and return their names.

        Args:
            definitions: their definitions.
            origins: the URLs of third-party definitions, by dataset name.
            on_progress: called with the progress in percent. If it raises an error, no dataset is created.

        Raises:
            AlreadyExists: a dataset of the name exists.
            InvalidManifest: a definition is invalid.
        """
        entries = self._workspace.add(definitions, origins, on_progress=on_progress)
        notify_datasets_changed(self.folder)
        return [str(entry.alias) for entry in entries]

    def store_value_sets(self, sets: Sequence[ValueSet]) -> None:
        """Store the values of VariableSet and SecretSet resources (RFC-018) for sources.

        A set replaces the earlier set of its name. The values are in a file that only its owner can read.
        """
        private_source.store_value_sets(self._workspace.odf, sets)

    def plan_definitions(
        self, definitions: Sequence[model.DatasetSnapshot], *, accepts_columns: bool = False
    ) -> list[PlannedUpdate]:
        """Return the events that definitions of new and existing datasets append, in the same order.

        Args:
            definitions: the definitions.
            accepts_columns: whether preprocess queries may return columns that their datasets do not have.
        """
        return self._workspace.update(definitions, dry_run=True, accepts_columns=accepts_columns)

    def update_definitions(
        self,
        definitions: Sequence[model.DatasetSnapshot],
        origins: Mapping[str, str],
        shown: Sequence[PlannedUpdate],
    ) -> list[PlannedUpdate]:
        """Add new datasets, and append the changes of definitions to existing ones.

        Args:
            definitions: the definitions.
            origins: the URLs of third-party definitions, by dataset name.
            shown: the result of :meth:`plan_definitions` for them.

        Raises:
            Conflict: a dataset has changed since.
        """
        updates = self._workspace.update(definitions, origins, shown=list(shown))
        notify_datasets_changed(self.folder)
        return updates

    def localize_inputs(self, definitions: Sequence[model.DatasetSnapshot]) -> list[model.DatasetSnapshot]:
        """Return definitions whose inputs in remotes are replaced by the datasets pulled from there.

        Raises:
            RemoteInputs: inputs were not pulled.
        """
        return self._workspace.localize_inputs(definitions)

    def manifest_drift(self) -> dict[str, ManifestDrift]:
        """Return how datasets differ from the manifest files that define them, by dataset id."""
        datasets = self._workspace.datasets()
        drifts = (
            (str(entry.id), definition_update.find_manifest_drift(self.folder, entry, datasets))
            for entry in datasets
        )
        return {dataset: drift for dataset, drift in drifts if drift is not None}

    def translate_manifest(self, text: str, source: str) -> ManifestTranslation:
        """Return a manifest whose queries for other engines are translated into Spark SQL.

        Raises:
            InvalidQuery: a part of a query has no translation.
        """
        return manifest_translation.translate_manifest(text, source, self._workspace.column_types)

    def download(self, url: str, max_bytes: int, seconds: float) -> bytes:
        """Return the contents of a URL, with the stored credentials and the limits of the workspace.

        Raises:
            SourceUnavailable: it cannot be downloaded, or not in this time.
            BadData: it is larger than ``max_bytes``.
        """
        reporter = Reporter()
        access = RemoteAccess(self._workspace.config, Credentials(self._workspace.odf), reporter)
        client = http_client.HttpClient.for_remote(url, access)
        try:
            get = partial(client.get_bytes, url, max_bytes)
            return net_download.run_cancellable(get, client.abort, reporter, seconds=seconds)
        except net_download.TimeLimitReached:
            raise SourceUnavailable(
                f"the download timed out after {seconds:.0f} seconds",
                hint="check the URL, or download the manifest and add the file",
                where=url,
            ) from None
        finally:
            client.close()

    def can_translate(self, path: Path) -> bool:
        """Return whether a manifest file has a query for a missing engine that can be translated."""
        try:
            return query_check.can_translate(self._manifests(path), self._workspace.config.engines)
        except OdfError:
            return False

    def translate(self, path: Path) -> tuple[ManifestChange, list[TranslatedQuery]]:
        """Return a manifest file with queries for Spark, and these queries.

        Raises:
            InvalidQuery: a part of a query has no translation.
            OdfError: the file cannot be read, or is invalid.
        """
        self._manifests(path)
        text = path.read_text(encoding="utf-8")
        translation = self.translate_manifest(text, str(path))
        return ManifestChange(path, text, translation.text), translation.queries

    def make_demo(self) -> list[tuple[Request, str]]:
        """Write the demo into the workspace, add its datasets, and return the requests to submit."""

        return make_demo(self._workspace)

    def derivative_in_manifest(self, path: Path) -> str:
        """Return the name of the derivative dataset of a manifest file.

        Empty if the file has a root dataset, or several datasets.

        Raises:
            RemoteInputs: inputs of the datasets are in remotes and were not pulled.
            OdfError: the file cannot be read, or is invalid.
        """
        snapshots = self._workspace.localize_inputs(self._manifests(path))
        derivative = len(snapshots) == 1 and snapshots[0].kind is model.DatasetKind.Derivative
        return snapshots[0].name if derivative else ""

    def definition(self, dataset: str) -> str:
        """Return the current definition of a dataset as a manifest; as its author wrote it, if possible."""
        entry, datasets = self.entry(dataset), self._workspace.datasets()
        own = definition_update.read_own_manifest(self.folder, entry, datasets)
        return own or metadata_yaml.snapshot_to_yaml(definitions.read_definition(entry, datasets))

    def update(self, dataset: str, path: Path, *, dry_run: bool) -> list[PendingEvent]:
        """Change the definition of a dataset to a manifest.

        Args:
            dataset: id of the dataset.
            path: the manifest file.
            dry_run: return the events without appending them.

        Raises:
            InvalidManifest: the manifest is invalid, or not the dataset's.
            OdfError: the change is not possible.
        """
        alias = self.entry(dataset).alias
        snapshots = self._manifests(path)
        if len(snapshots) != 1 or DatasetAlias.parse(snapshots[0].name) != alias:
            raise InvalidManifest(
                f"the manifest must define {alias}, and no other dataset",
                hint="use odf rename to rename a dataset; press A to add datasets from a manifest",
            )
        (update,) = self._workspace.update(snapshots, dry_run=dry_run)
        if not dry_run:
            notify_datasets_changed(self.folder)
        return [PendingEvent(change.title, tuple(change.lines), change.in_chain) for change in update.changes]

    def trust_status(self, dataset: str) -> TrustStatus:
        """Return what a dataset runs, and whether it may."""
        entry, trusts = self.entry(dataset), self._trusts
        return TrustStatus(
            id=str(entry.id),
            name=str(entry.alias),
            trust=trusts.describe_status(entry),
            origin=trusts.read_origin(entry),
            private_network=trusts.allows_private_network(entry),
            runs=trusts.list_executions(entry),
            claimable=trusts.is_claimable(entry),
            was_trusted=trusts.find_grant(entry) is not None,
        )

    def trust(self, shown: TrustStatus, *, private_network: bool = False) -> None:
        """Trust a dataset to execute what was shown. ``private_network`` allows private addresses.

        Raises:
            Conflict: the dataset changed since.
        """
        self._trusts.grant(self.entry(shown.id), private_network=private_network, shown=shown.runs)

    def claim(self, datasets: Iterable[str]) -> None:
        """Record datasets with private keys in the workspace as own ones, which need no trust."""
        self._trusts.claim([self.entry(dataset) for dataset in datasets])

    def untrust(self, dataset: str) -> bool:
        """Revoke the trust in a dataset, and return whether it was trusted."""
        return self._trusts.revoke(self.entry(dataset))
