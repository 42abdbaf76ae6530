"""CSV on the Web (W3C): metadata of one CSV file, or of the tables of a group."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from odf_engine.errors import BadData
from odf_engine.ingest.inference.declared_table import (
    DeclaredColumn,
    DeclaredTable,
    MetadataFile,
    ReadDocument,
    check_encoding,
    check_mark,
    join_description,
    make_license,
    number_form,
    time_form,
)
from odf_engine.metadata.model import SetLicense

SUFFIX: Final = "-metadata.json"
_CONTEXT: Final = "http://www.w3.org/ns/csvw"
_NUMBERS: Final = {
    **dict.fromkeys(("number", "decimal", "double", "float"), "DOUBLE"),
    **dict.fromkeys(
        ("integer", "long", "int", "short", "byte", "nonNegativeInteger", "positiveInteger", "unsignedLong",
         "unsignedInt", "unsignedShort", "unsignedByte", "nonPositiveInteger", "negativeInteger"),
        "BIGINT",
    ),
}  # fmt: skip
_TIMES: Final = {
    "date": "DATE", "dateTime": "TIMESTAMP", "datetime": "TIMESTAMP", "dateTimeStamp": "TIMESTAMP",
}  # fmt: skip
_TEXTS: Final = (
    "string", "normalizedString", "token", "language", "Name", "NMTOKEN", "anyURI", "QName", "xml", "html",
    "json", "base64Binary", "binary", "hexBinary", "time", "duration", "dayTimeDuration",
    "yearMonthDuration", "gDay", "gMonth", "gMonthDay", "gYear", "gYearMonth",
)  # fmt: skip
_TYPES: Final = {
    **_NUMBERS, **_TIMES, **dict.fromkeys(_TEXTS, "STRING"), "boolean": "BOOLEAN",
    "any": "", "anyAtomicType": "",
}  # fmt: skip


class _Format(msgspec.Struct, rename="camel"):
    pattern: str = ""
    decimal_char: str = "."
    group_char: str = ""


class _Datatype(msgspec.Struct):
    base: str = "string"
    format: str | _Format = ""


class _Inherited(msgspec.Struct, rename="camel"):
    """Properties that a column has from its schema, table or group."""

    datatype: str | _Datatype | None = None
    null: str | list[str] | None = None


class _Column(_Inherited, rename="camel"):
    name: str = ""
    titles: Any = None
    virtual: bool = False


class _Schema(_Inherited, rename="camel"):
    columns: list[_Column] = []
    primary_key: str | list[str] = []


class _Dialect(msgspec.Struct, rename="camel"):
    delimiter: str | None = None
    quote_char: str | None = None
    encoding: str | None = None
    header: bool | None = None
    header_row_count: int | None = None
    skip_rows: int = 0
    comment_prefix: str | None = None


class _Table(_Inherited, rename="camel"):
    url: str = ""
    table_schema: _Schema | str | None = None
    dialect: _Dialect | str | None = None
    suppress_output: bool = False
    title: Any = msgspec.field(name="dc:title", default=None)
    description: Any = msgspec.field(name="dc:description", default=None)
    keywords: Any = msgspec.field(name="dcat:keyword", default=None)
    license: Any = msgspec.field(name="dc:license", default=None)


class _Document(_Table, rename="camel"):
    context: Any = msgspec.field(name="@context", default=None)
    tables: list[_Table] | None = None


def is_csvw(document: MetadataFile, data: bytes) -> bool:
    """Return whether a JSON document is CSVW metadata.

    Raises:
        BadData: it is not JSON.
    """
    value = document.decode(data, object)
    context = value.get("@context") if isinstance(value, dict) else None
    return context == _CONTEXT or (isinstance(context, list) and _CONTEXT in context)


def read_csvw(document: MetadataFile, data: bytes, read: ReadDocument) -> list[DeclaredTable]:
    """Return the tables of CSVW metadata.

    Args:
        document: the place of the metadata.
        data: the metadata.
        read: reads a schema or dialect in a file of its own.

    Raises:
        BadData: the metadata are invalid, or a URL leaves their folder.
        Unsupported: a URL has another scheme.
    """
    group = document.decode(data, _Document)
    if group.tables is None:
        return [_TableReader(document, group, group, "", read).table()]
    return [
        _TableReader(document, group, table, f"tables[{number}].", read).table()
        for number, table in enumerate(group.tables)
    ]


class _TableReader:
    """Reads a table.

    Args:
        document: the place of the metadata.
        group: the metadata, whose properties hold for all tables.
        table: the table.
        path: the start of the property paths of the table.
        read: reads another document.
    """

    def __init__(
        self, document: MetadataFile, group: _Document, table: _Table, path: str, read: ReadDocument
    ) -> None:
        self._document, self._group, self._table, self._path = document, group, table, path
        self._read = read

    def table(self) -> DeclaredTable:
        """Return the table."""
        table, group = self._table, self._group
        if not table.url:
            raise BadData("the table has no url", where=self._place("url"))
        location, entry = self._document.resolve(table.url, self._place("url"), is_encoded=True)
        schema = self._schema()
        dialect = self._dialect()
        rows = 1 if dialect.header_row_count is None else dialect.header_row_count
        header = dialect.header if dialect.header_row_count is None else rows > 0
        about = [join_description(_text(part.title), _text(part.description)) for part in (table, group)]
        key = schema.primary_key
        return DeclaredTable(
            location=location,
            name=entry or location,
            entry=entry,
            origin=self._document.name,
            separator=check_mark(dialect.delimiter, self._place("dialect.delimiter"), max_length=10) or None,
            quote=check_mark(dialect.quote_char, self._place("dialect.quoteChar")),
            encoding=check_encoding(dialect.encoding, self._place("dialect.encoding")),
            header=True if header is None and schema.columns else header,
            # Names are declared: of several header rows the last one has the shape of the rows.
            skip=max(dialect.skip_rows, 0) + max(rows - 1, 0),
            comment=dialect.comment_prefix or "",
            columns=tuple(self._columns(schema)),
            key=(key,) if isinstance(key, str) else tuple(key),
            description=next(filter(None, about), ""),
            keywords=tuple(_texts(table.keywords) or _texts(group.keywords)),
            license=_license(table.license) or _license(group.license),
        )

    def _place(self, path: str) -> str:
        return self._document.place(f"{self._path}{path}")

    def _schema(self) -> _Schema:
        schema = self._table.table_schema or self._group.table_schema
        if not isinstance(schema, str):
            return schema or _Schema()
        location, entry = self._document.resolve(schema, self._place("tableSchema"), is_encoded=True)
        other = MetadataFile(entry or location, location if entry else "")
        return other.decode(self._read(location, entry), _Schema)

    def _dialect(self) -> _Dialect:
        dialect = self._table.dialect or self._group.dialect
        if not isinstance(dialect, str):
            return dialect or _Dialect()
        location, entry = self._document.resolve(dialect, self._place("dialect"), is_encoded=True)
        other = MetadataFile(entry or location, location if entry else "")
        return other.decode(self._read(location, entry), _Dialect)

    def _columns(self, schema: _Schema) -> Iterator[DeclaredColumn]:
        for number, column in enumerate(schema.columns):
            if column.virtual:
                continue
            levels: Sequence[_Inherited] = (column, schema, self._table, self._group)
            datatype = next((level.datatype for level in levels if level.datatype is not None), None)
            null = next((level.null for level in levels if level.null is not None), "")
            titles = tuple(_texts(column.titles))
            if not column.name and not titles:
                continue  # the column has the name in the header
            kind = datatype.base if isinstance(datatype, _Datatype) else datatype or "any"
            if kind not in _TYPES:
                where = self._place(f"tableSchema.columns[{number}].datatype")
                raise BadData(f'unknown datatype "{kind}"', where=where)
            form = datatype.format if isinstance(datatype, _Datatype) else ""
            nulls = frozenset([null] if isinstance(null, str) else null)
            yield DeclaredColumn(
                column.name or titles[0], titles, _TYPES[kind], _value_form(kind, form), nulls
            )


def _value_form(kind: str, form: str | _Format) -> str | None:
    """Return how values are written, or None if the format is inferred."""
    if kind in _NUMBERS:
        if isinstance(form, str):
            return number_form(".", "," if "," in form else "")
        return number_form(form.decimal_char, form.group_char or ("," if "," in form.pattern else ""))
    pattern = form if isinstance(form, str) else form.pattern
    if kind in _TIMES:
        return time_form(re.sub(r"(?<=[yMd])T(?=H)", "'T'", pattern))
    return None if pattern else ""


def _text(value: Any) -> str:
    return next(iter(_texts(value)), "")


def _texts(value: Any) -> list[str]:
    """Return the texts of a natural language property, or of an annotation."""
    if isinstance(value, str):
        return [value] if value else []
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    if isinstance(value, Mapping):
        inner = value.get("@value", value.get("@id"))
        return _texts(list(value.values()) if inner is None else inner)
    return []


def _license(value: Any) -> SetLicense | None:
    text = _text(value)
    is_url = re.match(r"https?://", text)
    return make_license("" if is_url else text, "", text if is_url else "") if text else None
