"""Checks of new definitions for invalid sources, and for parts that parse and would have no effect here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from odf_engine.base.lazy import LazyModule
from odf_engine.chain.normal_form import engine_version
from odf_engine.data.ethereum.abi import SignatureError, parse_event
from odf_engine.errors import InvalidManifest, OdfError, Unsupported
from odf_engine.metadata import model
from odf_engine.metadata.model import kind_of
from odf_engine.metadata.time_formats import DEFAULT_FORMAT, check_time_format
from odf_engine.workspace.definitions.fetch_arguments import parse_native

if TYPE_CHECKING:
    from odf_engine.data.ethereum import log_filter
else:  # imports sqlglot
    log_filter = LazyModule("odf_engine.data.ethereum.log_filter")

_WITHOUT_HEADERS: Final = ("", "file", "ftp", "ftps", "s3")


def check_options(event: model.MetadataEvent) -> None:
    """Check that every part of an event has an effect in this version.

    Call it for the events that a definition appends. Events of existing chains keep their meaning: a part
    without an effect is ignored there.

    Raises:
        InvalidManifest: an option that has no effect in its place.
        Unsupported: a part of a newer specification.
    """
    for problem in _find_problems(event):
        raise problem


def _find_problems(event: Any) -> Iterator[OdfError]:
    match event:
        case model.SetPollingSource():
            yield from _fetch_problems(event.fetch)
            for step in event.prepare or ():
                yield from _prepare_problems(step)
            yield from _source_problems(event)
        case model.AddPushSource():
            yield from _source_problems(event)


def _fetch_problems(fetch: Any) -> Iterator[OdfError]:
    match fetch:
        case model.Url():
            scheme = None
            with suppress(ValueError):  # the fetch reports an invalid URL
                scheme = urlsplit(fetch.url).scheme.lower()
            if fetch.headers and scheme in _WITHOUT_HEADERS and not fetch.url.startswith("${{"):
                yield InvalidManifest(
                    "headers are supported with http and https only",
                    where="fetch.headers",
                    hint="remove the headers, or use an http URL",
                )
        case model.FilesGlob():
            times = (model.FromPath, model.FromMetadata)
            if fetch.order is model.SourceOrdering.ByEventTime and not isinstance(fetch.event_time, times):
                yield InvalidManifest(
                    "order ByEventTime requires an event time for each file",
                    where="fetch.order",
                    hint="set fetch.eventTime to FromPath or FromMetadata, or use order ByName",
                )
        case model.Container() | model.Mqtt() | model.EthereumLogs():
            return
        case _:
            yield Unsupported(
                f"unsupported kind of source: {kind_of(fetch)}",
                where="fetch.kind",
                hint="supported kinds: Url (file, http, https, ftp, ftps, s3), FilesGlob, Container, Mqtt,"
                " EthereumLogs",
            )


def check_fetch(fetch: model.FetchStep) -> None:
    """Check the fetch step of a source for errors that would otherwise occur at the first pull.

    Raises:
        InvalidManifest: it has one.
    """
    if isinstance(fetch, model.FilesGlob) and not fetch.path.strip():
        raise InvalidManifest("the file pattern is empty", where="fetch.path")
    if isinstance(fetch, model.Url) and not fetch.url.strip():
        raise InvalidManifest("the URL is empty", where="fetch.url")
    if isinstance(fetch, model.Container):
        parse_native(fetch)
    if isinstance(fetch, model.Mqtt):
        _check_mqtt(fetch)
    if isinstance(fetch, model.EthereumLogs):
        _check_ethereum_logs(fetch)
    event_time = getattr(fetch, "event_time", None)
    if not isinstance(event_time, model.FromPath):
        return
    place = "fetch.eventTime.pattern"
    try:
        pattern = re.compile(event_time.pattern)
    except re.error as error:
        raise InvalidManifest(
            f"'{event_time.pattern}' is not a regular expression: {error}", where=place
        ) from None
    if not pattern.groups:
        raise InvalidManifest(
            f"'{event_time.pattern}' has no group",
            where=place,
            hint=r"enclose the time in parentheses, such as (\d{4}-\d{2}-\d{2})",
        )
    try:
        check_time_format(event_time.timestamp_format or DEFAULT_FORMAT)
    except InvalidManifest as error:
        error.where = "fetch.eventTime.timestampFormat"
        raise


_MAX_TOPIC_BYTES: Final = 65_535


def _check_mqtt(fetch: model.Mqtt) -> None:
    if not re.fullmatch(r"[^\s/@#?]+", fetch.host) or fetch.host.count(":") == 1:
        raise InvalidManifest(
            "the host of the broker is not a host name",
            where="fetch.host",
            hint="write the name or address of the broker, without scheme and port",
        )
    if not 0 < fetch.port < 65_536:
        raise InvalidManifest(
            f"{fetch.port} is not a port from 1 to 65535", where="fetch.port", hint="most brokers use 1883"
        )
    if fetch.password is not None and not fetch.username:
        raise InvalidManifest(
            "MQTT requires a user name with a password", where="fetch.username", hint="set fetch.username"
        )
    if not fetch.topics:
        raise InvalidManifest(
            "the list of topics is empty", where="fetch.topics", hint="list at least one: - path: sensors/#"
        )
    paths = [topic.path for topic in fetch.topics]
    for path in paths:
        if paths.count(path) > 1:
            raise InvalidManifest(f"topic '{path}' is listed twice", where="fetch.topics")
        levels = path.split("/")
        size = len(path.encode("utf-8", "surrogatepass"))
        misplaced = "#" in "/".join(levels[:-1]) or any(
            len(level) > 1 and ("#" in level or "+" in level) for level in levels
        )
        if not path or "\0" in path or size > _MAX_TOPIC_BYTES or misplaced:
            raise InvalidManifest(
                f"invalid topic '{path[:100]}'",
                where="fetch.topics",
                hint="+ replaces one level, and # all levels at the end, such as a/+/c or a/#",
            )


def _check_ethereum_logs(fetch: model.EthereumLogs) -> None:
    if fetch.chain_id is None and fetch.node_url is None:
        raise InvalidManifest(
            "an EthereumLogs source requires a chain or a node",
            where="fetch",
            hint="set chainId, such as 1 for Ethereum, or nodeUrl",
        )
    if fetch.node_url is not None and not re.match(r"https?://[^/]|\$\{\{", fetch.node_url, re.IGNORECASE):
        is_websocket = fetch.node_url.lower().startswith(("ws:", "wss:"))
        raise InvalidManifest(
            "WebSocket URLs of nodes are not supported"
            if is_websocket
            else "the URL of the node is not HTTP",
            where="fetch.nodeUrl",
            hint="use the http or https URL of the node",
        )
    limits = log_filter.LogFilter() if fetch.filter is None else log_filter.parse_filter(fetch.filter)
    if fetch.signature is not None:
        try:
            event = parse_event(fetch.signature)
        except SignatureError as error:
            raise InvalidManifest(
                str(error),
                where="fetch.signature",
                hint="write it as in Solidity: Transfer(address indexed from, address to, uint256 value)",
            ) from None
        if not event.anonymous:
            limits = limits.with_value("topic0", event.selector)
    is_reversed = None not in (limits.first, limits.last) and limits.first > limits.last  # type: ignore[operator]
    if limits.is_empty or is_reversed:
        raise InvalidManifest(
            "no log can match the filter",
            where="fetch.filter",
            hint="check its conditions; with a signature, topic0 is its selector",
        )


def _prepare_problems(step: model.PrepStep) -> Iterator[OdfError]:
    match step:
        case model.Decompress() if step.sub_path is not None:
            if step.format is not model.CompressionFormat.Zip:
                yield InvalidManifest(
                    f"subPath has no effect with format {step.format.value}: the file has a single content",
                    where="prepare.subPath",
                    hint="remove subPath; for a zip archive, use format: Zip",
                )
        case model.Pipe() if not step.command or not step.command[0]:
            yield InvalidManifest(
                "missing command in a Pipe step",
                where="prepare.command",
                hint="set command to a program and its arguments, such as [jq, -c, '.items[]']",
            )


def _source_problems(source: model.SetPollingSource | model.AddPushSource) -> Iterator[OdfError]:
    read, preprocess = source.read, source.preprocess
    if isinstance(source, model.SetPollingSource):
        yield from _format_problems(source.fetch, read)
    if isinstance(read, model.Csv) and read.infer_schema and (read.schema or read.odf_schema) is not None:
        yield InvalidManifest(
            "inferSchema has no effect with read.schema",
            where="read.inferSchema",
            hint="remove inferSchema to use the declared types, or remove the schema to infer them",
        )
    if preprocess is not None:
        yield from _preprocess_problems(preprocess)


def _format_problems(fetch: model.FetchStep, read: model.ReadStep) -> Iterator[OdfError]:
    if isinstance(fetch, model.Mqtt) and not isinstance(read, model.NdJson | model.NdGeoJson):
        yield InvalidManifest(
            f"{kind_of(read)} cannot read MQTT messages, which are lines of JSON",  # type: ignore[arg-type]
            where="read.kind",
            hint="use NdJson or NdGeoJson",
        )
    if isinstance(fetch, model.EthereumLogs) and not isinstance(read, model.Parquet):
        yield InvalidManifest(
            f"{kind_of(read)} cannot read Ethereum logs, which are a Parquet file",  # type: ignore[arg-type]
            where="read.kind",
            hint="use Parquet",
        )


def _preprocess_problems(query: model.Sql) -> Iterator[OdfError]:
    installed = engine_version(query.engine)
    if installed is not None and query.version not in (None, installed):
        yield InvalidManifest(
            f"unsupported engine version {query.version}: this is {installed}",
            where="preprocess.version",
            hint="omit version",
        )
    if query.temporal_tables is not None:
        yield InvalidManifest(
            "temporalTables has no effect in a preprocess query",
            where="preprocess.temporalTables",
            hint="use temporalTables in the transform of a derivative dataset",
        )
