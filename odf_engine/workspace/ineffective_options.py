"""Checks of new definitions for parts that parse and would have no effect here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from odf_engine.chain.normal_form import SPARK, spark_engine_version
from odf_engine.errors import InvalidManifest, OdfError, Unsupported
from odf_engine.metadata import model
from odf_engine.metadata.model import kind_of

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
        case model.SetDataSchema() if event.odf_schema is not None:
            yield Unsupported(
                "schemas in ODF format are not supported",
                where="SetDataSchema",
                hint='list the columns as DDL: schema: ["id BIGINT", …]',
            )


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
        case model.Container():
            return
        case _:
            yield Unsupported(
                f"unsupported kind of source: {kind_of(fetch)}",
                where="fetch.kind",
                hint="supported kinds: Url (file, http, https, ftp, ftps, s3), FilesGlob, Container",
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
    if read.odf_schema is not None:
        yield Unsupported(
            "schemas in ODF format are not supported in a read step",
            where="read.schema",
            hint='declare the columns as DDL, such as schema: ["id BIGINT", …]',
        )
    if isinstance(read, model.Csv) and read.infer_schema and read.schema is not None:
        yield InvalidManifest(
            "inferSchema has no effect with read.schema",
            where="read.inferSchema",
            hint="remove inferSchema to use the declared types, or remove the schema to infer them",
        )
    if preprocess is not None:
        yield from _preprocess_problems(preprocess)
    if not isinstance(source.merge, model.Append | model.Ledger | model.Snapshot):
        yield Unsupported(
            f"unsupported merge strategy: {kind_of(source.merge)}",  # type: ignore[arg-type]
            where="merge.kind",
            hint="use Append, Ledger or Snapshot",
        )


def _preprocess_problems(query: model.Sql) -> Iterator[OdfError]:
    if (
        query.version is not None
        and query.engine.lower() == SPARK
        and query.version != spark_engine_version()
    ):
        yield InvalidManifest(
            f"unsupported engine version {query.version}: this is {spark_engine_version()}",
            where="preprocess.version",
            hint="omit version",
        )
    if query.temporal_tables is not None:
        yield InvalidManifest(
            "temporalTables has no effect in a preprocess query",
            where="preprocess.temporalTables",
            hint="use temporalTables in the transform of a derivative dataset",
        )
