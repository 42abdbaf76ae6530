"""Datasets as a person changes them: definitions, and trust."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from odf_engine.coordinator.endpoint import notify_datasets_changed
from odf_engine.coordinator.protocol import Request
from odf_engine.errors import Conflict, InvalidManifest, NotFound
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata import model
from odf_engine.workspace import trust
from odf_tui.engine.base import Entries
from odf_tui.state import Change, Execution, Standing


class Changes(Entries):
    """Changes datasets."""

    def add(self, path: Path) -> dict[str, str]:
        """Adds the datasets of a manifest file: all of them or none."""
        entries = self.workspace.add(self._manifests(path))
        notify_datasets_changed(self.folder)
        return {str(entry.id): str(entry.alias) for entry in entries}

    def _manifests(self, path: Path) -> list[model.DatasetSnapshot]:
        from odf_engine.metadata.yaml import read_manifests

        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise InvalidManifest("is not UTF-8 text", where=str(path)) from None
        except FileNotFoundError:
            raise NotFound("there is no such file", where=str(path)) from None
        except OSError as error:
            raise NotFound(f"cannot be read: {error.strerror}", where=str(path)) from None
        name = str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) else str(path)
        return read_manifests(text, name)

    def make_demo(self) -> list[tuple[Request, str]]:
        """Writes the demo into the workspace and adds its datasets."""
        from odf_tui.demo import make_demo

        return make_demo(self.workspace)

    def query_in(self, path: Path) -> str:
        """The name of the one derivative dataset of a manifest file; empty when it has another or several."""
        snapshots = self._manifests(path)
        derivative = len(snapshots) == 1 and snapshots[0].kind is model.DatasetKind.Derivative
        return snapshots[0].name if derivative else ""

    def definition(self, dataset: str) -> str:
        """A dataset's definition as its chain has it, as a manifest."""
        from odf_engine.metadata.yaml import snapshot_to_yaml
        from odf_engine.workspace.definition import current_definition

        names = {entry.id: str(entry.alias) for entry in self.workspace.datasets()}
        return snapshot_to_yaml(current_definition(self.entry(dataset), names))

    def update(self, dataset: str, path: Path, *, dry_run: bool) -> list[Change]:
        """Makes a dataset what a manifest says."""
        alias = self.entry(dataset).alias
        snapshots = self._manifests(path)
        if len(snapshots) != 1 or DatasetAlias.parse(snapshots[0].name) != alias:
            raise InvalidManifest(
                f"this has to be the definition of {alias}, and of nothing else",
                hint="odf rename gives a dataset another name; a adds another dataset",
            )
        (update,) = self.workspace.update(snapshots, dry_run=dry_run)
        if not dry_run:
            notify_datasets_changed(self.folder)
        return [Change(change.title, tuple(change.lines)) for change in update.changes]

    def standing(self, dataset: str) -> Standing:
        """What a dataset that somebody else wrote would run."""
        entry = self.entry(dataset)
        return Standing(
            self.trusts.read_origin(entry) or "",
            _shown(self.trusts.list_executions(entry)),
            self.trusts.find_grant(entry) is not None,
        )

    def trust(self, dataset: str, shown: Standing) -> None:
        """Lets a dataset run what was shown."""
        entry = self.entry(dataset)
        runs = self.trusts.list_executions(entry)
        if _shown(runs) != shown.runs:
            raise Conflict("its sources changed meanwhile", hint="look at what they run now, and decide")
        self.trusts.grant(entry, shown=runs)

    def untrust(self, dataset: str) -> bool:
        """Takes that back."""
        return self.trusts.revoke(self.entry(dataset))


def _shown(runs: Sequence[trust.Execution]) -> tuple[Execution, ...]:
    return tuple(Execution(trust.KINDS.get(run.kind, run.kind), run.text, str(run.block)) for run in runs)
