"""The card beside the graph: what is known of the selected dataset, in a few lines."""

from __future__ import annotations

import msgspec

from odf_engine.coordinator.protocol import Failure, Job, JobState
from odf_tui.humane import moment, plain
from odf_tui.jobwords import amounts
from odf_tui.remotes import direction, diverged, remote_words, to_pull
from odf_tui.state import INTAKES, DatasetRow, Detail, Health, JobBook, found_invalid, verified_head
from odf_tui.widgets.drawing import UNTRUSTED
from odf_tui.widgets.lines import Paragraphs, Span

_CARD_KEYS = 11
_UNTRUSTED_WORDS = "not trusted: p shows what would run"
_STANDINGS = {"diverged": "bad", "behind": "warn"}


class CardJobs(msgspec.Struct, frozen=True):
    """The newest job that brought data into a dataset, the newest verification that ended, what runs."""

    intake: Job | None = None
    verification: Job | None = None
    running: Job | None = None


def jobs_of(book: JobBook, dataset: str) -> CardJobs:
    """The jobs that a card tells of."""
    found = [job for job in book.newest_first() if job.dataset == dataset]
    return CardJobs(
        next((job for job in found if job.kind in INTAKES), None),
        next((job for job in found if job.kind == "verify" and job.state is JobState.done), None),
        next((job for job in found if job.state is JobState.running), None),
    )


class Card(Paragraphs):
    """What is known of the selected dataset, in a few lines.

    Attributes:
        why: why its last pull failed, in a line; empty when it did not.
    """

    def __init__(self) -> None:
        super().__init__(id="card")
        self.why = ""
        self._above: list[list[Span]] = []
        self._below: list[list[Span]] = []
        self._doing = ""

    def load(
        self, row: DatasetRow | None, health: Health | None, detail: Detail | None, jobs: CardJobs
    ) -> None:
        """Shows a dataset; ``detail`` may come later."""
        above: list[list[Span]] = []
        below: list[list[Span]] = []
        self.why = ""
        if row is not None and health is not None:
            above = self._standing(row, health, jobs)
            below = [[], *(_fact(name, value) for name, value in (detail.facts if detail else ()))]
            if row.blocks:
                below.insert(1, _verification(row, jobs.verification))
                below[1:1] = _remotes(row)
        self._above, self._below = above, below
        self._doing = doing(jobs.running)
        self._show()

    def progress(self, running: Job | None, rate: str = "") -> None:
        """How far what runs is, and how fast; repainted only when that is something else."""
        if (words := " · ".join(filter(None, (doing(running), rate)))) != self._doing:
            self._doing = words
            self._show()

    def _show(self) -> None:
        lines = [[("now  ", "muted"), (self._doing, "busy")]] if self._doing and self._above else []
        self.set([*self._above, *lines, *self._below])

    def _standing(self, row: DatasetRow, health: Health, jobs: CardJobs) -> list[list[Span]]:
        kind = "derivative" if row.derivative else "root"
        lines: list[list[Span]] = [
            [(plain(row.name), "title")],
            [(f"{kind}  ", "muted"), (f"{health.glyph} {health.word}", health.style)],
        ]
        if row.problem:
            why, _, remedy = plain(row.problem).partition(" – ")
            lines.append([("why  ", "bad"), (why, "bad")])
            lines += [[("try  ", "muted"), (remedy, "good")]] if remedy else []
            self.why = f"{health.glyph} {why}"
        if row.untrusted:
            why = "not trusted: t shows what would run" if row.comes_from_elsewhere else _UNTRUSTED_WORDS
            lines.append([(f"{UNTRUSTED} ", "warn"), (why, "warn")])
        if row.diverged:
            names = plain(", ".join(row.diverged))
            lines.append(
                [("why  ", "bad"), (f"{names}, which it was made from, was reset or replaced", "bad")]
            )
            lines.append([("try  ", "muted"), ("D makes it anew", "good")])
            self.why = f"{health.glyph} {names} was reset or replaced: D makes it anew"
        if health is Health.failed and jobs.intake is not None and jobs.intake.error is not None:
            lines += self._failure(jobs.intake.error)
        return lines

    def _failure(self, error: Failure) -> list[list[Span]]:
        first = plain(error.message.partition("\n")[0])
        self.why = f"{Health.failed.glyph} {first}"
        lines: list[list[Span]] = [[("why  ", "bad"), (first, "bad")]]
        if error.hint:  # before the place: where there is little room, it matters more
            lines.append([("try  ", "muted"), (plain(error.hint), "good")])
        if error.where:
            lines.append([("at   ", "muted"), (plain(error.where), "")])
        return lines


def doing(job: Job | None) -> str:
    """What a job does, in words; empty when there is none."""
    if job is None:
        return ""
    return plain(f"{job.kind} · {amounts(job)}" if amounts(job) else job.kind)


def _remotes(row: DatasetRow) -> list[list[Span]]:
    """Where it comes from and goes to, and how it stands to that."""
    lines = [
        _fact(direction(each), remote_words(each), _STANDINGS.get(each.relation, "")) for each in row.remotes
    ]
    if diverged(row.remotes):
        lines.append([("try  ", "muted"), ("V shows both histories, and what can be done", "good")])
    elif to_pull(row.remotes):
        lines.append([("try  ", "muted"), (f"{'p' if row.comes_from_elsewhere else 'V'} pulls", "good")])
    return lines


def _verification(row: DatasetRow, job: Job | None) -> list[Span]:
    if job is None:
        return _fact("verified", "not yet: v verifies it", "muted")
    when = moment(job.ended)
    if found_invalid(job):
        return _fact("verified", f"{when}, and it is not valid", "bad")
    if verified_head(job) == row.head:
        return _fact("verified", f"{when}, all of it", "good")
    return _fact("verified", f"{when}, not all that it has now", "")


def _fact(name: str, value: str, style: str = "") -> list[Span]:
    return [(f"{name:<{_CARD_KEYS}}", "muted"), (plain(value), style)]
