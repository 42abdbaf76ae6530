"""Reads files, stdin and answers of the user."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import click

from odf_engine.errors import NotFound, UsageError

MAX_TEXT_BYTES: Final = 16 << 20
"""Largest manifest or query in bytes; larger input is an error."""


def is_interactive() -> bool:
    """Return whether stdin is a terminal."""
    return sys.stdin.isatty()


def confirm(question: str, subject: str, hint: str) -> None:
    """Ask the user to confirm a change.

    Raises:
        UsageError: stdin is no terminal; the message says that ``subject`` requires confirmation.
        Abort: the user did not confirm.
    """
    if not is_interactive():
        raise UsageError(f"{subject} requires confirmation", hint=hint)
    click.confirm(question, abort=True, err=True)


def read_bytes(name: str, max_bytes: int = MAX_TEXT_BYTES, *, hint: str | None = None) -> bytes:
    """Read a file, or stdin for ``-``, into memory.

    Raises:
        NotFound: the file cannot be read.
        UsageError: it has more than ``max_bytes`` bytes.
    """
    try:
        if name == "-":
            data = sys.stdin.buffer.read(max_bytes + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(max_bytes + 1)
    except OSError as error:
        raise NotFound(f"{name} cannot be read: {error.strerror}") from None
    if len(data) > max_bytes:
        raise UsageError(f"{'stdin' if name == '-' else name} has more than {max_bytes:,} bytes", hint=hint)
    return data


def read_documents(files: Iterable[str]) -> Iterator[tuple[bytes, str]]:
    """Yield the contents of files or stdin (``-``), each with its name for error messages."""
    for file in files:
        yield read_bytes(file), "standard input" if file == "-" else file


def read_text(name: str) -> str:
    """Read UTF-8 text as :func:`read_bytes` reads bytes; all line ends become line feeds."""
    return io.TextIOWrapper(io.BytesIO(read_bytes(name)), encoding="utf-8").read()
