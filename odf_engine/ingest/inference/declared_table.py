"""Tables whose columns are declared by metadata. Declarations win over inference unless values contradict."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urljoin, urlsplit

import msgspec

from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData, Unsupported
from odf_engine.ingest.inference.file_inference import (
    NUMBER_FORMS,
    FileChoices,
    InferredColumn,
    InferredFile,
)
from odf_engine.ingest.inference.file_sample import FileSample, infer_file
from odf_engine.metadata.model import SetLicense
from odf_engine.net.urls import is_url

NOT_AS_DECLARED: Final = "metadata-contradiction"
"""Kind of the warnings of values that contradict their declaration."""
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_ISO_FORM: Final = re.compile(r"yyyy-MM-dd(('T'| )HH:mm(:ss(\.S+)?)?(X{1,3})?)?")
_ENCODING: Final = re.compile(r"[\w.:-]+", re.ASCII)
_SPDX: Final = re.compile(r"(CC0-|CC-BY|PDDL-|ODbL-|ODC-By-|OGL-|MIT$|Apache-|GPL-|EUPL-|DL-DE-|etalab-).*")
_PROBLEM: Final = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_Document = TypeVar("_Document")
ReadDocument = Callable[[str, str], bytes]
"""Returns a document by its location and, in an archive, its entry."""


class DeclaredColumn(msgspec.Struct, frozen=True):
    """A declared column.

    Attributes:
        name: its name in the dataset.
        titles: other names that the header may have.
        type: its type as DDL, or "" if it is inferred.
        form: how values are written, as in :class:`InferredColumn`, or None if the format is inferred.
        nulls: texts that mean null.
    """

    name: str
    titles: tuple[str, ...] = ()
    type: str = ""
    form: str | None = ""
    nulls: frozenset[str] = frozenset()


class DeclaredTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table, and what its metadata declares. Everything else is inferred.

    Attributes:
        location: the path of its file, relative to the workspace, or URL.
        name: its name in the collection, or "" for a file that is not in a collection.
        entry: its file in an archive, or "".
        members: patterns of its files in an archive, if it has several.
        origin: what declares it, such as ``datapackage.json``, or "" if nothing does.
        separator, quote, encoding, header: of CSV, or None.
        skip: number of lines before the header.
        comment: start of lines that are left out, or "".
        columns: the declared columns, in the order of the file.
        key: names of the declared columns of the primary key.
        merge: the merge strategy, or None.
        time: the event time column, "" if there is none, or None.
        description: a text about the table, or "".
        keywords: its keywords.
        license: its licence.
    """

    location: str
    name: str = ""
    entry: str = ""
    members: tuple[str, ...] = ()
    origin: str = ""
    separator: str | None = None
    quote: str | None = None
    encoding: str | None = None
    header: bool | None = None
    skip: int = 0
    comment: str = ""
    columns: tuple[DeclaredColumn, ...] = ()
    key: tuple[str, ...] = ()
    merge: str | None = None
    time: str | None = None
    description: str = ""
    keywords: tuple[str, ...] = ()
    license: SetLicense | None = None

    @property
    def label(self) -> str:
        """The name for messages: the files in the archive, the path or the URL."""
        return ", ".join(self.members) or self.entry or self.location


class MetadataFile(NamedTuple):
    """A document that describes tables.

    Attributes:
        location: its path, relative to the workspace, or URL.
        archive: the archive that contains it, in place of a folder, or "".
    """

    location: str
    archive: str = ""

    @property
    def name(self) -> str:
        """Its file name, for messages."""
        return PurePosixPath(urlsplit(self.location).path if is_url(self.location) else self.location).name

    def place(self, path: str = "") -> str:
        """Return the place of a property for errors, such as ``datapackage.json: resources[1].path``."""
        return f"{self.name}: {path}" if path else self.name

    def decode(self, data: bytes, type_: type[_Document]) -> _Document:
        """Return the document.

        Raises:
            BadData: it is not JSON, or a property has another type.
        """
        try:
            return msgspec.json.decode(data.removeprefix(codecs.BOM_UTF8), type=type_)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            match = _PROBLEM.fullmatch(str(error))
            assert match is not None
            problem = match[1].replace("`", "")
            raise BadData(problem[:1].lower() + problem[1:], where=self.place(match[2] or "")) from None

    def resolve(self, path: str, where: str, *, is_encoded: bool = False) -> tuple[str, str]:
        """Return the location of a table's file, and its entry if this document is in an archive.

        Args:
            path: a path relative to the folder of this document, or a URL.
            where: the property with the path, for errors.
            is_encoded: whether special characters of a path are written as ``%XX``.

        Raises:
            BadData: the path leaves the folder.
            Unsupported: the URL has another scheme than http and https.
        """
        plain = unquote(path) if is_encoded else path
        if "${{" in plain or not plain.isprintable():
            raise BadData(f"invalid path '{path}'", where=where)
        if scheme := _SCHEME.match(path):
            if scheme[0].lower() not in ("http:", "https:"):
                raise Unsupported(f"unsupported URL scheme: {scheme[0][:-1]}", where=where,
                                  hint="use a relative path, or an http or https URL")  # fmt: skip
            return path, ""
        parts = PurePosixPath(plain).parts
        if not parts or ".." in parts or plain.startswith(("/", "~")) or "\\" in plain:
            raise BadData(
                f"the path '{path}' is not in the folder of {self.name}",
                where=where,
                hint="use a relative path without .., or an http or https URL",
            )
        if is_url(self.location) and not self.archive:
            return urljoin(self.location, path if is_encoded else quote(path)), ""
        file = str(PurePosixPath(self.location).parent / plain)
        return (self.archive, file) if self.archive else (file, "")


def check_encoding(encoding: str | None, where: str) -> str | None:
    """Return a declared encoding by a name that the readers know.

    Raises:
        BadData: it is unknown.
    """
    if encoding is None:
        return None
    with suppress(LookupError):
        if _ENCODING.fullmatch(encoding):
            codec = codecs.lookup(encoding).name
            if codec in ("ascii", "utf-8", "utf-8-sig"):
                return "utf-8"
            return codec.replace("iso8859", "ISO-8859") if codec.startswith("iso8859") else encoding
    raise BadData(f'unknown encoding "{encoding}"', where=where)


def check_mark(mark: str | None, where: str, *, max_length: int = 1) -> str | None:
    """Return a declared separator or quote.

    Raises:
        BadData: it is too long, or a line break.
    """
    if mark is not None and (len(mark) > max_length or not mark.replace("\t", " ").isprintable()):
        raise BadData(f"invalid value {mark!r}", where=where)
    return mark


def number_form(decimal: str, group: str) -> str | None:
    """Return how numbers with these marks are written, "" for plain ones, or None if it is not supported."""
    if (decimal or ".") == "." and not group:
        return ""
    forms = (form for form in NUMBER_FORMS if form and form[-2] == (decimal or "."))
    return next((form for form in forms if not group or form[1] == group), None)


def time_form(pattern: str) -> str:
    """Return a Spark pattern as inference writes it: "" for ISO 8601."""
    return "" if _ISO_FORM.fullmatch(pattern) else pattern


def make_license(name: str, title: str, url: str) -> SetLicense | None:
    """Return the licence for a name such as CC-BY-4.0, a title and a URL, or None if it has no URL."""
    spdx = name if _SPDX.fullmatch(name) else None
    if not url and spdx:
        url = f"https://spdx.org/licenses/{spdx}.html"
    if not url:
        return None
    text = title or name or url
    return SetLicense(short_name=name or text, name=text, spdx_id=spdx, website_url=url)


def join_description(title: str, description: str) -> str:
    """Return the description with the title, unless it contains the title."""
    if not title or title in description:
        return description
    return f"{title.rstrip('.')}. {description}" if description else title


def declared_choices(table: DeclaredTable, sample: FileSample, reporter: Reporter) -> FileChoices:
    """Return the declarations of a table as choices; see :func:`infer_table`."""
    inference = _DeclaredInference(table, sample, reporter)
    file = inference.infer()
    key = {"key": file.key, "merge": file.merge} if file.key and table.key else {}
    return msgspec.structs.replace(inference.choices, **key)


def infer_table(table: DeclaredTable, sample: FileSample, reporter: Reporter) -> InferredFile:
    """Infer the file of a table, with its declarations.

    Args:
        table: the table.
        sample: the beginning of its file.
        reporter: receives a warning for each declaration that the rows contradict.

    Raises:
        BadData: the file has no rows, or is not in its format.
        Cancelled: the reporter was cancelled.
    """
    return _DeclaredInference(table, _without_lines(table, sample), reporter).infer()


class _DeclaredInference:
    """Infers a file, first as if nothing was declared, then with the declarations.

    Attributes:
        choices: the declarations that the rows do not contradict.
    """

    def __init__(self, table: DeclaredTable, sample: FileSample, reporter: Reporter) -> None:
        self._table, self._sample, self._reporter = table, sample, reporter
        self.choices = FileChoices(
            separator=table.separator,
            quote=table.quote,
            encoding=table.encoding,
            header=table.header,
            unpivot=False if table.columns else None,
            time=table.time,
            merge=table.merge,
        )

    def infer(self) -> InferredFile:
        table = self._table
        file = infer_file(self._sample, self.choices, self._reporter)
        places = self._find_places(file)
        if places:
            has_types = file.kind in ("Parquet", "EsriShapefile")
            declared = {at: column for at, column in places.items() if column.type and not has_types}
            types = {at: (column.type, column.form or "") for at, column in declared.items()}
            names = {at: column.name for at, column in places.items()}
            self.choices = msgspec.structs.replace(self.choices, types=types, names=names)
            file = infer_file(self._sample, self.choices, self._reporter)
            columns = list(file.columns)
            kept = {at: kind for at, kind in types.items() if self._accept(columns, file, at, declared[at])}
            if len(kept) < len(types):
                self.choices = msgspec.structs.replace(self.choices, types=kept)
                file = infer_file(self._sample, self.choices, self._reporter)
                columns = [columns[at] if at in kept else column for at, column in enumerate(file.columns)]
            for at, column in places.items():
                columns[at] = _with_nulls(columns[at], column.nulls)
            file = msgspec.structs.replace(file, columns=tuple(columns))
        if table.key:
            file = self._with_key(file, places)
        return self._with_filter(file)

    def _find_places(self, file: InferredFile) -> dict[int, DeclaredColumn]:
        """Return the declared columns by their positions in the file, which the header decides."""
        declared = self._table.columns
        named = {name.casefold(): column for column in declared for name in (*column.titles, column.name)}
        places: dict[int, DeclaredColumn] = {}
        for at, column in enumerate(file.columns):
            if match := named.get(column.source.strip().casefold()):
                places[at] = match
        placed = {column.name for column in places.values()}
        for at, column in enumerate(declared):
            if column.name in placed:
                continue
            if len(declared) == len(file.columns) and at not in places:
                places[at] = column
            else:
                self._warn(column.name, "the file has no such column")
        return places

    def _accept(
        self, columns: list[InferredColumn], file: InferredFile, at: int, declared: DeclaredColumn
    ) -> bool:
        """Return whether the values of a column have the declared type; if not, warn."""
        column = columns[at]
        if column.type != declared.type:  # JSON has types
            is_widened = declared.type == "STRING" or (column.type, declared.type) == ("BIGINT", "DOUBLE")
            if is_widened:
                columns[at] = msgspec.structs.replace(column, type=declared.type)
                return True
            self._warn(column.name, f"declared as {declared.type}, but its values are {column.type}")
            return False
        invalid = sorted(column.invalid - declared.nulls)
        if invalid:
            self._warn(column.name, f"declared as {_kind_text(declared)}, but has '{invalid[0][:60]}'")
            return False
        if declared.form is not None and column.form != declared.form:
            values = [row[at] for _, row in file.rows]
            plain = NUMBER_FORMS[""]
            is_plain = all(value is None or plain.fullmatch(value.strip()) for value in values)
            if declared.form or column.type not in ("BIGINT", "DOUBLE") or not is_plain:
                self._warn(column.name, f"declared as {_kind_text(declared)}, but written {column.form}")
                return False
        form = column.form if declared.form is None else declared.form
        columns[at] = msgspec.structs.replace(
            column, form=form, evidence="", invalid=column.invalid - declared.nulls
        )
        return True

    def _with_key(self, file: InferredFile, places: Mapping[int, DeclaredColumn]) -> InferredFile:
        """Return the file with the declared key, or with the inferred one if rows contradict it."""
        table = self._table
        names = {column.name.casefold(): file.columns[at].name for at, column in places.items()}
        names = {column.source.casefold(): column.name for column in file.columns} | names
        missing = [name for name in table.key if name.casefold() not in names]
        key = tuple(names[name.casefold()] for name in table.key if name.casefold() in names)
        if missing:
            self._warn(missing[0], "declared as a part of the primary key, but the file has no such column")
            return file
        keyed = self._infer_with_key(key)
        nulls = [name for name in key if (column := keyed.column(name)) is not None and column.nulls]
        if nulls:
            self._warn(", ".join(nulls), "declared as a part of the primary key, but has nulls: left out")
            keyed = self._infer_with_key(key := tuple(name for name in key if name not in nulls))
        if key and not keyed.reason.startswith("NOT"):
            return msgspec.structs.replace(
                file, key=key, merge=keyed.merge, reason=f"declared in {table.origin}"
            )
        if key:
            problem = keyed.reason.partition(": ")[2]
            self._warn(", ".join(key), f"declared as the primary key, but {problem}")
        return file

    def _infer_with_key(self, key: tuple[str, ...]) -> InferredFile:
        choices = msgspec.structs.replace(self.choices, key=key)
        return infer_file(self._sample, choices, self._reporter)

    def _with_filter(self, file: InferredFile) -> InferredFile:
        """Return the file with a filter that leaves out the declared lines."""
        table = self._table
        if file.kind != "Csv" or not (table.skip or table.comment):
            return file
        words = list(file.filters[-1]) if file.is_normalized else ["csv"]
        if not file.is_normalized:
            words += ["--encoding", file.encoding] if file.encoding else []
            words += ["--separator", file.separator] if file.separator != "," else []
            words += ["--quote", file.quote] if file.quote != '"' else []
            words += [] if file.header else ["--header-rows", "0"]
        if table.comment and "--comment" not in words:
            words += ["--comment", table.comment]
        if table.skip and "--skip" in words:
            at = words.index("--skip") + 1
            words[at] = str(int(words[at]) + table.skip)
        elif table.skip:
            words += ["--skip", str(table.skip)]
        evidence = file.evidence or (f"lines to leave out are declared in {table.origin}",)
        filters = (*(file.filters[:-1] if file.is_normalized else file.filters), tuple(words))
        return msgspec.structs.replace(file, filters=filters, evidence=evidence)

    def _warn(self, column: str, text: str) -> None:
        self._reporter.warn(f"{self._table.label}, column '{column}': {text}", NOT_AS_DECLARED)


def _kind_text(column: DeclaredColumn) -> str:
    return f"{column.type} written {column.form}" if column.form else column.type


def _with_nulls(column: InferredColumn, nulls: frozenset[str]) -> InferredColumn:
    """Return a column with the declared texts for null. The empty text is always null."""
    return msgspec.structs.replace(column, null_texts=column.null_texts | (nulls - {""}))


def _without_lines(table: DeclaredTable, sample: FileSample) -> FileSample:
    """Return a sample of CSV without the lines above the header and the comments."""
    if sample.kind != "Csv" or not (table.skip or table.comment):
        return sample
    lines: Sequence[bytes] = sample.data.split(b"\n")[table.skip :]
    if table.comment:
        lines = [line for line in lines if not line.lstrip().startswith(table.comment.encode())]
    return msgspec.structs.replace(sample, data=b"\n".join(lines))
