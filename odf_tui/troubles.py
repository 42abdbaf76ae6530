"""What may be wrong with the worker, and what to do: a sentence or two above the jobs."""

from __future__ import annotations

from odf_engine.coordinator.protocol import WorkerStatus
from odf_tui.events import ENDED
from odf_tui.humane import count, plain
from odf_tui.messages import WorkerChanged
from odf_tui.widgets.lines import Span

_READS: str = "What is in the workspace can be read meanwhile."


def trouble_lines(worker: WorkerChanged | None, status: WorkerStatus | None) -> list[list[Span]]:
    """What to say; nothing when all is well.

    Args:
        worker: the newest news of the connection.
        status: what the worker last said of itself.
    """
    if worker is not None and worker.state == "gone":
        return _gone(worker)
    if status is not None and status.spark == "failed":
        lines = _wrong(f"Spark does not run: {status.spark_detail}")
        if status.spark_hint:
            lines.append([("  ", ""), (plain(status.spark_hint), "")])
        lines.append([("  ", ""), (f"The next job that needs it starts it again. {_READS}", "muted")])
        return lines
    return []


def _gone(worker: WorkerChanged) -> list[list[Span]]:
    lines = _wrong(worker.detail or "the worker is gone")
    if worker.busy:
        jobs = f"{count(worker.busy)} job{'' if worker.busy == 1 else 's'}"
        lines.append([("  ", ""), ("R", "key"), (f" stops it, with its {jobs}, and starts ours.", "")])
    else:
        if worker.hint:
            lines.append([("  ", ""), (plain(worker.hint), "")])
        lines.append(_again(worker))
    lines.append([("  ", ""), (_READS, "muted")])
    return lines


def _again(worker: WorkerChanged) -> list[Span]:
    if worker.detail != ENDED:
        return [("  ", ""), ("R", "key"), (" tries again.", "")]
    return [
        ("  ", ""),
        ("R", "key"),
        (" starts it again, ", ""),
        (".", "key"),
        (" a job that ended with it.", ""),
    ]


def _wrong(text: str) -> list[list[Span]]:
    first, *more = text.splitlines() or [""]
    return [[("✗ ", "bad"), (plain(first), "bad")], *([("  ", ""), (plain(line), "muted")] for line in more)]
