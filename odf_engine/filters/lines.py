"""Filter `lines`: selects the lines of a text."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

from odf_engine.errors import BadData
from odf_engine.filters.text_input import compile_pattern


@dataclass(frozen=True)
class LineOptions:
    """Options of the filter.

    Attributes:
        skip: number of lines at the beginning that are left out.
        start: pattern of the first line that is written, or "".
        until: pattern of the first line after the end, or "".
        comment: start of lines that are left out, or "".
        drop_last: number of lines at the end that are left out.
        stop_at_blank: whether the text ends at the first blank line after the first written one.
        locate: number of a line of the output, whose line in the input is written instead, or 0.
    """

    skip: int = 0
    start: str = ""
    until: str = ""
    comment: str = ""
    drop_last: int = 0
    stop_at_blank: bool = False
    locate: int = 0


def filter_lines(source: BinaryIO, target: BinaryIO, options: LineOptions) -> None:
    """Write some lines of a text, whose encoding is a superset of ASCII. Line ends stay as they are.

    Raises:
        UsageError: a pattern is invalid.
        BadData: no line matches ``start``.
    """
    if options.locate:
        at = next(islice(_selected(source, options), options.locate - 1, None), None)
        target.write(b"" if at is None else f"line {at[0]}".encode())
        return
    last: deque[bytes] = deque()
    for _, line in _selected(source, options):
        if not options.drop_last:
            target.write(line)
            continue
        last.append(line)
        if len(last) > options.drop_last:
            target.write(last.popleft())
    target.flush()


def _selected(source: BinaryIO, options: LineOptions) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with their numbers, from 1."""
    start = compile_pattern(options.start.encode(), "--from") if options.start else None
    until = compile_pattern(options.until.encode(), "--until") if options.until else None
    comment = options.comment.encode()
    is_first = True
    for number, line in enumerate(source):
        if number < options.skip:
            continue
        if start is not None:
            if not start.search(line.rstrip(b"\r\n")):
                continue
            start = None
        if until is not None and not is_first and until.search(line.rstrip(b"\r\n")):
            return
        if comment and line.lstrip().startswith(comment):
            continue
        if options.stop_at_blank and not is_first and not line.strip():
            return
        is_first = False
        yield number + 1, line
    if start is not None:
        raise BadData(f"no line matches --from {options.start}")
