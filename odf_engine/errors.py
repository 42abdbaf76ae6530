"""Error types for people: what was wrong, where, and what to do next."""

from __future__ import annotations

from typing import Final

_MAX_CHARACTERS: Final = 8000
"""Longer texts, which quote damaged files, are cut."""


class OdfError(Exception):
    """Something a person can understand and act on.

    Attributes:
        message: one sentence: what was wrong.
        hint: one sentence: what to do next, if there is something to do.
        where: file, line, column, row, block or dataset, as a person would name it.
        excerpt: the line of a file that it is about, with its number before it, where that is known.
        exit_code: what the command line exits with.
    """

    exit_code = 1
    excerpt: tuple[str, ...] = ()

    def __init__(self, message: str, *, hint: str | None = None, where: str | None = None) -> None:
        self.message = _presentable(message)
        self.hint = hint and _presentable(hint)
        self.where = where and _presentable(where)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message

    @property
    def format_line(self) -> str:
        """All of it in one line, what matters most first: what was wrong, what to do, where."""
        hint = f" – {self.hint}" if self.hint else ""
        where = f" ({self.where})" if self.where else ""
        return f"{self.message}{hint}{where}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.hint, self.where, self.__dict__))


def _presentable(text: str) -> str:
    text = escape_surrogates(text)
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"


def has_surrogates(text: str) -> bool:
    """Whether the text has characters that UTF-8 cannot express, as file names that are not UTF-8 have."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def escape_surrogates(text: str) -> str:
    """Return the text with escapes for what UTF-8 cannot express."""
    return text.encode(errors="backslashreplace").decode() if has_surrogates(text) else text


def _rebuild(
    kind: type[OdfError], message: str, hint: str | None, where: str | None, state: dict[str, object]
) -> OdfError:
    error = OdfError.__new__(kind)
    Exception.__init__(error, message)
    error.message, error.hint, error.where = message, hint, where
    error.__dict__.update(state)
    return error


class UsageError(OdfError):
    """The request itself makes no sense: a bad argument, an unknown option."""

    exit_code = 2


class NotFound(OdfError):
    """A dataset, block, object, file or workspace that is not there."""


class NotSynced(OdfError):
    """A change that is made and visible, and that a power failure may undo: the disk did not confirm it.

    Attributes:
        reason: what the system reported.
    """

    def __init__(self, change: str, reason: str, where: str) -> None:
        """``change`` is what was done, such as ``committed``."""
        super().__init__(
            f"{change}, but could not be synced to disk: {reason}",
            hint="check the disk: a power failure may undo it; it need not be repeated",
            where=where,
        )
        self.reason = reason

    def as_failure(self) -> OdfError:
        """The error of a larger change of which this one was a part, and which is not made."""
        return OdfError(
            f"the disk could not be synced: {self.reason}",
            hint="nothing was changed; check the disk, then try again",
            where=self.where,
        )


class Conflict(OdfError):
    """Somebody else moved the head, or two histories diverged."""

    exit_code = 4


class AlreadyExists(Conflict):
    """A workspace, or a dataset of this name, is there already."""

    exit_code = 1


class Cancelled(OdfError):
    """The person asked for the work to stop."""

    exit_code = 130

    def __init__(self, message: str = "cancelled", **rest: str | None) -> None:
        super().__init__(message, **rest)


class InvalidIdentity(OdfError):
    """Text or bytes that are not a hash, an id, a name, a reference or a pattern."""


class InvalidManifest(OdfError):
    """A YAML manifest that cannot be understood; ``where`` is ``file:line:column``."""


class MalformedBlock(OdfError):
    """Bytes that are not a metadata block; ``where`` names the field."""


class ChainRuleViolated(OdfError):
    """A block that may not follow its chain (metadata chain append rules).

    Attributes:
        rule: the rule's name in kebab case, stable for scripts.
        block: text of the block's hash or its sequence number.
    """

    def __init__(self, rule: str, message: str, *, block: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, where=f"block {block}")
        self.rule = rule
        self.block = block


class NoOpEvent(ChainRuleViolated):
    """An event that would change nothing: it is not committed."""


class InvalidSchema(OdfError):
    """A DDL or Arrow schema that is malformed, or that data does not fit."""


class BadData(OdfError):
    """Outside data that is not what the manifest says; ``where`` is file, row and column."""


class SourceUnavailable(OdfError):
    """A source that could not be fetched: a missing file, an HTTP status, a broken connection."""


class NotTrusted(OdfError):
    """Somebody else wrote the dataset, and nobody here has allowed what its source would run."""


class InvalidQuery(OdfError):
    """A query with a syntax error, an unknown column or an engine that is not here."""


class Unsupported(OdfError):
    """Something the specification allows and this version cannot do; the hint says what can."""
