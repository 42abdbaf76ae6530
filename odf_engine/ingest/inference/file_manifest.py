"""Writes the manifest of a dataset from a data file."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import count
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import urlsplit

from odf_engine.identity.names import is_valid_name
from odf_engine.ingest.inference.declared_table import DeclaredTable
from odf_engine.ingest.inference.file_conversion import FORMATS
from odf_engine.ingest.inference.file_inference import InferredColumn, InferredFile
from odf_engine.ingest.inference.file_sample import split_extensions
from odf_engine.net.urls import is_url

_UNSAFE: Final = re.compile(r"[^a-z0-9.]+")
_DEFAULT_NAME: Final = "my.dataset"
_EVENT_TIME: Final = "event_time"
_WITH_FORMATS: Final = ("Csv", "Json", "NdJson")
"""Kinds of readers with ``dateFormat`` and ``timestampFormat``."""
_NOT_TEXT: Final = ("BIGINT", "DOUBLE", "BOOLEAN")
"""Types that the readers of JSON do not read from texts."""
_WITHOUT_SCHEMA: Final = ("Parquet", "EsriShapefile")
"""Formats that declare their columns."""
_MERGE_COMMENTS: Final = (
    "# Merge strategies:",
    "#   Append    every row is new",
    "#   Ledger    rows with a new key are added",
    "#   Snapshot  the complete list each time; differences become retractions and corrections",
    "#   UpsertStream     rows insert or update the row of their key; a column op may retract",
    "#   ChangelogStream  rows are changes by key; a column op has their operation",
)
_MERGE_ADVICE: Final = (
    "# Ledger is for a file that grows, Snapshot for a complete list, UpsertStream for a file that",
    "# holds only recent rows: Snapshot would retract the rows that left it.",
)
"""For rows with a key and an event time, which may be a moving window."""


def suggest_name(location: str, used_names: Collection[str]) -> str:
    """Return an unused dataset name for a file or URL; a default name if none can be derived."""
    path = PurePosixPath(urlsplit(location).path if is_url(location) else location)
    stem = path.name
    for suffix in reversed(split_extensions(location)):
        stem = stem[: len(stem) - len(suffix)] if suffix else stem
    name = _UNSAFE.sub("-", stem.lower()).strip("-.")
    name = name if is_valid_name(name) else _DEFAULT_NAME
    used = {used_name.lower() for used_name in used_names}
    return next(
        candidate
        for number in count(1)
        if (candidate := name if number == 1 else f"{name}-{number}") not in used
    )


def example_file(location: str) -> InferredFile:
    """Return an example for a file that cannot be read."""
    suffix, compression = split_extensions(location)
    return InferredFile(
        kind=FORMATS.get(suffix, "Csv"),
        compression={".gz": "Gzip", ".zip": "Zip"}.get(compression, ""),
        header=True,
        columns=(InferredColumn("id", "id", "BIGINT"), InferredColumn("name", "name")),
    )


def manifest_text(
    location: str,
    name: str,
    file: InferredFile,
    problem: str = "",
    declared: DeclaredTable | None = None,
    pattern: str = "",
) -> str:
    """Return the manifest of a dataset.

    Args:
        location: path relative to the workspace, or URL.
        name: name of the dataset.
        found: format and columns.
        problem: why the columns are only an example, or "" if they are not.
        declared: what metadata say about the table, or None without metadata.
        pattern: the pattern of the files of the dataset, or "" for the single file at the location.
    """
    declared = declared or DeclaredTable(location=location)
    plan = _ReadPlan(file)
    lines = [
        "- kind: SetPollingSource",
        *_fetch_lines(location, file, pattern),
        *_prepare_lines(file),
        *([f"  # {_one_line(problem)}"] if problem else _evidence_lines(file, declared)),
        "  read:", *(f"    {line}" for line in plan.reader_lines()),
        *plan.query_lines(),
        *(f"  {line}" for line in _MERGE_COMMENTS),
        *(f"  {line}" for line in _MERGE_ADVICE if file.key and file.time),
        *([f"  # Key: {_one_line(file.reason)}"] if file.reason else []),
        "  merge:", f"    kind: {file.merge}",
    ]  # fmt: skip
    if file.merge != "Append":
        lines.append(
            f"    primaryKey: [{', '.join(_yaml_scalar(plan.result_name(part)) for part in file.key)}]"
        )
    lines += _about_lines(declared)
    head = [
        "kind: DatasetSnapshot",
        "version: 1",
        "content:",
        f"  name: {name}",
        "  kind: Root",
        "  metadata:",
    ]
    return "\n".join([*head, *(f"    {line}" for line in lines)]) + "\n"


def _about_lines(declared: DeclaredTable) -> list[str]:
    """Return the events about the dataset, with the declared texts."""
    description = _yaml_scalar(_one_line(declared.description) or "Describe the dataset in one sentence")
    lines = ["- kind: SetInfo", f"  description: {description}"]
    if declared.keywords:
        lines.append(f"  keywords: [{', '.join(map(_yaml_item, declared.keywords))}]")
    if (license := declared.license) is not None:
        lines += ["- kind: SetLicense", f"  shortName: {_yaml_scalar(_one_line(license.short_name))}"]
        lines += [f"  name: {_yaml_scalar(_one_line(license.name))}"]
        lines += [f"  spdxId: {_yaml_scalar(_one_line(license.spdx_id))}"] if license.spdx_id else []
        lines += [f"  websiteUrl: {_yaml_scalar(_one_line(license.website_url))}"]
    return lines


def _fetch_lines(location: str, file: InferredFile, pattern: str) -> list[str]:
    if pattern:
        return [
            "  # Each pull ingests the new files, by name. Paths are relative to the workspace folder.",
            "  fetch:", "    kind: FilesGlob", f"    path: {_yaml_scalar(pattern)}", "    order: ByName",
        ]  # fmt: skip
    return [
        "  # Each pull checks the file for changes. Paths are relative to the workspace folder.",
        *_file_fetch_lines(location, file),
    ]


def _file_fetch_lines(location: str, file: InferredFile) -> list[str]:
    if file.paging:
        arguments = [("--url", location), *_option_pairs(file.paging)]
        lines = [" ".join(json.dumps(word, ensure_ascii=False) + "," for word in pair) for pair in arguments]
        return [
            f"  # {_one_line(file.evidence[-1][0].upper() + file.evidence[-1][1:])}.",
            "  fetch:", "    kind: Container", "    image: odf/pages:1", "    args: [",
            *(f"      {line}" for line in lines), "    ]",
        ]  # fmt: skip
    url = location if is_url(location) else f"file:{location}"
    return ["  fetch:", "    kind: Url", f"    url: {_yaml_scalar(url)}"]


def _option_pairs(arguments: Sequence[str]) -> list[Sequence[str]]:
    return [arguments[at : at + 2] for at in range(0, len(arguments), 2)]


def _prepare_lines(file: InferredFile) -> list[str]:
    steps = [f"    # {_one_line(reason[0].upper() + reason[1:])}." for reason in file.evidence]
    if file.compression:
        steps += ["    - kind: Decompress", f"      format: {file.compression}"]
        steps += [f"      subPath: {json.dumps(file.entry)}"] if file.entry else []
    for arguments in file.filters:
        words = ["odf", "filter", *(json.dumps(word, ensure_ascii=False) for word in arguments)]
        steps += ["    - kind: Pipe", f"      command: [{', '.join(words)}]"]
    return ["  prepare:", *steps] if file.compression or file.filters else []


def _evidence_lines(file: InferredFile, declared: DeclaredTable) -> list[str]:
    """Return comments with the reasons for types and formats."""
    if file.kind in _WITHOUT_SCHEMA:
        return []
    lines = ["  # Columns inferred from the first rows. Check them."]
    if declared.columns:
        lines = [f"  # Columns declared in {_one_line(declared.origin)}, else inferred from the first rows."]
    return lines + [f"  # {_one_line(column.name)}: {_one_line(column.evidence)}"
                    for column in file.columns if column.evidence]  # fmt: skip


def _one_line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


class _ReadPlan:
    """What the reader does with the columns of a file, and what a query does.

    The reader has one format for all dates, and one text for null. The query converts the other columns,
    which the reader reads as text.
    """

    def __init__(self, file: InferredFile) -> None:
        self._found = file
        self._formats = {kind: self._reader_format(kind) for kind in ("DATE", "TIMESTAMP")}
        self._null = self._reader_null()
        self._converted = {column.name for column in file.columns if self._needs_query(column)}

    def _reader_format(self, kind: str) -> str:
        """Return the format of the reader for a type, or "" for ISO 8601."""
        forms = Counter(column.form for column in self._found.columns if column.type == kind)
        usable = self._found.kind in _WITH_FORMATS and not forms[""]
        return (
            next((form for form, _ in forms.most_common() if not form.startswith("epoch")), "")
            if usable
            else ""
        )

    def _reader_null(self) -> str:
        """Return the text that the reader reads as null in all columns, or "" for none."""
        file = self._found
        texts = {text for column in file.columns for text in column.null_texts}
        if file.kind != "Csv" or len(texts) != 1:
            return ""
        (null,) = texts
        plain = [at for at, column in enumerate(file.columns)
                 if column.type == "STRING" and null not in column.null_texts]  # fmt: skip
        return "" if any(row[at] == null for _, row in file.rows for at in plain) else null

    def _needs_query(self, column: InferredColumn) -> bool:
        if self._found.kind in _WITHOUT_SCHEMA:
            return False
        if column.type == "STRING":
            return bool(column.null_texts - {self._null})
        if column.type in self._formats and not column.form.startswith("epoch"):
            is_read = column.form == self._formats[column.type]
        else:
            is_read = not column.form and not (self._found.is_untyped and column.type in _NOT_TEXT)
        return not is_read or bool(column.null_texts - {self._null})

    def _source_name(self, column: InferredColumn) -> str:
        """Return the reader's name of a column. Those of CSV are given by position."""
        return column.name if self._found.kind == "Csv" else column.source or column.name

    def result_name(self, name: str) -> str:
        """Return the name of a column in the dataset."""
        return _EVENT_TIME if name == self._found.time and not self._is_day(name) else name

    def _is_day(self, name: str) -> bool:
        column = self._found.column(name)
        return column is not None and column.type.startswith("DATE")

    def reader_lines(self) -> Iterator[str]:
        """Yield the fields of the reader."""
        file = self._found
        yield f"kind: {file.kind}"
        if file.kind == "Csv":
            yield f"header: {'true' if file.header or file.is_normalized else 'false'}"
            if file.separator != "," and not file.is_normalized:
                yield f"separator: {json.dumps(file.separator)}"
            if file.quote != '"' and not file.is_normalized:
                yield f"quote: {json.dumps(file.quote)}"
            if self._null:
                yield f"nullValue: {json.dumps(self._null)}"
        if file.encoding and file.kind in _WITH_FORMATS and not file.is_normalized:
            yield f"encoding: {file.encoding}"
        if file.sub_path or (file.kind == "EsriShapefile" and file.entry):
            yield f"subPath: {json.dumps(file.sub_path or file.entry)}"
        for key, kind in (("dateFormat", "DATE"), ("timestampFormat", "TIMESTAMP")):
            if self._formats[kind]:
                yield f"{key}: {json.dumps(self._formats[kind])}"
        if file.kind in _WITHOUT_SCHEMA:
            return
        yield "schema:"
        for column in file.columns:
            kind = "STRING" if column.name in self._converted else column.type
            required = file.merge != "Append" and column.name in file.key
            name = self._source_name(column)
            name = name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else _quoted(name)
            yield f"  - {_yaml_scalar(f'{name} {kind}' + ' NOT NULL' * required)}"

    def query_lines(self) -> list[str]:
        """Return the lines of the preprocess query; none if the reader is sufficient."""
        file, time = self._found, self._found.time
        renamed = any(self._source_name(other) != other.name for other in file.columns)
        is_named = time == _EVENT_TIME and not self._is_day(time)
        taken = any(other.name.lower() == _EVENT_TIME and other.name != time for other in file.columns)
        if not self._converted and not renamed and not taken:
            if not time or is_named:
                return []
            column = _quoted(time)
            what = f"{column} AS event_time, * EXCEPT ({column})"
            if self._is_day(time):
                what = f"CAST({column} AS TIMESTAMP) AS event_time, *"
            return _query_lines([f"SELECT {what} FROM input"], "The event time of each row.")
        items: list[str] = []
        for column in file.columns:
            value = self._value(column)
            if column.name == time and self._is_day(time):
                items.insert(0, f"CAST({value} AS TIMESTAMP) AS event_time")
            elif column.name == time:
                items.insert(0, f"{value} AS event_time")
                continue
            name = f"source_{column.name}" if column.name.lower() == _EVENT_TIME else column.name
            items.append(value if value == _quoted(name) else f"{value} AS {_quoted(name)}")
        lines = ["SELECT", *(f"  {item}," for item in items[:-1]), f"  {items[-1]}", "FROM input"]
        return _query_lines(lines, "Convert what the reader cannot convert.")

    def _value(self, column: InferredColumn) -> str:
        """Return the SQL expression for the value of a column."""
        text = _quoted(self._source_name(column))
        if column.name not in self._converted:
            return text
        for null in sorted(column.null_texts - {self._null}):
            text = f"nullif({text}, {_literal(null)})"
        form = column.form
        if form.startswith("epoch"):
            unit = "seconds" if form == "epoch s" else "millis"
            return f"timestamp_{unit}(CAST({text} AS BIGINT))"
        if column.type in self._formats and form:
            return f"to_{column.type.lower()}({text}, {_literal(form)})"
        if form:
            group = form[1]
            text = (
                f"regexp_replace({text}, '[ \\u00a0\\u202f]', '')"
                if group == " "
                else f"replace({text}, {_literal(group)}, '')"
            )
            text = f"replace({text}, ',', '.')" if form.endswith(",5") else text
        return text if column.type == "STRING" else f"CAST({text} AS {column.type})"


def _query_lines(query: Sequence[str], comment: str) -> list[str]:
    lines = [f"  # {comment}", "  preprocess:", "    kind: Sql", "    engine: spark"]
    if len(query) == 1 or not all(line.isprintable() for line in query):
        return [*lines, f"    query: {_yaml_scalar(' '.join(query))}"]
    return [*lines, "    query: |", *(f"      {line}" for line in query)]


def _quoted(name: str) -> str:
    """Return a name as SQL identifier; it may be a keyword."""
    return "`" + name.replace("`", "``") + "`"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_YAML_WORDS: Final = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")


def _yaml_item(text: str) -> str:
    """Return a text as an item of a YAML list in brackets."""
    text = _one_line(text)
    return text if re.fullmatch(r"[A-Za-z][A-Za-z -]*[a-z]", text) else json.dumps(text)


def _yaml_scalar(text: str) -> str:
    """Return a text as a YAML scalar, quoted if necessary."""
    plain = (
        text.lower() not in _YAML_WORDS
        and re.fullmatch(r"[A-Za-z_][\w ./:()<>*-]*", text, re.ASCII)
        and ": " not in text
        and text[-1] not in ": "
    )
    return text if plain else json.dumps(text, ensure_ascii=not text.isprintable())
