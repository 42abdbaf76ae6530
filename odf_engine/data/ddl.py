"""Parses and writes schemas as SQL DDL."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final

from odf_engine.base.arrow import pa, types
from odf_engine.errors import InvalidSchema, has_surrogates

_DECLARED: Final = b"declared"
"""Metadata key of a field with its declared type, if that has a maximum length."""

_TOKEN: Final = r"""\s*(?:
        (?P<quoted>`(?:[^`]|``)+`|"(?:[^"]|"")+")
      | (?P<text>'(?:[^']|'')*')
      | (?P<mark>[<>(),:\[\]])
      | (?P<word>[^\s<>(),:\[\]`"']+)
    )"""  # compiled when first used: most commands parse no DDL
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_MAX_DEPTH: Final = 32

_SIMPLE: Final = {
    "BOOLEAN": "bool",
    "BOOL": "bool",
    "TINYINT": "int8",
    "SMALLINT": "int16",
    "INT": "int32",
    "INTEGER": "int32",
    "SIGNED": "int32",
    "INT32": "int32",
    "UNSIGNED": "uint32",
    "UINT32": "uint32",
    "BIGINT": "int64",
    "FLOAT": "float",
    "FLOAT32": "float",
    "REAL": "float",
    "DOUBLE": "double",
    "UUID": "uuid",
    "STRING": "string",
    "TEXT": "string",
    "TINYTEXT": "string",
    "MEDIUMTEXT": "string",
    "LONGTEXT": "string",
    "DATE": "date32",
}
"""Names of Arrow types."""
_DECIMALS: Final = ("DECIMAL", "NUMERIC", "DEC")
_LIMITED: Final = {
    "VARCHAR": "string",
    "CHAR": "string",
    "FIXEDSTRING": "string",
    "VARBINARY": "binary",
    "BYTEA": "binary",
}
"""Types whose values may have a maximum length."""
_WORDS: Final = (*_SIMPLE, *_DECIMALS, "VARCHAR", "CHAR", "BINARY", "TIMESTAMP", "TIME", "ARRAY", "STRUCT")
_OTHER_NAMES: Final = {
    "LONG": "BIGINT", "INT64": "BIGINT", "BIGSERIAL": "BIGINT", "UINT64": "BIGINT UNSIGNED",
    "SHORT": "SMALLINT", "INT16": "SMALLINT", "INT2": "SMALLINT", "UINT16": "SMALLINT UNSIGNED",
    "BYTE": "TINYINT", "UINT8": "TINYINT UNSIGNED", "INT4": "INT", "MEDIUMINT": "INT", "SERIAL": "INT",
    "FLOAT4": "FLOAT", "FLOAT8": "DOUBLE", "FLOAT64": "DOUBLE", "NUMBER": "DECIMAL", "MONEY": "DECIMAL",
    "DATETIME": "TIMESTAMP", "DATETIME2": "TIMESTAMP", "TIMESTAMPTZ": "TIMESTAMP",
    "TIMESTAMP_NTZ": "TIMESTAMP", "TIMESTAMP_LTZ": "TIMESTAMP", "DATE32": "DATE",
    "NVARCHAR": "STRING", "VARCHAR2": "STRING", "NCHAR": "STRING", "CLOB": "STRING", "UTF8": "STRING",
    "STR": "STRING", "JSON": "STRING", "ENUM": "STRING", "BLOB": "BINARY", "BYTES": "BINARY",
    "LIST": "ARRAY", "ROW": "STRUCT", "OBJECT": "STRUCT", "BIT": "BOOLEAN",
}  # fmt: skip
"""Types of other systems, and the types to declare instead."""

_NAMES: Final = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "uint8": "TINYINT UNSIGNED",
    "uint16": "SMALLINT UNSIGNED",
    "uint32": "INT UNSIGNED",
    "uint64": "BIGINT UNSIGNED",
    "float": "FLOAT",
    "double": "DOUBLE",
    "fixed_size_binary[16]": "UUID",
    "string": "STRING",
    "large_string": "STRING",
    "string_view": "STRING",
    "binary": "BINARY",
    "large_binary": "BINARY",
    "binary_view": "BINARY",
    "date32[day]": "DATE",
    "date64[ms]": "DATE",
}
"""DDL of Arrow types, by their text."""
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def timestamp_type() -> pa.DataType:
    """Return the type of timestamps by default: milliseconds in UTC."""
    return pa.timestamp("ms", "UTC")


def uuid_type() -> pa.DataType:
    """Return the type of UUIDs in slices."""
    return pa.binary(16)


def parse_ddl(entries: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema that DDL entries define. An entry is one column, or several with commas.

    Raises:
        InvalidSchema: an entry is malformed, has an unknown type, or repeats a column.
    """
    fields: list[pa.Field] = []
    seen: dict[str, str] = {}
    for number, entry in enumerate(entries, 1):
        for field in _Parser(entry, number).columns():
            if field.name.casefold() in seen:
                raise InvalidSchema(f"column '{field.name}' is defined twice", where=_where(entry, number))
            seen[field.name.casefold()] = field.name
            fields.append(field)
    return pa.schema(fields)


def parse_comments(entries: Sequence[str]) -> dict[str, str]:
    """Return the comments of the columns that DDL entries define, by name; empty comments are left out.

    Raises:
        InvalidSchema: an entry is malformed.
    """
    comments: dict[str, str] = {}
    for number, entry in enumerate(entries, 1):
        parser = _Parser(entry, number)
        parser.columns()
        comments |= parser.comments
    return {name: text for name, text in comments.items() if text}


def _where(entry: str, number: int) -> str:
    return f"schema entry {number} '{entry if len(entry) <= 100 else entry[:99] + '…'}'"


def _limited_field(name: str, data_type: pa.DataType, limited: str, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, data_type, nullable, metadata={_DECLARED: limited} if limited else None)


def _list_of(item: pa.DataType, limited: str) -> pa.DataType:
    return pa.list_(_limited_field("item", item, limited))


def max_length(field: pa.Field) -> int | None:
    """Return the maximum length that DDL declares for a column, struct field or list item.

    It is in characters of a text, or in bytes of a binary value. Slices do not store it.
    """
    declared = (field.metadata or {}).get(_DECLARED)
    return None if declared is None else int(declared.partition(b"(")[2].rstrip(b")"))


class _Parser:
    """Recursive descent parser of one entry.

    Attributes:
        comments: the comments of the columns that were parsed, by name.
    """

    def __init__(self, entry: str, number: int) -> None:
        self.comments: dict[str, str] = {}
        self._where = _where(entry, number)
        self._column = ""
        if has_surrogates(entry):
            raise self._error("not UTF-8 text")
        self._tokens: list[tuple[str, str]] = []
        at, end, pattern = 0, len(entry.rstrip()), re.compile(_TOKEN, re.VERBOSE)
        while at < end:
            match = pattern.match(entry, at)
            if match is None:
                raise self._error(f"invalid syntax: '{entry[at:].strip()}'", "check the quotes")
            self._tokens.append((match.lastgroup or "", match[0].strip()))
            at = match.end()
        self._tokens.reverse()

    def columns(self) -> list[pa.Field]:
        fields = [self._top_column()]
        while self._accept(","):
            if self._tokens:
                fields.append(self._top_column())
        if self._tokens:
            raise self._error(f"unexpected '{self._tokens[-1][1]}'", "separate columns with commas")
        return fields

    def _top_column(self) -> pa.Field:
        self._column = ""
        name = self._column = self._name()
        return self._rest_of_column(name, 0)

    def _rest_of_column(self, name: str, depth: int) -> pa.Field:
        data_type, limited = self._type(depth)
        nullable = True
        while self._tokens and self._peek() not in (",", ">"):
            if self._accept("NOT"):
                self._expect("NULL")
                nullable = False
            elif self._accept("COMMENT"):
                group, text = self._tokens.pop() if self._tokens else ("", "")
                if group not in ("text", "quoted"):
                    raise self._error("expected a quoted text after COMMENT")
                if not depth:
                    self.comments[name] = text[1:-1].replace(text[0] * 2, text[0]).strip()
            elif not self._accept("NULL"):
                raise self._error(f"unexpected '{self._tokens[-1][1]}' after the type")
        return _limited_field(name, data_type, limited, nullable=nullable)

    def _name(self) -> str:
        if not self._tokens:
            raise self._error("missing column name")
        group, text = self._tokens.pop()
        if group == "quoted":
            return text[1:-1].replace(text[0] * 2, text[0])
        if group != "word":
            raise self._error(
                f"invalid column name '{text}'", "quote names with special characters with backticks"
            )
        return text

    def _type(self, depth: int) -> tuple[pa.DataType, str]:
        """Return a type, and its name if that has a maximum length; else an empty text."""
        self._check_depth(depth)
        if not self._tokens:
            raise self._error("missing type", "add a type, such as 'name STRING'")
        group, text = self._tokens.pop()
        if group != "word":
            raise self._error(f"invalid type {text}")
        name, limited = text.upper(), ""
        if name in _LIMITED:
            data_type = pa.type_for_alias(_LIMITED[name])
            limited = "".join(f"{name}({length})" for length in self._numbers(1))
        else:
            data_type = self._named_type(name, depth)
        while self._accept("["):
            self._expect("]")
            depth += 1
            self._check_depth(depth)
            data_type, limited = _list_of(data_type, limited), ""
        return data_type, limited

    def _check_depth(self, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise self._error("the type is nested too deeply")

    def _named_type(self, name: str, depth: int) -> pa.DataType:
        if name == "ARRAY":
            self._expect("<")
            item = self._type(depth + 1)
            self._expect(">")
            return _list_of(*item)
        if name == "STRUCT":
            return self._struct(depth)
        if name in _SIMPLE:
            return self._simple(name)
        if name in _DECIMALS:
            return self._decimal()
        if name == "BINARY":
            return self._binary()
        if name in ("TIMESTAMP", "TIME"):
            return self._time(name)
        from difflib import get_close_matches  # deferred: only errors need it

        close = [_OTHER_NAMES[name]] if name in _OTHER_NAMES else get_close_matches(name, _WORDS, 1)
        raise self._error(
            f"unknown type {name}", f"did you mean {close[0]}?" if close else f"types: {', '.join(_WORDS)}"
        )

    def _simple(self, name: str) -> pa.DataType:
        alias = _SIMPLE[name]
        if alias == "uuid":
            return uuid_type()
        if name == "DOUBLE":
            self._accept("PRECISION")
        elif alias.startswith("int") and self._accept("UNSIGNED"):
            alias = f"u{alias}"
        return pa.type_for_alias(alias)

    def _struct(self, depth: int) -> pa.DataType:
        self._expect("<")
        fields: list[pa.Field] = []
        while not self._accept(">"):
            if fields:
                self._expect(",")
            name = self._name()
            self._accept(":")
            if any(field.name.casefold() == name.casefold() for field in fields):
                raise self._error(f"member '{name}' is defined twice")
            fields.append(self._rest_of_column(name, depth + 1))
        if not fields:
            raise self._error("empty STRUCT")
        return pa.struct(fields)

    def _decimal(self) -> pa.DataType:
        numbers = self._numbers(2)
        precision, scale = (*numbers, 0)[:2] if numbers else (10, 0)
        if not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise self._error(
                f"invalid type DECIMAL({precision},{scale})",
                "use a precision from 1 to 38 and a scale from 0 to the precision",
            )
        return pa.decimal128(precision, scale)

    def _binary(self) -> pa.DataType:
        numbers = self._numbers(1)
        if not numbers:
            return pa.binary()
        if not 1 <= numbers[0] <= 1 << 20:
            raise self._error(f"invalid type BINARY({numbers[0]})", "omit the length")
        return pa.binary(numbers[0])

    def _time(self, name: str) -> pa.DataType:
        # Times have microseconds by default, timestamps milliseconds.
        digits = (*self._numbers(1), 6 if name == "TIME" else 3)[0]
        if digits > 9:
            raise self._error(f"invalid type {name}({digits})", "use a precision from 0 to 9")
        unit = "ms" if digits <= 3 else "us" if digits <= 6 else "ns"
        if name == "TIMESTAMP":
            # All timestamps are in UTC, whatever clause is written.
            if self._accept("WITH") or self._accept("WITHOUT"):
                for word in ("TIME", "ZONE"):
                    self._expect(word)
            return pa.timestamp(unit, "UTC")
        return pa.time32(unit) if unit == "ms" else pa.time64(unit)

    def _numbers(self, max_numbers: int) -> list[int]:
        if not self._accept("("):
            return []
        numbers: list[int] = []
        while not numbers or self._accept(","):
            group, text = self._tokens.pop() if self._tokens else ("", "")
            if group != "word" or not re.fullmatch(r"[0-9]{1,9}", text):
                raise self._error(f"expected a number, found '{text}'")
            numbers.append(int(text))
        self._expect(")")
        if len(numbers) > max_numbers:
            raise self._error("too many numbers in parentheses")
        return numbers

    def _peek(self) -> str:
        """Return the next word or mark in upper case, or "" for quoted words and at the end."""
        if not self._tokens or self._tokens[-1][0] not in ("word", "mark"):
            return ""
        return self._tokens[-1][1].upper()

    def _accept(self, text: str) -> bool:
        if self._peek() != text:
            return False
        self._tokens.pop()
        return True

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            token = f"'{self._tokens[-1][1]}'" if self._tokens else "the end"
            raise self._error(f"expected '{text}', found {token}")

    def _error(self, message: str, hint: str | None = None) -> InvalidSchema:
        column = f"column '{self._column}': " if self._column else ""
        return InvalidSchema(column + message, hint=hint, where=self._where)


def to_ddl(schema: pa.Schema, comments: Mapping[str, str] | None = None) -> list[str]:
    """Return one definition for each column; the inverse of :func:`parse_ddl`.

    Types without a DDL name are written as Arrow prints them.

    Args:
        schema: the columns.
        comments: of columns, by name.
    """
    known = comments or {}
    return [_column_ddl(field, " ") + _comment(known.get(field.name)) for field in schema]


def _comment(text: str | None) -> str:
    return "" if text is None else " COMMENT '" + text.replace("'", "''") + "'"


def _column_ddl(field: pa.Field, separator: str) -> str:
    name = field.name
    if not _PLAIN_NAME.fullmatch(name):
        name = "`" + name.replace("`", "``") + "`"
    return f"{name}{separator}{field_type_ddl(field)}{'' if field.nullable else ' NOT NULL'}"


def field_type_ddl(field: pa.Field) -> str:
    """Return the DDL of the type of a column, struct field or list item, with its maximum length."""
    declared = (field.metadata or {}).get(_DECLARED)
    return type_ddl(field.type) if declared is None else declared.decode()


def type_ddl(data_type: pa.DataType) -> str:
    """Return the DDL of a type."""
    if isinstance(data_type, pa.BaseExtensionType):
        return type_ddl(data_type.storage_type)
    text = str(data_type)
    if text in _NAMES:
        return _NAMES[text]
    return next((write(data_type) for test, write in _writers() if test(data_type)), text.upper())


@cache
def _writers() -> list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], str]]]:
    return [
        (types.is_fixed_size_binary, lambda data_type: f"BINARY({data_type.byte_width})"),
        (types.is_decimal, lambda data_type: f"DECIMAL({data_type.precision},{data_type.scale})"),
        (types.is_timestamp, lambda data_type: f"TIMESTAMP({_DIGITS[data_type.unit]})"),
        (types.is_time, lambda data_type: f"TIME({_DIGITS[data_type.unit]})"),
        (types.is_dictionary, lambda data_type: type_ddl(data_type.value_type)),
        (
            types.is_struct,
            lambda data_type: f"STRUCT<{', '.join(_column_ddl(field, ': ') for field in data_type)}>",
        ),
        (
            lambda data_type: (
                types.is_list(data_type)
                or types.is_large_list(data_type)
                or types.is_fixed_size_list(data_type)
            ),
            lambda data_type: f"ARRAY<{field_type_ddl(data_type.value_field)}>",
        ),
    ]
