"""Selects the fetcher for a FetchStep; fetches local files."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from urllib.parse import urlsplit

from odf_engine.errors import InvalidManifest, Unsupported
from odf_engine.ingest.fetch.container import fetch_container
from odf_engine.ingest.fetch.ethereum import fetch_ethereum_logs
from odf_engine.ingest.fetch.files_glob import event_time_from_url, fetch_files
from odf_engine.ingest.fetch.ftp import fetch_ftp
from odf_engine.ingest.fetch.http import fetch_http
from odf_engine.ingest.fetch.listing import fetch_listing
from odf_engine.ingest.fetch.model import (
    LAST_MODIFIED,
    SOURCE_NAME,
    FetchContext,
    Payload,
    file_stamp,
    require_readable,
)
from odf_engine.ingest.fetch.mqtt import fetch_mqtt
from odf_engine.ingest.fetch.pages import fetch_pages
from odf_engine.ingest.fetch.s3 import fetch_s3
from odf_engine.metadata.model import (
    Container,
    EthereumLogs,
    FetchStep,
    FilesGlob,
    FromMetadata,
    FromPath,
    Mqtt,
    SourceState,
    Url,
    kind_of,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net.urls import without_login
from odf_engine.workspace.definitions.fetch_arguments import native_program
from odf_engine.workspace.environment import (
    RedactingReporter,
    collect_secrets,
    find_variables,
    redacted_errors,
)


def fetch(step: FetchStep, context: FetchContext) -> Generator[Payload, None, None]:
    """Yield the payloads since ``context.state``, oldest first; none if the dataset is up to date.

    Variables are substituted on use. Log lines, errors and payloads show the text of the manifest.

    Raises:
        SourceUnavailable: a missing file, an HTTP status, a broken connection, a variable that is not set.
        BadData: an event time that cannot be parsed from the name of a file.
        Unsupported: a kind of source that this version cannot fetch.
        InvalidManifest: the step is contradictory.
    """
    secrets = collect_secrets(context.environment, context.allowed)
    if secrets:
        context = replace(context, reporter=RedactingReporter(context.reporter, secrets))
    with redacted_errors(secrets):
        yield from _payloads(step, context)


def _payloads(step: FetchStep, context: FetchContext) -> Iterator[Payload]:
    if isinstance(step, FilesGlob):
        if find_variables(step.path):
            raise InvalidManifest(
                f"'{step.path}': variables are supported in URLs and headers only, not in paths",
                hint="replace the variable with its value",
            )
        yield from fetch_files(step, context)
    elif isinstance(step, Url):
        payload = _fetch_url(step, context)
        if payload is not None:
            yield payload
    elif isinstance(step, Container):
        yield from _fetch_program(step, context)
    elif isinstance(step, Mqtt):
        yield from fetch_mqtt(step, context)
    elif isinstance(step, EthereumLogs):
        yield from fetch_ethereum_logs(step, context)
    else:
        kind = kind_of(step)  # type: ignore[arg-type]
        raise Unsupported(
            f"unsupported kind of source: {kind}",
            hint="supported kinds: Url (file, http, https, ftp, ftps, s3), FilesGlob, Container, Mqtt,"
            " EthereumLogs",
        )


def _fetch_program(step: Container, context: FetchContext) -> Iterator[Payload]:
    match native_program(step):
        case "odf/pages":
            return fetch_pages(step, context)
        case "odf/listing":
            return fetch_listing(step, context)
        case _:
            return fetch_container(step, context)


def _fetch_url(step: Url, context: FetchContext) -> Payload | None:
    url = context.substitute_variables(step.url)
    try:
        scheme = urlsplit(url).scheme.lower()
    except ValueError:
        raise InvalidManifest(f"invalid URL: '{step.url}'", hint="check fetch.url") from None
    if not isinstance(step.event_time, FromPath):
        return _fetch_scheme(step, scheme, context)
    event_time = event_time_from_url(step.event_time, url, without_login(step.url))
    payload = _fetch_scheme(step, scheme, context)
    return None if payload is None else replace(payload, event_time=event_time)


def _fetch_scheme(step: Url, scheme: str, context: FetchContext) -> Payload | None:
    if step.headers and scheme not in ("http", "https"):
        text = "headers are supported with http and https only: they are not sent"
        context.reporter.warn(text, "ignored-option")
    if scheme in ("http", "https"):
        return fetch_http(step, context)
    if scheme in ("ftp", "ftps"):
        return fetch_ftp(step, context)
    if scheme == "s3":
        return fetch_s3(step, context)
    if scheme in ("", "file"):
        return _fetch_file(step, context)
    raise Unsupported(
        f"'{step.url}': unsupported URL scheme {scheme}", hint="use file, http, https, ftp, ftps or s3"
    )


def _fetch_file(step: Url, context: FetchContext) -> Payload | None:
    """Return a local file, which is read in place, or None if its modification time is in the state."""
    url = context.substitute_variables(step.url)
    mark = next((char for char in "?#" if char in url), None) if url[:5].lower() == "file:" else None
    if mark is not None:
        raise InvalidManifest(
            f"'{step.url}': {mark} ends the path of a file: URL",
            hint=f"write %{ord(mark):02X} instead of {mark} if it is part of the name",
        )
    path = context.resolve(url)
    require_readable(path)
    stamp = file_stamp(path)
    modified = Timestamp.from_ms(stamp[0] // 1_000_000)
    state = SourceState(SOURCE_NAME, LAST_MODIFIED, str(modified))
    if state == context.state:
        context.reporter.log(f"{path} not modified since {modified}")
        return None
    context.reporter.log(f"file {path}, {stamp[1]:,} bytes, modified {modified}")
    context.reporter.set_amounts(bytes=stamp[1], total_bytes=stamp[1])
    from_file = step.event_time is None or isinstance(step.event_time, FromMetadata)
    return Payload(path, path.name, state, modified if from_file else None, stamp)
