"""Metrics of a workspace in the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, NamedTuple

from odf_engine.automation.alerts import store as alert_store
from odf_engine.automation.alerts.store import AlertStore
from odf_engine.automation.flows import store as flow_store
from odf_engine.automation.flows.definition import Flow
from odf_engine.automation.flows.store import FlowStore
from odf_engine.base.atomic_files import atomic_file
from odf_engine.errors import OdfError
from odf_engine.storage.job_totals import JobTotal, read_totals
from odf_engine.workspace.dataset_summary import Summary, is_behind
from odf_engine.workspace.documents.store import Documents
from odf_engine.workspace.workspace import Workspace

FLOW_STATES: Final = ("active", "running", "paused", "new", "changed", "invalid")
_RUNS: Final = 100
"""Number of runs of a flow among which the last success is searched for."""


class _Text:
    """Collects metric families."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, name: str, kind: str, description: str, samples: Iterable[_Sample]) -> None:
        lines = [_format_sample(name, sample) for sample in samples]
        if lines:
            self._lines += [f"# HELP {name} {description}", f"# TYPE {name} {kind}", *lines]

    def text(self) -> str:
        return "".join(f"{line}\n" for line in self._lines)


class _Sample(NamedTuple):
    labels: Mapping[str, str]
    value: float
    suffix: str = ""


def _format_sample(name: str, sample: _Sample) -> str:
    labels = ",".join(f'{key}="{_escape(value)}"' for key, value in sample.labels.items())
    number = repr(float(sample.value)) if sample.value % 1 else str(int(sample.value))
    return f"{name}{sample.suffix}{{{labels}}} {number}" if labels else f"{name}{sample.suffix} {number}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def collect_metrics(workspace: Workspace, summaries: Sequence[Summary]) -> str:
    """Return the metrics as text.

    Args:
        workspace: the workspace.
        summaries: the datasets to describe, as of :meth:`Workspace.summaries`.

    State of flows or alerts that cannot be read, for example on a read-only file system, is left out.
    """
    text = _Text()
    _add_datasets(text, summaries, time.time())
    _add_jobs(text, read_totals(workspace.odf))
    for add in (_add_flows, _add_alerts):
        with suppress(OdfError):
            add(text, workspace.odf)
    return text.text()


def write_metrics(workspace: Workspace, path: Path) -> None:
    """Replace a file with the metrics of all datasets, atomically, as the textfile collector requires.

    Raises:
        OdfError: the file cannot be written.
    """
    text = collect_metrics(workspace, workspace.summaries())
    with atomic_file(path, 0o644) as staged:
        staged.write_text(text, encoding="utf-8")


def _add_datasets(text: _Text, summaries: Sequence[Summary], now: float) -> None:
    def samples(values: Mapping[str, float | None]) -> list[_Sample]:
        return [_Sample({"dataset": name}, value) for name, value in values.items() if value is not None]

    by_id = {summary.id: summary for summary in summaries}
    kinds = [summary.kind.name.lower() for summary in summaries]
    counts = [_Sample({"kind": kind}, kinds.count(kind)) for kind in ("root", "derivative")]
    text.add("odf_datasets", "gauge", "Number of datasets.", counts)
    for name, description, values in (
        ("rows", "Number of rows.", {summary.name: summary.records for summary in summaries}),
        ("blocks", "Number of blocks.", {summary.name: summary.blocks for summary in summaries}),
        ("size_bytes", "Size of the data.", {summary.name: summary.size for summary in summaries}),
        (
            "watermark_timestamp_seconds",
            "Watermark, in seconds since 1970.",
            {
                summary.name: summary.watermark.ms / 1000
                for summary in summaries
                if summary.watermark is not None
            },
        ),
        (
            "watermark_age_seconds",
            "Time since the watermark.",
            {
                summary.name: now - summary.watermark.ms / 1000
                for summary in summaries
                if summary.watermark is not None
            },
        ),
        (
            "last_data_timestamp_seconds",
            "System time of the newest data, in seconds since 1970.",
            {
                summary.name: summary.last_pulled.ms / 1000
                for summary in summaries
                if summary.last_pulled is not None
            },
        ),
        (
            "behind",
            "1 if inputs have data that the dataset has not processed.",
            {summary.name: is_behind(summary, by_id) for summary in summaries if summary.inputs},
        ),
        (
            "damaged",
            "1 if the dataset cannot be read.",
            {summary.name: bool(summary.problem) for summary in summaries},
        ),
    ):
        text.add(f"odf_dataset_{name}", "gauge", description, samples(values))


def _add_jobs(text: _Text, totals: Sequence[JobTotal]) -> None:
    labels = [{"kind": total.kind, "state": total.state} for total in totals]
    pairs = list(zip(labels, totals, strict=True))
    text.add("odf_jobs_total", "counter", "Ended jobs.", [_Sample(key, stats.jobs) for key, stats in pairs])
    durations = [
        sample
        for key, stats in pairs
        for sample in (_Sample(key, stats.seconds, "_sum"), _Sample(key, stats.jobs, "_count"))
    ]
    text.add("odf_job_duration_seconds", "summary", "Durations of ended jobs.", durations)
    text.add(
        "odf_job_last_end_timestamp_seconds",
        "gauge",
        "End of the last job, in seconds since 1970.",
        [_Sample(key, stats.last_end) for key, stats in pairs],
    )


def _add_flows(text: _Text, odf: Path) -> None:
    flows = Documents(odf, Flow).entries()
    if not flows or not (odf / flow_store.FILE).exists():
        return
    states, failures, successes = [], [], []
    with closing(FlowStore(odf)) as store:
        stored = store.states()
        running = {run.flow for run in store.open_runs()}
        for flow in flows:
            word = flow.state
            if word == "active":
                state = stored.get(flow.name)
                is_paused = state is not None and state.paused
                word = "paused" if is_paused else "running" if flow.name in running else "active"
            labels = {"flow": flow.name}
            states += [_Sample({**labels, "state": name}, name == word) for name in FLOW_STATES]
            if flow.name in stored:
                failures.append(_Sample(labels, stored[flow.name].failures))
            ended = (run.ended for run in store.runs(flow.name, _RUNS) if run.state == "done")
            if (last := next(ended, None)) is not None:
                successes.append(_Sample(labels, last))
    text.add("odf_flow_state", "gauge", "1 for the state of the flow.", states)
    text.add("odf_flow_consecutive_failures", "gauge", "Failed runs in a row.", failures)
    text.add(
        "odf_flow_last_success_timestamp_seconds",
        "gauge",
        "End of the last successful run, in seconds since 1970.",
        successes,
    )


def _add_alerts(text: _Text, odf: Path) -> None:
    if not (odf / alert_store.FILE).exists():
        return
    with closing(AlertStore(odf)) as store:
        counts = store.counts()
    text.add(
        "odf_alert_deliveries",
        "gauge",
        "Stored deliveries of alerts.",
        [_Sample({"alert": alert, "state": state}, count) for (alert, state), count in counts.items()],
    )
