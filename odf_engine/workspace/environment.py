"""Environment variables of definitions: templates, allow-list, redaction of secrets."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, quote_plus

from odf_engine.base.lazy import LazyModule
from odf_engine.base.progress import ForwardingReporter, Reporter
from odf_engine.base.settings import load_workspace
from odf_engine.errors import InvalidManifest, OdfError, SourceUnavailable

if TYPE_CHECKING:
    from odf_engine.workspace.documents import private_source
else:  # imports the chain and YAML
    private_source = LazyModule("odf_engine.workspace.documents.private_source")


def read_allowed_variables(odf: Path, dataset: str, alias: str) -> dict[str, str]:
    """Return the variables that a dataset may read and that are set in this process.

    They include the variables of its private source, see
    :func:`odf_engine.workspace.documents.private_source.value_variable`.

    Args:
        odf: the workspace's ``.odf`` folder.
        dataset: the id of the dataset.
        alias: its name; the configuration may use either.
    """
    try:
        names = [
            *load_workspace(odf).allowed_for(dataset, alias),
            *private_source.list_value_variables(odf, dataset),
        ]
    except OdfError:
        return {}  # reported where the settings are used
    return {name: os.environ[name] for name in names if name in os.environ}


TEMPLATE: Final = re.compile(r"\$\{\{(.*?)(\}\}|\Z)", re.DOTALL)
_NAME: Final = re.compile(r"\s*(env|config)\.([A-Za-z_][A-Za-z0-9_]*)\s*")


def parse_variable_name(match: re.Match[str]) -> str:
    """Return the name of the variable in a template, which is a match of :data:`TEMPLATE`.

    A value of a Source resource has a name such as ``config.token``.

    Raises:
        InvalidManifest: another kind of template, or an unterminated one.
    """
    name = _NAME.fullmatch(match[1])
    if name is None or not match[2]:
        hint = "use ${{ env.NAME }} for an environment variable, or ${{ config.NAME }} in a Source"
        raise InvalidManifest(f"unsupported template '{match[0]}'", hint=hint)
    return name[2] if name[1] == "env" else f"config.{name[2]}"


def find_variables(text: str) -> list[str]:
    """Return the unique names of the variables in a text, in their order.

    Raises:
        InvalidManifest: another kind of template, or an unterminated one.
    """
    return list(dict.fromkeys(map(parse_variable_name, TEMPLATE.finditer(text))))


REDACTED: Final = "***"
_MIN_SUBSTRING: Final = 4
"""Shorter secrets are redacted as complete words only, since `1` would match within every number."""


def substitute_variables(
    text: str, environment: Mapping[str, str], allowed: Collection[str], dataset: str = "DATASET"
) -> str:
    """Return the text with every ``${{ env.NAME }}`` replaced. Values are not expanded again.

    Args:
        text: a URL, a header, …
        environment: values of the request; other names are read from the environment of this process.
        allowed: the names that the configuration allows for the dataset.
        dataset: its name, for the hint.

    Raises:
        InvalidManifest: another kind of template, or an unterminated one.
        SourceUnavailable: a name that is not allowed, or not set.
    """
    return TEMPLATE.sub(
        lambda match: resolve_variable(parse_variable_name(match), environment, allowed, dataset), text
    )


def resolve_variable(
    name: str, environment: Mapping[str, str], allowed: Collection[str], dataset: str = "DATASET"
) -> str:
    """Return the value of one variable; arguments and errors as for :func:`substitute_variables`."""
    if name not in allowed and name.startswith("config."):
        raise InvalidManifest(
            f"{dataset} has no value {name}", hint="define it in the Source, under spec.config"
        )
    if name not in allowed:
        names = ",".join([*sorted(allowed), name])
        raise SourceUnavailable(
            f"{dataset} is not allowed to read the environment variable {name}",
            hint=f"to allow it: odf config set allowedEnv.{dataset} {names}",
        )
    value = environment.get(name, os.environ.get(name))
    if value is None:
        raise SourceUnavailable(
            f"the environment variable {name} is not set", hint=f"set it, then try again: export {name}=…"
        )
    return value


def collect_secrets(environment: Mapping[str, str], allowed: Iterable[str]) -> list[str]:
    """Return the values to redact: the values of all names that a dataset may read."""
    values = (environment.get(name, os.environ.get(name)) for name in allowed)
    return [value for value in values if value]


def redact_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return a text with all forms of the secrets redacted."""
    return _make_redactor(secrets)(text)


class RedactingReporter(ForwardingReporter):
    """Forwards everything to another reporter, with secrets redacted in log lines."""

    def __init__(self, reporter: Reporter, secrets: Iterable[str]) -> None:
        super().__init__(reporter)
        self._hide = _make_redactor(secrets)

    def log(self, text: str, level: str = "info") -> None:
        super().log(self._hide(text), level)

    def warn(self, text: str, kind: str, count: int | None = None) -> None:
        super().warn(self._hide(text), kind, count)


@contextmanager
def redacted_errors(secrets: Iterable[str]) -> Iterator[None]:
    """Redact secrets in errors that leave the block; errors with a secret lose their cause and context."""
    redact = _make_redactor(secrets)
    try:
        yield
    except Exception as error:
        if not any(_contains_secret(cause, redact) for cause in _iter_causes(error)):
            raise
        redacted = error if isinstance(error, OdfError) else OdfError(f"{type(error).__name__}: {error}")
        redacted.args = tuple(redact(str(arg)) for arg in redacted.args)
        for name, value in vars(redacted).items():
            if isinstance(value, str):
                setattr(redacted, name, redact(value))
            elif isinstance(value, tuple):
                setattr(
                    redacted,
                    name,
                    tuple(redact(item) if isinstance(item, str) else item for item in value),
                )
        redacted.__context__ = None  # `from None` alone would keep the context
        raise redacted.with_traceback(None) from None


def _iter_causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        cause = pending.pop()
        if cause is not None and id(cause) not in seen:
            seen.add(id(cause))
            yield cause
            pending += [cause.__cause__, cause.__context__]


def _contains_secret(error: BaseException, redact: Callable[[str], str]) -> bool:
    texts = [str(error), repr(error), *map(str, vars(error).values())]
    return any(redact(text) != text for text in texts)


def _make_redactor(secrets: Iterable[str]) -> Callable[[str], str]:
    parts = {
        part for secret in secrets for whole in (secret, *secret.splitlines()) for part in _encodings(whole)
    }
    if not parts:
        return lambda text: text
    # Longest first, so that no secret is redacted only in part.
    pattern = re.compile("|".join(map(_pattern, sorted(parts, key=lambda part: (-len(part), part)))))
    return lambda text: pattern.sub(REDACTED, text)


def _encodings(secret: str) -> set[str]:
    """Return the encodings of a secret: plain, in a URL, in JSON, as a Python literal."""
    urls = {quote(secret), quote(secret, safe=""), quote_plus(secret)}
    lower = {re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), url) for url in urls}
    literals = {repr(secret)[1:-1], repr(secret.encode(errors="replace"))[2:-1]}
    forms = {secret, secret.strip(), *urls, *lower, json.dumps(secret)[1:-1], *literals}
    return {form for form in forms if form}


def _pattern(part: str) -> str:
    whole = re.escape(part)
    return rf"(?<!\w){whole}(?!\w)" if len(part) < _MIN_SUBSTRING else whole
