"""Error types of the engine: each has a message, an optional hint and an optional location."""

from __future__ import annotations

import errno
from typing import Final

_MAX_CHARACTERS: Final = 2000
"""Longer texts are truncated: they may quote damaged files."""


class OdfError(Exception):
    """Base class of the errors that are shown to the user.

    Attributes:
        message: one sentence: what failed and why.
        hint: one sentence: what to do next, or None if there is no remedy.
        where: the location: a file, line, column, row, block or dataset, or None if absent.
        excerpt: the line of the file that the error refers to, preceded by its number, or () if it is
            not available.
        exit_code: exit code of the command line.
    """

    exit_code = 1
    excerpt: tuple[str, ...] = ()

    def __init__(self, message: str, *, hint: str | None = None, where: str | None = None) -> None:
        self.message = _sanitize(message)
        self.hint = hint and _sanitize(hint)
        self.where = where and _sanitize(where)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message

    @property
    def format_line(self) -> str:
        """The error as one line: the message, the hint, the location."""
        hint = f" – {self.hint}" if self.hint else ""
        place = f" ({self.where})" if self.where else ""
        return f"{self.message}{hint}{place}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.hint, self.where, self.__dict__))


def _sanitize(text: str) -> str:
    text = escape_surrogates(text)
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"


def has_surrogates(text: str) -> bool:
    """Return whether the text has lone surrogates, which UTF-8 cannot encode.

    File names that are not UTF-8 have them.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def escape_surrogates(text: str) -> str:
    """Return the text with backslash escapes for lone surrogates."""
    return text.encode(errors="backslashreplace").decode() if has_surrogates(text) else text


def _rebuild(
    kind: type[OdfError], message: str, hint: str | None, where: str | None, state: dict[str, object]
) -> OdfError:
    error = OdfError.__new__(kind)
    Exception.__init__(error, message)
    error.message, error.hint, error.where = message, hint, where
    error.__dict__.update(state)
    return error


def disk_hint(error: OSError) -> str:
    """Return what to do about an error of the operating system for a file."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free disk space, then try again"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "check the owner and the permissions, then try again"
    if error.errno == errno.EROFS:
        return "the file system is read-only; make it writable, then try again"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "increase the limit of open files (ulimit -n), then try again"
    return "check the disk, then try again"


class UsageError(OdfError):
    """An invalid request: an invalid argument or an unknown option."""

    exit_code = 2


class NotFound(OdfError):
    """A dataset, block, object, file or workspace that does not exist."""


class NotSynced(OdfError):
    """A change that was made and is visible, but was not synced to disk. A power failure may undo it.

    Attributes:
        reason: the error text of the operating system.
    """

    def __init__(self, change: str, reason: str, where: str) -> None:
        """``change`` is the completed change as a past participle, such as ``committed``."""
        super().__init__(
            f"{change}, but could not be synced to disk: {reason}",
            hint="check the disk: a power failure may undo the change; do not repeat it",
            where=where,
        )
        self.reason = reason

    def as_failure(self) -> OdfError:
        """Return the error for a larger change that contains this one and was not made."""
        return OdfError(
            f"the disk could not be synced: {self.reason}",
            hint="nothing was changed; check the disk, then try again",
            where=self.where,
        )


class Conflict(OdfError):
    """The head was moved by another process, or two histories diverged."""

    exit_code = 4


class AlreadyExists(Conflict):
    """A workspace, or a dataset with this name, already exists."""

    exit_code = 1


class Cancelled(OdfError):
    """The user cancelled the operation."""

    exit_code = 130

    def __init__(self, message: str = "cancelled", **rest: str | None) -> None:
        super().__init__(message, **rest)


class InvalidIdentity(OdfError):
    """Text or bytes that are not a valid hash, id, name, reference or pattern."""


class InvalidManifest(OdfError):
    """An invalid YAML manifest; ``where`` is ``file:line:column``."""


class MalformedBlock(OdfError):
    """Bytes that are not a valid metadata block; ``where`` is the field."""


class ChainRuleViolated(OdfError):
    """A block that an append rule of the metadata chain rejects.

    Attributes:
        rule: the name of the rule in kebab case, stable for scripts.
        block: the hash of the block or its sequence number, as text.
    """

    def __init__(self, rule: str, message: str, *, block: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, where=f"block {block}")
        self.rule = rule
        self.block = block


class NoOpEvent(ChainRuleViolated):
    """An event that would change nothing. It is not committed."""


class InvalidSchema(OdfError):
    """A malformed DDL or Arrow schema, or a schema that the data do not match."""


class NewColumns(InvalidSchema):
    """The data have columns that the dataset does not have, and no other difference."""


class BadData(OdfError):
    """External data that do not match the manifest; ``where`` is the file, row and column."""


class CheckFailed(BadData):
    """New rows violate a rule of a check. Nothing was committed."""


class WorkerStalled(OdfError):
    """The worker runs, and does not respond: it is stopped, or the machine is too busy."""

    @classmethod
    def of_process(cls, pid: int | None) -> WorkerStalled:
        """Return the error for a worker by its process id."""
        return cls(
            f"the worker (process {pid}) does not respond",
            hint=f"continue it: kill -CONT {pid}; or end it, which interrupts its jobs: kill -9 {pid}",
        )


class JobWarned(OdfError):
    """A job has warnings, and must fail on them. The rows that they are about were not committed."""


class SourceUnavailable(OdfError):
    """A source that could not be fetched: a missing file, an HTTP status, a failed connection."""


class NotTrusted(OdfError):
    """The dataset is by a third party, and running its source is not allowed in this workspace."""


class InvalidQuery(OdfError):
    """A query with a syntax error, an unknown column or an engine that is not available."""


class Unsupported(OdfError):
    """A feature of the specification that this version does not support; the hint names an alternative."""


class StateUnusable(Unsupported):
    """The stored state of a query cannot be used: it must be computed again from the inputs.

    Attributes:
        lacks_values: the state has only merged values, but a row must be retracted.
    """

    lacks_values = False


class EarlierRowsRequired(Unsupported):
    """A transaction reads the rows that earlier ones have read, but its request does not have them."""


class WriteConditionFailed(Conflict):
    """A conditional write found another version than expected."""


class ObjectUnchanged(OdfError):
    """A conditional read found the known version."""


class ConditionalWriteUnsupported(Unsupported):
    """The service of a bucket does not implement conditional writes."""
