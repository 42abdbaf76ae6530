"""DatasetChangesController: rename, duplicate and delete datasets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from odf_engine.api.model import DatasetRow
from odf_engine.api.text import count_of, format_bytes, printable
from odf_tui.services.controller import Controller, dataset_task
from odf_tui.text.format import Span
from odf_tui.widgets.dialogs import PromptDialog, TypedConfirmation, name_check


class DatasetChangesController(Controller):
    """Renames, duplicates and deletes datasets."""

    @dataset_task
    async def rename(self, row: DatasetRow) -> None:
        """Rename the selected dataset."""
        used = [dataset.name for dataset in self.state.datasets if dataset.id != row.id]
        remark = "the id and the datasets derived from it do not change"
        name = await self.host.ask(PromptDialog(f"Rename {row.name}", row.name, remark, name_check(used)))
        if not name or name == row.name:
            return
        outdated = await asyncio.to_thread(self.workspace.rename, row.id, name)
        self.state.datasets_outdated.send(None)
        if outdated:
            settings = ", ".join(outdated)
            self.host.notice(f"renamed {row.name} to {name}; settings by the old name: {settings}", "warn")
        else:
            self.host.notice(f"renamed {row.name} to {name}")

    @dataset_task
    async def duplicate(self, row: DatasetRow) -> None:
        """Create a dataset with the definition of the selected one."""
        used = [dataset.name for dataset in self.state.datasets]
        name = await self.host.ask(
            PromptDialog(
                f"Duplicate {row.name}",
                _unused_name(row.name, used),
                "name of the new dataset: same definition, no rows yet",
                name_check(used),
            )
        )
        if not name:
            return
        untrusted = await asyncio.to_thread(self.workspace.duplicate, row.id, name)
        self.state.datasets_outdated.send(None)
        remark = "it requires trust: press t" if untrusted else _next_step(row)
        self.host.notice(f"created {name}; {remark}")

    @dataset_task
    async def delete(self, row: DatasetRow) -> None:
        """Delete the selected dataset, after its name was typed."""
        downstream = [dataset.name for dataset in self.state.datasets if row.id in dataset.inputs]
        if downstream:
            names = printable(", ".join(downstream))
            self.host.notice(f"{row.name} has downstream datasets: delete {names} first", "warn")
            return
        dialog = TypedConfirmation(
            f"Delete {row.name}?", deletion_lines(row), [row.name], f"type {row.name} to delete it"
        )
        if not await self.host.ask(dialog):
            self.host.notice(f"{row.name} is unchanged", "warn")
            return
        has_key = await asyncio.to_thread(self.workspace.delete, row.id)
        self.state.datasets_outdated.send(None)
        self.host.notice(f"deleted {row.name}" + ("; its private key remains: press ; p" if has_key else ""))


def _unused_name(name: str, used: Sequence[str]) -> str:
    """Return the first unused name of the form ``NAME-copy``, ``NAME-copy-2``."""
    taken = {used_name.lower() for used_name in used}
    candidates = (f"{name}-copy" + (f"-{number}" if number > 1 else "") for number in range(1, len(used) + 2))
    return next(candidate for candidate in candidates if candidate.lower() not in taken)


def _next_step(row: DatasetRow) -> str:
    if row.polls or row.derivative:
        return "press p to pull its rows"
    return "press , i to push rows" if row.push_sources else "press e to edit its definition"


def deletion_lines(row: DatasetRow) -> list[list[Span]]:
    """Return what the deletion of a dataset removes, and what remains."""
    lines: list[list[Span]] = [
        [
            ("   deletes   ", "bad"),
            (f"{count_of(row.records, 'row')} in {count_of(row.blocks, 'block')}", ""),
            (f", {format_bytes(row.size)}" if row.size else "", ""),
        ],
        [("             ", ""), ("its definition, its history and the list of its remotes", "")],
    ]
    if row.remotes:
        labels = printable(", ".join(remote.label for remote in row.remotes))
        lines.append([("   remains   ", "good"), (f"the copies at {labels}", "")])
    else:
        lines.append([("   warning   ", "warn"), ("it has no remote: this may be the only copy", "")])
    return [*lines, [], [(" This cannot be undone.", "strong")]]
