"""The part of the workbench that compares versions of datasets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from odf_engine.coordinator.protocol import Diff, Export
from odf_engine.errors import OdfError
from odf_engine.views.diff import Difference
from odf_tui.screens.places import Navigator
from odf_tui.screens.waiting import JobsClient, LeftRunning
from odf_tui.state.model import BlockFilter, DatasetRow
from odf_tui.text.format import format_count, format_time, printable
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.dialogs import PickerDialog

if TYPE_CHECKING:
    from odf_tui.features.export import ExportOptions

_BLOCKS: Final = 1000
_WAYS: Final = (
    Choice("before", "what it was before its newest data came", ("p",), "p"),
    Choice("block", "what it was at a block …", ("b",), "b"),
    Choice("time", "what it was at a time …", ("t",), "t"),
    Choice("other", "another dataset …", ("o",), "o"),
)


class DifferingPart(JobsClient, Navigator):
    """The part of the workbench that compares versions of datasets."""

    def do_differences(self) -> None:
        """Compares the selected dataset with what is chosen, and shows what differs."""
        row = self.graph.row
        if row is not None:
            self.start(self._differences(row))

    async def _differences(self, row: DatasetRow) -> None:
        request = await self._what_to_compare(row)
        while request is not None:
            try:
                found = await self.result_of(request, row.name, f"Comparing {row.name}", leaves=True)
            except LeftRunning:
                self.notify_line(f"{row.name} is being compared: d shows it once that is done")
                return
            answer = await self._show_difference(row, found)
            if answer == "key":
                key = await self._key_to_compare_by(found)
                request = replace(request, key=key) if key else request
            elif answer == "again":
                request = await self._what_to_compare(row)
            else:
                if answer == "export":
                    await self._export_difference(row, found)
                return

    async def _show_difference(self, row: DatasetRow, found: Difference) -> str | None:
        from odf_tui.features.dataset_diff import DifferenceScreen

        def opened() -> DifferenceScreen:
            from odf_tui.features.dataset_diff import DiffWindow, open_difference

            window = DiffWindow(found, self.source.file_rows(row.id, found.file))
            names = dict.fromkeys((found.old.name, found.new.name))
            title = f"Differences: {' and '.join(names)}"
            return DifferenceScreen(title, window, open_difference(window), self.copy_text)

        return await self.app.push_screen_wait(await asyncio.to_thread(opened))

    # --- What to compare ---

    async def _what_to_compare(self, row: DatasetRow) -> Diff | None:
        way = await self.app.push_screen_wait(PickerDialog(f"Compare {row.name} with", _WAYS, typing=False))
        if way == "before":
            return Diff(row.id)
        if way == "other":
            other = await self._other_dataset(row)
            return None if other is None else Diff(row.id, other)
        if way is None:
            return None
        at = await (self._block(row) if way == "block" else self._time(row))
        return None if at is None else Diff(row.id, as_at=at)

    async def _other_dataset(self, row: DatasetRow) -> str | None:
        others = [each for each in self.rows if each.id != row.id and not each.missing]
        if not others:
            raise OdfError("there is no other dataset in this workspace")
        choices = [Choice(each.id, each.name, remark=f"{format_count(each.records)} rows") for each in others]
        return await self.app.push_screen_wait(PickerDialog(f"Compare {row.name} with", choices, typing=True))

    async def _block(self, row: DatasetRow) -> str | None:
        page = await asyncio.to_thread(self.source.blocks, row.id, None, _BLOCKS, BlockFilter())
        lines = [line for line in reversed(page.lines) if not line.broken]
        choices = [
            Choice(
                line.hash,
                f"{format_count(line.sequence_number)}  {format_time(line.time)}  {line.event}",
                remark=printable(line.summary),
            )
            for line in lines[1:]  # the newest is what it is compared with
        ]
        if not choices:
            raise OdfError(f"{row.name} has no earlier block")
        title = f"{row.name}: since which block?"
        return await self.app.push_screen_wait(PickerDialog(title, choices, typing=True))

    async def _time(self, row: DatasetRow) -> str | None:
        from odf_tui.widgets.dialogs import TimeDialog

        title = f"{row.name}: since when?"
        return await self.app.push_screen_wait(TimeDialog(title, "what was known of it at that time"))

    async def _key_to_compare_by(self, found: Difference) -> list[str] | None:
        from odf_tui.panes.data.row_dialogs import KeyColumnsDialog

        columns = [
            (each.name, each.new_type)
            for each in found.columns
            if each.old_type and each.new_type is not None
        ]
        if not columns:
            raise OdfError("there are no columns that both have")
        return await self.app.push_screen_wait(KeyColumnsDialog("Compare by which key?", columns, found.key))

    # --- Files ---

    async def _export_difference(self, row: DatasetRow, found: Difference) -> None:
        from odf_tui.features.export import ExportDialog

        words = f"all {format_count(found.rows)} rows that differ"
        short = f"{row.name.rpartition('/')[2].rpartition('.')[2]}-diff"
        order: ExportOptions | None = await self.app.push_screen_wait(
            ExportDialog("Export what differs", [words], short, system=False)
        )
        if order is None:
            return
        request = Export("", str(order.path), format=order.format, file=found.file, replace=order.replace)
        try:
            result = await self.result_of(request, row.name, "Exporting what differs", leaves=True)
        except LeftRunning:
            self.notify_line(f"{order.path.name} is being written: pane 4 says when it is there")
            return
        from odf_tui.features.export import export_summary  # deferred: after the first paint

        self.notify_line(export_summary(result))
