"""Data Packages (Frictionless, versions 1 and 2): ``datapackage.json`` with the tables of a folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData, Unsupported
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
from odf_engine.ingest.inference.file_conversion import FORMATS
from odf_engine.ingest.inference.file_sample import split_extensions
from odf_engine.metadata.model import SetLicense

FILE_NAME: Final = "datapackage.json"
_TYPES: Final = {
    "integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN", "date": "DATE", "datetime": "TIMESTAMP",
    "year": "BIGINT", "string": "STRING", "time": "STRING", "yearmonth": "STRING", "duration": "STRING",
    "object": "STRING", "array": "STRING", "list": "STRING", "geopoint": "STRING", "geojson": "STRING",
    "any": "",
}  # fmt: skip
_DIRECTIVES: Final = {
    "%Y": "yyyy", "%y": "yy", "%m": "MM", "%d": "dd", "%H": "HH", "%I": "hh", "%M": "mm", "%S": "ss",
    "%f": "SSSSSS", "%p": "a", "%b": "MMM", "%B": "MMMM", "%z": "XX", "%%": "%",
}  # fmt: skip
"""Directives of ``strptime`` as Spark patterns."""
_Part = TypeVar("_Part")


class _License(msgspec.Struct):
    name: str = ""
    title: str = ""
    path: str = ""


class _Dialect(msgspec.Struct, rename="camel"):
    delimiter: str | None = None
    quote_char: str | None = None
    header: bool | None = None
    header_rows: list[int] | None = None
    comment_char: str | None = None
    csv: _Dialect | None = None


class _Field(msgspec.Struct, rename="camel"):
    name: str
    type: str = ""
    format: str = "default"
    decimal_char: str = "."
    group_char: str = ""
    missing_values: list[Any] | None = None


class _Schema(msgspec.Struct, rename="camel"):
    fields: list[_Field] = []
    primary_key: str | list[str] = []
    missing_values: list[Any] = []


class _Resource(msgspec.Struct, rename="camel"):
    name: str = ""
    path: str | list[str] | None = None
    type: str = ""
    profile: str = ""
    title: str | None = None
    description: str | None = None
    encoding: str | None = None
    dialect: _Dialect | str | None = None
    schema: _Schema | str | None = None
    keywords: list[str] = []
    licenses: list[_License] = []


class _Package(msgspec.Struct, rename="camel"):
    resources: list[_Resource]
    title: str | None = None
    description: str | None = None
    homepage: str | None = None
    keywords: list[str] = []
    licenses: list[_License] = []


def read_package(
    document: MetadataFile, data: bytes, read: ReadDocument, reporter: Reporter
) -> list[DeclaredTable]:
    """Return the tables of a Data Package. Resources that are not tables are left out with a warning.

    Args:
        document: the place of the descriptor.
        data: the descriptor.
        read: reads a schema or dialect in a file of its own.
        reporter: receives the warnings.

    Raises:
        BadData: the descriptor is invalid, or a path leaves its folder.
        Unsupported: a resource has several files, or a URL of another scheme.
    """
    package = document.decode(data, _Package)
    tables: list[DeclaredTable] = []
    for number, resource in enumerate(package.resources):
        reader = _ResourceReader(document, package, resource, f"resources[{number}]", read)
        if problem := reader.problem:
            reporter.warn(f"{document.place(f'resources[{number}]')}: left out: {problem}", "left-out")
        else:
            tables.append(reader.table())
    return tables


class _ResourceReader:
    """Reads a resource.

    Args:
        document: the place of the descriptor.
        package: the descriptor.
        resource: the resource.
        path: the property path of the resource.
        read: reads another document.
    """

    def __init__(
        self, document: MetadataFile, package: _Package, resource: _Resource, path: str, read: ReadDocument
    ) -> None:
        self._document, self._package, self._resource = document, package, resource
        self._path, self._read = path, read

    @property
    def problem(self) -> str:
        """Why the resource is not a table, or ""."""
        resource = self._resource
        if resource.path is None:
            return "it has no path: data in the descriptor are not supported"
        is_table = resource.type == "table" or resource.profile == "tabular-data-resource"
        path = resource.path if isinstance(resource.path, str) else ""
        if path and not is_table and resource.schema is None and split_extensions(path)[0] not in FORMATS:
            return f"'{path}' is not a table"
        return ""

    def table(self) -> DeclaredTable:
        """Return the table."""
        resource, package, path = self._resource, self._package, self._file_path()
        location, entry = self._document.resolve(path, self._place("path"))
        schema = self._part(resource.schema, _Schema, "schema")
        dialect = self._part(resource.dialect, _Dialect, "dialect")
        dialect = dialect and (dialect.csv or dialect)
        if dialect is not None and len(dialect.header_rows or ()) > 1:
            raise Unsupported("several header rows", where=self._place("dialect.headerRows"),
                              hint="declare the names of the columns in schema.fields")  # fmt: skip
        first = ((dialect and dialect.header_rows) or [1])[0]
        header = dialect.header if dialect else None
        about = [join_description(part.title or "", part.description or "") for part in (resource, package)]
        key = schema.primary_key if schema else []
        return DeclaredTable(
            location=location,
            name=resource.name or path,
            entry=entry,
            origin=self._document.name,
            separator=self._mark(dialect and dialect.delimiter, "delimiter", 10) or None,
            quote=self._mark(dialect and dialect.quote_char, "quoteChar"),
            encoding=check_encoding(resource.encoding, self._place("encoding")),
            header=True if header is None and schema and schema.fields else header,
            skip=max(first - 1, 0),
            comment=(dialect.comment_char or "") if dialect else "",
            columns=tuple(self._columns(schema)) if schema else (),
            key=(key,) if isinstance(key, str) else tuple(key),
            description=next(filter(None, about), ""),
            keywords=tuple(resource.keywords or package.keywords),
            license=self._license(),
        )

    def _place(self, path: str) -> str:
        return self._document.place(f"{self._path}.{path}")

    def _mark(self, mark: str | None, name: str, max_length: int = 1) -> str | None:
        return check_mark(mark, self._place(f"dialect.{name}"), max_length=max_length)

    def _file_path(self) -> str:
        """Return the path of the only file."""
        path = self._resource.path
        if isinstance(path, list):
            if len(path) != 1:
                raise Unsupported(
                    f"a table of {len(path)} files",
                    where=self._place("path"),
                    hint="join the files, or write a manifest with fetch.kind FilesGlob",
                )
            path = path[0]
        assert path is not None
        return path

    def _part(self, part: _Part | str | None, type_: type[_Part], name: str) -> _Part | None:
        """Return a part of the resource, which may be in a file of its own."""
        if not isinstance(part, str):
            return part
        location, entry = self._document.resolve(part, self._place(name))
        other = MetadataFile(entry or location, location if entry else "")
        return other.decode(self._read(location, entry), type_)

    def _columns(self, schema: _Schema) -> Sequence[DeclaredColumn]:
        columns: list[DeclaredColumn] = []
        for number, field in enumerate(schema.fields):
            where = self._place(f"schema.fields[{number}].type")
            if field.type and field.type not in _TYPES:
                raise BadData(f'unknown type "{field.type}"', where=where,
                              hint=f"use one of {', '.join(_TYPES)}")  # fmt: skip
            missing = schema.missing_values if field.missing_values is None else field.missing_values
            nulls = (text if isinstance(text, str) else text.get("value") for text in missing
                     if isinstance(text, str | dict))  # fmt: skip
            columns.append(DeclaredColumn(
                field.name, (), _TYPES.get(field.type, ""), _value_form(field),
                frozenset(text for text in nulls if isinstance(text, str)),
            ))  # fmt: skip
        return columns

    def _license(self) -> SetLicense | None:
        licenses = self._resource.licenses or self._package.licenses
        if not licenses:
            return None
        first = licenses[0]
        url = first.path if re.match(r"https?://", first.path) else ""
        return make_license(first.name, first.title, url or (self._package.homepage or ""))


def _value_form(field: _Field) -> str | None:
    """Return how values are written, or None if the format is inferred."""
    if field.type in ("integer", "number"):
        return number_form(field.decimal_char, field.group_char)
    if field.type not in ("date", "datetime") or field.format == "default":
        return ""
    form = re.sub(r"%.|[A-Za-z]+", _pattern_part, field.format.removeprefix("fmt:"))
    return None if field.format == "any" or "%" in form else time_form(form)


def _pattern_part(match: re.Match[str]) -> str:
    """Return a directive, or a literal text, as a part of a Spark pattern."""
    return _DIRECTIVES.get(match[0], match[0] if match[0].startswith("%") else f"'{match[0]}'")
