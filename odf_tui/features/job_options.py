"""JobOptionsController: pull, push of rows and verification with options, in forms."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from odf_engine.api import INGEST_FORMATS, Compact, Ingest, Pull, Request, Timestamp, Verify, parse_user_time
from odf_engine.api.model import DatasetRow
from odf_engine.api.text import format_time, printable
from odf_engine.errors import OdfError
from odf_tui.features.dataset_actions import reset_lines
from odf_tui.services.controller import Controller, dataset_task
from odf_tui.state.model import sort_by_dependency
from odf_tui.text.format import Span, error_with_hint
from odf_tui.text.remotes import pull_remotes
from odf_tui.widgets.dialogs import ConfirmDialog, TypedConfirmation
from odf_tui.widgets.form import Field, FormDialog, FormValues, check_time, existing_file

_AUTOMATIC: Final = "auto"
_SPECIAL: Final = ("/dev/", "/proc/")


class JobOptionsController(Controller):
    """Submits jobs with the options that the user selects in a form."""

    @dataset_task
    async def pull(self, row: DatasetRow) -> None:
        """Pull the selected dataset with options."""
        form = await self.host.ask(FormDialog(f"Pull {row.name}", pull_fields(row), "pulls"))
        if form is None:
            return
        if not await self._confirm_pull(row, form):
            self.host.notice(f"{row.name} is unchanged", "warn")
            return
        if form.flag("never_cached") and not await self._never_cache(row):
            return
        rows = [row]
        if form.flag("recursive"):
            order = sort_by_dependency(self.state.datasets, [row.id])
            known = {dataset.id: dataset for dataset in self.state.datasets}
            rows = [known[key] for key in order if key in known and _is_pullable(known[key])]
        self.jobs.submit([(self._pull_request(item, form, main=item is row), item.name) for item in rows])

    async def _never_cache(self, row: DatasetRow) -> bool:
        """Set that each pull fetches the source; show an error. Returns whether it is set."""
        try:
            await asyncio.to_thread(self.workspace.change_setting, f"fetch.cache.{row.name}", "never")
        except OdfError as error:
            self.host.notice(error_with_hint(error), "bad")
            return False
        return True

    def _pull_request(self, row: DatasetRow, form: FormValues, *, main: bool) -> Pull:
        """Return the request for a dataset; ``main`` is false for its upstream datasets."""
        remotes = [remote.url for remote in pull_remotes(row.remotes)]
        time = form.text("watermark") if main else ""
        url = form.text("remote") if main else ""
        request = Pull.of_known_dataset(row.id, remotes, sort_by_dependency(self.state.datasets, [row.id]))
        return replace(
            request,
            fetch_uncacheable=form.flag("uncacheable"),
            set_watermark=str(parse_user_time(time)) if time else None,
            force=main and form.flag("force"),
            strict=form.flag("strict"),
            reset_on_divergence=form.flag("reset"),
            rederive=main and form.flag("rederive"),
            url=url or request.url,
        )

    async def _confirm_pull(self, row: DatasetRow, form: FormValues) -> bool:
        """Require the name of the dataset for options that replace rows or cannot be reverted."""
        if time := form.text("watermark"):
            title = f"Set the watermark of {row.name}?"
            lines = watermark_lines(row, str(parse_user_time(time)))
        elif form.flag("rederive") or (form.flag("reset") and row.diverged):
            title, lines = f"Rebuild {row.name}?", reset_lines(row, self.state.downstream_names(row))
        elif form.flag("force") and row.has_pull_remote:
            title = f"Replace the history of {row.name}?"
            lines = [
                [(" If the histories have diverged, that of the remote replaces the local one.", "")],
                [(" The old head is retained as refs/before-… in the dataset's folder.", "muted")],
            ]
        else:
            return True
        return bool(await self.host.ask(TypedConfirmation(title, lines, [row.name], f"type {row.name}")))

    @dataset_task
    async def ingest(self, row: DatasetRow) -> None:
        """Push rows from files into the selected dataset."""
        await self.push_rows(row, "")

    async def push_rows(self, row: DatasetRow, branch: str) -> None:
        """Push rows from files into a dataset, or into its branch if the name is not empty."""
        form = await self.host.ask(FormDialog(f"Push rows into {row.name}", ingest_fields(row), "pushes"))
        if form is None:
            return
        files, time = data_files(form.text("files")), form.text("time")
        request = Ingest(
            dataset=row.id,
            files=[str(file.resolve()) for file in files],
            source=form.text("source") or None,
            format=None if form.text("format") == _AUTOMATIC else form.text("format"),
            event_time=str(parse_user_time(time)) if time else None,
            ignore_unknown=form.flag("ignore_unknown"),
            strict=form.flag("strict"),
            force=form.flag("force"),
            idempotency_key=form.text("key") or None,
            branch=branch,
        )
        names = ", ".join(file.name for file in files)
        self.jobs.submit([(request, row.name)], f", from {printable(names)}")

    @dataset_task
    async def compact(self, row: DatasetRow) -> None:
        """Merge small slices of the selected dataset, after confirmation."""
        remark = "Rows and offsets do not change. The old head is retained under refs/compacted-…"
        remotes = "Remotes have the old chain until a push with force." if row.remotes else ""
        dialog = ConfirmDialog(f"Merge small slices of {row.name}?", remark, *filter(None, (remotes,)))
        if await self.host.ask(dialog):
            self.jobs.submit([(Compact(dataset=row.id), row.name)])

    @dataset_task
    async def verify(self, row: DatasetRow) -> None:
        """Verify the selected dataset, its upstream datasets, or all datasets, with options."""

        def check(form: FormValues) -> str:
            span = form.text("range")
            if span and form.text("scope") != "one":
                return "a range applies to one dataset: select only this dataset"
            try:
                if span:
                    self.workspace.find_blocks(row.id, span)
            except OdfError as error:
                return error_with_hint(error)
            return ""

        form = await self.host.ask(
            FormDialog(f"Verify {row.name}", verify_fields(row), "verifies", check=check)
        )
        if form is None:
            return
        first, last = None, None
        if span := form.text("range"):
            first, last = await asyncio.to_thread(self.workspace.find_blocks, row.id, span)
        requests: list[tuple[Request, str]] = [
            (
                Verify(
                    dataset=dataset.id,
                    integrity=form.flag("integrity"),
                    first=first,
                    last=last,
                    rows=form.flag("rows"),
                    recompute=form.flag("recompute"),
                    compatible=form.flag("compatible"),
                ),
                dataset.name,
            )
            for dataset in self._rows_to_verify(row, form.text("scope"))
        ]
        if requests:
            self.jobs.submit(requests)
        else:
            self.host.notice("all these datasets are being verified already", "warn")

    def _rows_to_verify(self, row: DatasetRow, scope: str) -> list[DatasetRow]:
        """Return the datasets of a scope that have no active verification, upstream datasets first."""
        if scope == "one":
            return [row]
        known = {dataset.id: dataset for dataset in self.state.datasets if not dataset.missing}
        busy = {job.dataset for job in self.state.jobs.active_jobs() if job.kind == "verify"}
        order = sort_by_dependency(self.state.datasets, [row.id] if scope == "inputs" else known)
        return [known[key] for key in order if key in known and key not in busy]


def _is_pullable(row: DatasetRow) -> bool:
    """Return whether a recursive pull includes a dataset: untrusted and pushed datasets are skipped."""
    if row.has_pull_remote or row.derivative:
        return not row.missing
    return row.polls and not row.untrusted


def pull_fields(row: DatasetRow) -> list[Field]:
    """Return the options that apply to the pull of a dataset."""
    if remotes := pull_remotes(row.remotes):
        choices = tuple((remote.url, remote.label) for remote in remotes)
        return [
            Field("remote", "remote", "The remote to pull from.", choices[0][0], choices),
            Field(
                "force",
                "force",
                "If the histories have diverged, the history of the remote replaces the local one.",
                value=False,
            ),
        ]
    if row.derivative:
        reset = "Rebuild the dataset if an input was reset or replaced. Its rows are replaced."
        return [
            Field("recursive", "inputs first", "Pull all upstream datasets first.", value=True),
            Field("uncacheable", "fetch uncacheable", _UNCACHEABLE, value=False),
            Field("strict", "strict", _STRICT, value=False),
            Field("reset", "rebuild", reset, value=bool(row.diverged)),
            Field("rederive", "derive again",
                  "Derive all rows again from the start of the inputs, by the current rules.", value=False),
        ]  # fmt: skip
    empty = " Empty: pull rows." if row.polls else ""
    watermark = Field(
        "watermark",
        "set watermark",
        f"Only set the watermark to this time.{empty} Rows of closed windows are late afterwards.",
        check=partial(_check_watermark, row),
        example="2026-03-01 14:00",
    )
    if not row.polls:
        return [watermark]
    return [
        Field("uncacheable", "fetch uncacheable", _UNCACHEABLE, value=False),
        Field("never_cached", "and from now on", _NEVER_CACHED, value=False),
        Field("force", "force", "Fetch the source even if it reports that it has not changed.", value=False),
        Field("strict", "strict", _STRICT, value=False),
        watermark,
    ]


def _check_watermark(row: DatasetRow, text: str) -> str:
    """Return why a time cannot be the watermark of a dataset, or "" if it can."""
    if not text:
        return "" if row.polls else "enter a time"
    if problem := check_time(text):
        return problem
    if row.watermark and parse_user_time(text) <= Timestamp.parse(row.watermark):
        return f"the watermark is already {format_time(row.watermark)}: enter a later time"
    return ""


_UNCACHEABLE: Final = "Fetch sources that cannot report whether they have changed."
_NEVER_CACHED: Final = "Fetch such a source in each pull from now on (setting fetch.cache)."
_STRICT: Final = "Fail on rows whose key is already in the ledger with other values."


def ingest_fields(row: DatasetRow) -> list[Field]:
    """Return the options of a push of rows into a dataset."""
    fields = [
        Field(
            "files",
            "files",
            "Paths of files, relative to the current folder. → completes. Quote paths with spaces.",
            check=_check_files,
            is_path=True,
            example="rows.csv",
        )
    ]
    if len(row.push_sources) > 1:
        sources = tuple((name, name) for name in row.push_sources)
        fields.append(Field("source", "source", "The push source of the rows.", sources[0][0], sources))
    formats = ((_AUTOMATIC, "by file name"), *((name, name) for name in INGEST_FORMATS))
    return [
        *fields,
        Field("format", "format", "Format of the files. By default by name, else that of the source.",
              _AUTOMATIC, formats),
        Field("time", "event time", "Event time of rows without one. Empty: the current time.",
              check=check_time, example="2026-03-01 14:00"),
        Field("ignore_unknown", "ignore unknown",
              "Ignore unknown columns, and set missing ones to null.", value=False),
        Field("strict", "strict", _STRICT, value=False),
        Field("force", "force", "Push files again that have not changed since their push.", value=False),
        Field("key", "idempotency key",
              "Identifies the push of one file: another push with this key is skipped."),
    ]  # fmt: skip


def data_files(text: str) -> list[Path]:
    """Return the paths in a text, which is split as a shell does."""
    return [Path(path).expanduser() for path in shlex.split(text)]


def _check_files(text: str) -> str:
    try:
        files = data_files(text)
    except ValueError:
        return "a quotation mark is not closed"
    for file in files:
        if problem := existing_file(str(file)):
            return problem
        if str(file.absolute()).startswith(_SPECIAL):
            return f"{file} is not a regular file: use odf ingest for pipes and devices"
    return "" if files else "enter the path of a file"


def verify_fields(row: DatasetRow) -> list[Field]:
    """Return the options of a verification."""
    scopes = [("one", "only this dataset"), ("all", "all datasets")]
    if row.derivative:
        scopes.insert(1, ("inputs", "with its inputs"))
    return [
        Field("scope", "datasets", "The datasets to verify.", "one", tuple(scopes)),
        Field("integrity", "integrity only",
              "Verify chains and files, without a replay of the transactions.", value=False),
        Field("recompute", "recompute",
              "Compare the rows with the query over the latest inputs, instead of a replay.", value=False),
        Field("compatible", "compatible",
              "After an upgrade of the engine: record its version if it returns the same rows.", value=False),
        Field("rows", "all rows", "Verify rows and transactions again that were valid earlier.", value=False),
        Field("range", "blocks", "Only the blocks FROM..TO, by number or hash. FROM or TO can be omitted.",
              example="10..20"),
    ]  # fmt: skip


_WATERMARK_EFFECT: Final = (
    "The watermark states that all earlier rows have arrived. Derivative datasets emit the results of "
    "earlier windows, and drop rows that are late. A watermark cannot be set back."
)


def watermark_lines(row: DatasetRow, time: str) -> Sequence[Sequence[Span]]:
    """Return the consequences of a watermark."""
    before = format_time(row.watermark) if row.watermark else "none"
    return [
        [("   before   ", "muted"), (before, "")],
        [("   after    ", "muted"), (format_time(time), "strong")],
        [],
        [(f" {_WATERMARK_EFFECT}", "")],
    ]
