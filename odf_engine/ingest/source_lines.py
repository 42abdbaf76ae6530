"""The lines of a publisher's file that the lines of a filtered file come from, for errors of later steps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from odf_engine.base.progress import ForwardingReporter, Reporter
from odf_engine.errors import OdfError
from odf_engine.ingest.prep_step import PreparedFile, PrepareLimits, is_filter, prepare, run_pipe
from odf_engine.ingest.read.error_location import LINE_PLACE, line_excerpt
from odf_engine.metadata.model import Pipe, PrepStep
from odf_engine.spark.text_files import detect_encoding

_LOCATING: Final = ("csv", "lines", "sheet")
"""Filters with the option ``--locate``."""
_NUMBER: Final = re.compile(r"^\d+")
_LINE: Final = re.compile(r"line (\d+)")


class _QuietReporter(ForwardingReporter):
    """Only cancels: the steps were reported when they ran first."""

    def phase(self, name: str) -> None:
        """Ignore a phase."""

    def set_amounts(self, **amounts: object) -> None:
        """Ignore amounts."""

    def log(self, text: str, level: str = "info") -> None:
        """Ignore a line."""

    def warn(self, text: str, kind: str, count: int | None = None) -> None:
        """Ignore a warning."""


class SourceLine(NamedTuple):
    """A line of a publisher's file.

    Attributes:
        name: the name of the file.
        place: the line, such as ``line 7``, or the sheet and row, such as ``Cases row 7``.
        excerpt: the line with its number, or () if the file is not text.
    """

    name: str
    place: str
    excerpt: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceLines:
    """Finds lines in the file before the filters at the end of the prepare steps.

    Attributes:
        steps: the prepare steps.
        fetched: the fetched file.
        root: the workspace folder.
        folder: the folder for temporary files.
        reporter: can cancel.
        limits: the size limits of the steps.
    """

    steps: Sequence[PrepStep]
    fetched: PreparedFile
    root: Path
    folder: Path
    reporter: Reporter
    limits: PrepareLimits

    @contextmanager
    def in_errors(self, prepared: PreparedFile) -> Iterator[None]:
        """Let errors that name a line of the prepared file name the line, or the sheet and row, before."""
        try:
            yield
        except OdfError as error:
            place = error.where or ""
            match = LINE_PLACE.match(place.removeprefix(prepared.name))
            if match is not None and place.startswith(prepared.name):
                self._relocate(error, int(match[1]), place.removeprefix(prepared.name)[match.end() :])
            raise

    def _relocate(self, error: OdfError, line: int, rest: str) -> None:
        source = self.locate(line)
        if source is None or not source.place:
            return
        error.where = f"{source.name}: {source.place}{rest}"
        if _LINE.fullmatch(source.place):
            error.excerpt = source.excerpt
        else:
            row = source.place.rpartition(" ")[2]
            error.excerpt = tuple(_NUMBER.sub(row, text) for text in error.excerpt)

    def prepare(self) -> PreparedFile:
        """Run the steps on the fetched file.

        Raises:
            OdfError: a step failed.
        """
        return prepare(self.steps, self.fetched, self.root, self.folder, self.reporter, self.limits)

    def _first_filter(self) -> int:
        """Return the index of the first of the filters at the end that can locate lines."""
        first = len(self.steps)
        while first and _is_locating(self.steps[first - 1]):
            first -= 1
        return first

    def locate(self, line: int) -> SourceLine | None:
        """Return the place of a line of the prepared file before the filters.

        Returns:
            The place, which is "" for a line of the header, or None if the last step is not a filter that
            can locate lines.
        """
        first = self._first_filter()
        if first == len(self.steps):
            return None
        reporter = _QuietReporter(self.reporter)
        filters = [step for step in self.steps[first:] if isinstance(step, Pipe)]
        with TemporaryDirectory(dir=self.folder) as folder:
            job = Path(folder)
            file = prepare(self.steps[:first], self.fetched, self.root, job, reporter, self.limits)
            files = [file]
            for number, step in enumerate(filters[:-1]):
                output = PreparedFile(job / f"filtered-{number}", file.name)
                run_pipe(step, files[-1], self.root, output.path, reporter, self.limits)
                files.append(output)
            place = f"line {line}"
            for step, source in zip(reversed(filters), reversed(files), strict=True):
                if (match := _LINE.fullmatch(place)) is None:
                    break
                command, answer = [*step.command, "--locate", match[1]], job / "place"
                run_pipe(Pipe(command), source, self.root, answer, reporter, self.limits)
                place = answer.read_text(encoding="utf-8").strip()
            excerpt: tuple[str, ...] = ()
            if match := _LINE.fullmatch(place):
                codec = detect_encoding(file.path, None) or "utf-8"
                excerpt = line_excerpt(file.path, int(match[1]), codec)
            return SourceLine(file.name, place, excerpt)


def _is_locating(step: PrepStep) -> bool:
    return isinstance(step, Pipe) and is_filter(step) and step.command[2:3] in ([name] for name in _LOCATING)
