"""Text files for Spark: encodings, UTF-8 checks, record boundaries."""

from __future__ import annotations

import codecs
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec

from odf_engine.base.arrow import pa
from odf_engine.base.progress import Reporter
from odf_engine.data.column_names import LOOKALIKE_HINT, appearance, lookalike_problem
from odf_engine.errors import BadData, InvalidManifest
from odf_engine.spark.csv_records import LINE_END, CsvRecords, Dialect, NulScan, QuoteScan, separate_chunk
from odf_engine.spark.errors import RejectedRow
from odf_engine.spark.json_objects import parse_object

_PREFIX_BYTES: Final = 4096
_CHUNK_BYTES: Final = 1 << 20
_BYTE_ORDER_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # has the same prefix as the mark of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_UNICODE: Final = ("utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")


def detect_encoding(path: Path, declared: str | None) -> str | None:
    """Return the Python name of the encoding to read a file with, or None for UTF-8.

    The declared encoding applies. A byte order mark determines the encoding if none is declared, or selects
    the variant of the declared Unicode encoding. UTF-16 without a mark is detected by the zero bytes of ASCII
    characters.

    Raises:
        InvalidManifest: an unknown encoding.
    """
    with path.open("rb") as file:
        prefix = file.read(_PREFIX_BYTES)
    marked = next((name for mark, name in _BYTE_ORDER_MARKS if prefix.startswith(mark)), None)
    if declared is None:
        return marked
    name = find_codec(declared).name
    if marked is not None and name in _UNICODE and name[:5] == marked[:5]:
        return marked
    if name == "utf-16":
        return "utf-16-le" if prefix[1::2].count(0) > prefix[::2].count(0) else "utf-16-be"
    if name == "utf-32":
        return (
            "utf-32-le" if prefix[1::4].count(0) == len(prefix[1::4]) and prefix[:1] != b"\0" else "utf-32-be"
        )
    return None if name == "utf-8" else name


def find_codec(encoding: str) -> codecs.CodecInfo:
    """Return the codec of an encoding.

    Raises:
        InvalidManifest: an unknown encoding, or a codec that is not for text.
    """
    try:
        "".encode(encoding)  # fails for codecs that are not for text
        return codecs.lookup(encoding)
    except (LookupError, ValueError):
        raise InvalidManifest(
            f"unknown encoding '{encoding}'",
            where="read.encoding",
            hint="use an encoding such as `utf-8`, `utf-16`, `latin1`, `windows-1251`, `shift_jis` or "
            "`gb18030`",
        ) from None


def undecodable_error(path: Path, name: str, encoding: str) -> BadData:
    """Return the error for a file with bytes that its encoding cannot decode, at the position of the
    first.
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    line, offset, problem = 1, 0, "the content"
    prefix = b""
    with path.open("rb") as file:
        while True:
            chunk = file.read(_CHUNK_BYTES)
            prefix = prefix or chunk[:2]
            pending = len(decoder.getstate()[0])
            try:
                line += decoder.decode(chunk, final=not chunk).count("\n")
            except UnicodeDecodeError as error:
                # The encoding in the error includes the byte order.
                codec = error.encoding if error.encoding.startswith("utf") else encoding
                line += error.object[: error.start].decode(codec, "ignore").count("\n")
                problem = f"byte 0x{error.object[error.start]:02x} at {offset - pending + error.start:,}"
                break
            if not chunk:
                break
            offset += len(chunk)
    hint = "set read.encoding in the manifest, such as windows-1252"
    if prefix in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        hint = "set read.encoding to utf-16 in the manifest: the file begins like UTF-16"
    encoding_text = encoding.removesuffix("-sig").upper()
    return BadData(f"{problem} is not {encoding_text} text", where=f"{name}: line {line}", hint=hint)


LINE_COLUMN: Final = "odf line"
"""Column of a frame with the line of each row in its file, such as ``L17`` or ``17``."""
RECORD_COLUMN: Final = "odf invalid record"
"""Column of a frame with the text of each record that Spark cannot parse; null in other rows."""
_MAX_LINE: Final = 256 << 20
_MAX_KEYS: Final = 10_000
_FRACTION: Final = re.compile(rb":[0-9]{2}[.][0-9]{4}")
_MAX_FRACTION: Final = 7
"""Length of a text that begins like a fraction, but is too short."""


class Utf8Scan:
    """Checks that a file is UTF-8: Spark would replace invalid bytes by question marks.

    Args:
        path: the file, to find the line of an invalid byte.
        name: name of the file in errors.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def feed(self, chunk: bytes) -> None:
        """Check the next chunk of the file.

        Raises:
            BadData: it is not UTF-8.
        """
        if self._decoder.getstate()[0] or not chunk.isascii():
            self._decode(chunk, final=False)

    def finish(self) -> None:
        """Check the end of the file; raises as :meth:`feed` does."""
        self._decode(b"", final=True)

    def _decode(self, chunk: bytes, *, final: bool) -> None:
        try:
            self._decoder.decode(chunk, final)
        except UnicodeDecodeError:
            raise undecodable_error(self._path, self._name, "utf-8") from None


class FractionScan:
    """Detects times with more than three digits of a second.

    Attributes:
        found: whether there may be one.
    """

    def __init__(self) -> None:
        self._before = b""
        self.found = False

    def feed(self, chunk: bytes) -> None:
        """Scan the next chunk of the file."""
        if not self.found:
            data = self._before + chunk
            self.found = _FRACTION.search(data) is not None
            self._before = data[-_MAX_FRACTION:]

    def finish(self) -> None:
        """Do nothing at the end of the file."""


class LineScan:
    """Checks that no line exceeds the memory limit: Spark holds a complete line in memory.

    Args:
        name: name of the file in errors.
        hint: hint of the error.
    """

    def __init__(self, name: str, hint: str) -> None:
        self._name = name
        self._hint = hint
        self._lines = self._length = 0

    def feed(self, chunk: bytes) -> None:
        """Scan the next chunk of the file.

        Raises:
            BadData: a line is too long.
        """
        last = max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
        self._length = self._length + len(chunk) if last < 0 else len(chunk) - last - 1
        self._lines += chunk.count(b"\n")
        if self._length > _MAX_LINE:
            raise BadData(
                f"a line is longer than {_MAX_LINE >> 20} MB",
                where=f"{self._name}: line {self._lines + 1}",
                hint=self._hint,
            )

    def finish(self) -> None:
        """Do nothing at the end of the file."""


class JsonScan:
    """Checks each line of a file with one JSON object per line, and collects the keys.

    Spark would read the first object of a line and ignore the rest. It matches keys case-sensitively.

    Args:
        name: name of the file in errors.
        schema: the declared columns.

    Attributes:
        keys: keys of all objects, each with the line of its first occurrence; at most 10,000 that are not
            column names.
        spelled: spelling in the file of columns and struct fields (by their path) that differs in case from
            the declaration.
    """

    def __init__(self, name: str, schema: pa.Schema | None = None) -> None:
        self._name = name
        self._rest = b""
        self._lines = 0
        self._level = _FieldNames([] if schema is None else list(schema))
        self.keys = self._level.keys
        self.spelled: dict[tuple[str, ...], str] = {}

    def feed(self, chunk: bytes) -> None:
        """Check the next chunk of the file.

        Raises:
            RejectedRow: a line is not one object.
            BadData: a column's name has several spellings.
        """
        lines, end, self._rest = (self._rest + chunk).rpartition(b"\n")
        if end:
            self._check(lines)

    def finish(self) -> None:
        """Check the end of the file; raises as :meth:`feed` does."""
        self._check(self._rest)
        self.spelled = dict(self._level.respelled(self._name, ()))

    def _check(self, block: bytes) -> None:
        number, level, known_keys = self._lines, self._level, self._level.keys
        for number, line in enumerate(block.split(b"\n"), self._lines + 1):
            if not line or line.isspace():
                continue
            record = parse_object(line, f"{self._name}: line {number}")
            if level.needs_all_objects or not known_keys.keys() >= record.keys():
                level.add_object(record, number)
        self._lines = number


class _FieldNames:
    """The names of columns or struct fields, and their spelling in a file.

    Attributes:
        keys: keys of all objects, each with the line of its first occurrence; at most 10,000 that are not
            column names.
    """

    def __init__(self, fields: list[pa.Field]) -> None:
        self._by_folded_name = {field.name.casefold(): field.name for field in fields}
        self._by_appearance = {appearance(field.name): field.name for field in fields}
        self._lookalike: tuple[str, str, int] | None = None
        self._spellings: dict[str, dict[str, int]] = {}
        self._has_other_case = False
        self._nested = {
            field.name: inner for field in fields if (inner := _nested_fields(field.type)) is not None
        }
        self.keys: dict[str, int] = {}

    @property
    def needs_all_objects(self) -> bool:
        """Whether every object must be scanned, not only those with new keys."""
        return self._has_other_case or bool(self._nested)

    def add_object(self, record: dict[str, Any], number: int) -> None:
        """Record the keys of an object that match a column name in any case."""
        if self._has_other_case or not self.keys.keys() >= record.keys():
            self._add_keys(record, number)
        for name, (members, decode) in self._nested.items():
            for key in self._spellings.get(name, ()):
                if (raw := record.get(key)) is not None:
                    try:
                        inner = decode(raw)
                    except (msgspec.MsgspecError, RecursionError):
                        continue  # another type: the reader reports it
                    for member in _objects(inner):
                        members.add_object(member, number)

    def _add_keys(self, record: dict[str, Any], number: int) -> None:
        for key in record:
            name = self._by_folded_name.get(key.casefold())
            if name is not None or len(self.keys) < _MAX_KEYS:
                self.keys.setdefault(key, number)
            if name is None:
                column = self._by_appearance.get(appearance(key))
                if (
                    column is not None
                    and self._lookalike is None
                    and not any(other.casefold() == column.casefold() for other in record)
                ):
                    self._lookalike = key, column, number
                continue
            self._has_other_case |= key != name
            if key == name or name not in record:  # if two spellings match, the exact one applies
                self._spellings.setdefault(name, {}).setdefault(key, number)

    def respelled(self, file: str, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield the paths whose spelling differs in case from the declaration.

        Raises:
            BadData: a name has several spellings, so that no single one finds all values, or a key looks
                like a name.
        """
        if self._lookalike is not None:
            key, column, number = self._lookalike
            problem = lookalike_problem(key, ".".join((*path, column)))
            raise BadData(problem, where=f"{file}: line {number}", hint=LOOKALIKE_HINT)
        for name, written in self._spellings.items():
            (first, *others) = written.items()
            if others:
                path_text = ".".join((*path, name))
                raise BadData(
                    f"the column `{path_text}` is written '{first[0]}' in line {first[1]:,}, and"
                    f" '{others[0][0]}' in line {others[0][1]:,}",
                    where=f"{file}: line {others[0][1]}",
                    hint="make the keys of all objects the same in the source, or in a prepare step",
                )
            if first[0] != name:
                yield (*path, name), first[0]
        for name, (members, _) in self._nested.items():
            yield from members.respelled(file, (*path, name))


def _nested_fields(data_type: pa.DataType) -> tuple[_FieldNames, Callable[[Any], Any]] | None:
    """Return the fields of a struct or of lists of structs, and the decoder of such values."""
    decoded_type: Any = dict[str, msgspec.Raw] | None
    while (
        pa.types.is_list(data_type)
        or pa.types.is_large_list(data_type)
        or pa.types.is_fixed_size_list(data_type)
    ):
        data_type, decoded_type = data_type.value_type, list[decoded_type] | None
    return (
        (_FieldNames(list(data_type)), msgspec.json.Decoder(decoded_type).decode)
        if pa.types.is_struct(data_type)
        else None
    )


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        for item in value:
            yield from _objects(item)
    elif value is not None:
        yield value


_READ_SIZE: Final = 4 << 20
_OBJECT_LINES_HINT: Final = "write one object per line; for one document with an array, use read.kind Json"
_LONG_LINE_HINT: Final = "check that the file is CSV, and its line endings"
_RECORD_SEPARATORS: Final = b"\x1e\x1f\x1d\x1c\x02\x03\x04\x05\x06"
"""Record separators for files with quoted line breaks; the first one absent from the file is used."""


@dataclass(frozen=True)
class PreparedTextFile:
    """A file that Spark can read.

    Attributes:
        path: path of the file.
        line_separator: record separator, or None for any line end.
        has_invalid: whether a record of CSV has an invalid value.
        has_fractions: whether a time may have more than three digits of a second.
    """

    path: Path
    line_separator: str | None = None
    has_invalid: bool = False
    has_fractions: bool = True


def prepare_text_file(
    path: Path,
    scratch: Path,
    *,
    name: str,
    encoding: str | None = None,
    dialect: Dialect | None = None,
    objects: JsonScan | None = None,
    reporter: Reporter | None = None,
) -> PreparedTextFile:
    """Check a text file and convert it into a form that Spark reads correctly.

    Args:
        path: the file.
        scratch: folder for copies; the caller removes it after the job.
        name: name of the file in errors.
        encoding: encoding of the file if it is not UTF-8.
        dialect: dialect of a CSV file.
        objects: scan of a file with one JSON object per line; collects its keys.
        reporter: checked for cancellation.

    Raises:
        BadData: undecodable bytes, or a line that is not one object.
        InvalidManifest: an unknown encoding.
    """
    reporter = reporter or Reporter()
    folder = Path(tempfile.mkdtemp(prefix="text-", dir=scratch))
    codec = detect_encoding(path, encoding)
    if codec not in (None, "utf-8-sig"):
        copy = folder / "utf8.txt"
        _transcode(path, copy, codec, name, reporter)
        path = copy
    quotes = QuoteScan(dialect) if dialect is not None and dialect.quote else None
    utf8 = Utf8Scan(path, name) if codec in (None, "utf-8-sig") else None
    lines = LineScan(name, _OBJECT_LINES_HINT if objects is not None else _LONG_LINE_HINT)
    nul, fractions = NulScan(), FractionScan()
    scans = [scan for scan in (lines, utf8, quotes, nul, fractions, objects) if scan is not None]
    for chunk in _chunks(path, reporter):
        for scan in scans:
            scan.feed(chunk)
    for scan in scans:
        scan.finish()
    if dialect is not None and quotes is not None and quotes.found:
        marked = folder / "records.txt"
        separator, is_valid = _separate_records(path, marked, dialect, name, reporter)
        has_invalid = nul.found or not is_valid
        return PreparedTextFile(marked, separator, has_invalid, fractions.found)
    return PreparedTextFile(safe_link(path, folder, ".txt"), None, nul.found, fractions.found)


def safe_link(path: Path, folder: Path, suffix: str) -> Path:
    """Create a symbolic link without characters that Spark interprets."""
    link = Path(tempfile.mkdtemp(prefix="link-", dir=folder)) / f"input{suffix}"
    link.symlink_to(path.resolve())
    return link


def spark_path(path: Path) -> str:
    """Escape a path for Spark's readers, which interpret characters such as ``[``, ``{`` and ``*``."""
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", str(path))


def _chunks(path: Path, reporter: Reporter) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_READ_SIZE):
            reporter.raise_if_cancelled()
            yield chunk


def _transcode(path: Path, copy: Path, encoding: str, name: str, reporter: Reporter) -> None:
    decoder = codecs.getincrementaldecoder(encoding)()
    with copy.open("wb") as out:
        try:
            for chunk in _chunks(path, reporter):
                out.write(decoder.decode(chunk).encode("utf-8", "surrogatepass"))
            out.write(decoder.decode(b"", final=True).encode("utf-8", "surrogatepass"))
        except UnicodeError:
            raise undecodable_error(path, name, encoding) from None


def _separate_records(
    source: Path, target: Path, dialect: Dialect, name: str, reporter: Reporter
) -> tuple[str, bool]:
    """Copy a file with each unquoted line end replaced by a separator.

    A quoted value that is not closed, or has text after its closing quote, ends its record at the next line
    end: the lines below may be valid.

    Returns:
        The separator, and whether all quoted values are valid.
    """
    separator = _unused_separator(source, name, reporter)
    is_valid, rest = True, b""
    with source.open("rb") as file, target.open("wb") as out:
        while True:
            reporter.raise_if_cancelled()
            # The rest of a long record is scanned again, so the chunk grows with the rest.
            chunk = file.read(max(_READ_SIZE, len(rest)))
            rest += chunk
            length, is_valid_chunk = separate_chunk(rest, dialect, separator, out, last=not chunk)
            is_valid = is_valid and is_valid_chunk
            rest = rest[length:]
            if not chunk:
                return separator.decode(), is_valid


def _unused_separator(path: Path, name: str, reporter: Reporter) -> bytes:
    unused = set(_RECORD_SEPARATORS)
    for chunk in _chunks(path, reporter):
        unused = {separator for separator in unused if separator not in chunk}
    for separator in _RECORD_SEPARATORS:
        if separator in unused:
            return bytes([separator])
    raise BadData("the file is not text: it has too many control characters", where=name)


_SPACE: Final = bytes(range(1, 0x21))
"""The characters of lines that Spark skips as blank, without 0x00, which makes a record invalid."""


def read_records(text: PreparedTextFile, reporter: Reporter) -> Iterator[tuple[int, bytes]]:
    """Yield the records of a prepared file that are not blank, each with its first line, without its end."""
    separator = None if text.line_separator is None else text.line_separator.encode()
    ends = re.compile(rb"\r\n|\n|\r" if separator is None else re.escape(separator))
    line, rest = 1, b""
    for chunk in chain(_chunks(text.path, reporter), [b""]):
        data = rest + (chunk.removeprefix(codecs.BOM_UTF8) if line == 1 and not rest else chunk)
        # The second half of a line end may follow.
        open_end = b"\r" if chunk and separator is None and data.endswith(b"\r") else b""
        *complete, rest = ends.split(data.removesuffix(open_end) if open_end else data)
        rest += open_end
        if not chunk:
            complete.append(rest)
        for record in complete:
            if record.strip(_SPACE):
                yield line, record
            line += 1 if separator is None else 1 + len(LINE_END.findall(record))


def write_records(
    text: PreparedTextFile, edit: Callable[[int, bytes], bytes | None], reporter: Reporter
) -> PreparedTextFile:
    """Write a copy of a prepared file with edited records.

    Args:
        text: the prepared file.
        edit: receives the line and the text of each record that is not blank; returns its new text, or None
            to leave it out.
        reporter: checked for cancellation.
    """
    copy = Path(tempfile.mkdtemp(prefix="records-", dir=text.path.parent)) / "records.txt"
    end = (text.line_separator or "\n").encode()
    with copy.open("wb") as out:
        for line, record in read_records(text, reporter):
            if (edited := edit(line, record)) is not None:
                out.write(edited)
                out.write(end)
    return PreparedTextFile(copy, text.line_separator)


def check_records(text: PreparedTextFile, file: CsvRecords, reporter: Reporter) -> None:
    """Check the records of a prepared CSV file.

    Raises:
        RejectedRow: a record has an invalid value.
    """
    for line, record in read_records(text, reporter) if text.has_invalid else ():
        if (error := file.error(line, record)) is not None:
            raise error


class RecordLines:
    """Numbers the records of a text file, to find the lines of invalid rows.

    Attributes:
        text: the prepared file, or None before it is numbered.
        separator: the separator of CSV values, or "" for JSON.
        count: number of records, without a header.
        invalid: records that Spark does not read, each with its line.
    """

    def __init__(self) -> None:
        self.text: PreparedTextFile | None = None
        self.separator = ""
        self.count = 0
        self.invalid: list[tuple[int, BadData]] = []

    def add_invalid(self, line: int, error: BadData) -> None:
        """Add a record that Spark does not read, because the file is converted without it."""
        self.count += 1
        self.invalid.append((line, error))

    def number_csv(
        self, text: PreparedTextFile, file: CsvRecords, reporter: Reporter, *, header: bool
    ) -> PreparedTextFile:
        """Return a copy of a CSV file without its header, with the line of each record as the first value.

        It has the prefix ``L``: it must not be equal to a null value of the file. Records with an invalid
        value are left out.

        Raises:
            RejectedRow: the header is invalid.
        """
        self.text, self.separator = text, file.dialect.separator
        before, skipped = self.separator.encode(), not header

        def number(line: int, record: bytes) -> bytes | None:
            nonlocal skipped
            error = file.error(line, record) if text.has_invalid else None
            if not skipped:
                if error is not None:
                    raise error
                skipped = True
                return None
            self.count += 1
            if error is not None:
                self.invalid.append((line, error))
                return None
            return b"L%d%s%s" % (line, before, record)

        return write_records(text, number, reporter)

    def number_json(self, text: PreparedTextFile, name: str, reporter: Reporter) -> PreparedTextFile:
        """Return a copy of a file with one JSON object per line, with the line as :data:`LINE_COLUMN`.

        Lines that are not one object are left out.

        Args:
            text: the prepared file.
            name: name of the file in errors.
            reporter: checked for cancellation.
        """
        self.text = text
        key = json.dumps(LINE_COLUMN).encode()

        def number(line: int, record: bytes) -> bytes | None:
            self.count += 1
            try:
                values = parse_object(record, f"{name}: line {line}")
            except RejectedRow as error:
                self.invalid.append((line, error))
                return None
            body = record.strip(_SPACE).removeprefix(b"{")
            return b"{%s:%d%s%s" % (key, line, b"," if values else b"", body)

        return write_records(text, number, reporter)
