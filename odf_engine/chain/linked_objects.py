"""Linked objects of a dataset (RFC-017): files in its folder `data` that values of link columns refer to."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from odf_engine.base.arrow import pc, types
from odf_engine.base.atomic_files import atomic_file
from odf_engine.base.files import remove_temporary, translate_os_errors
from odf_engine.base.progress import Reporter
from odf_engine.chain.block_summary import SliceSummary
from odf_engine.chain.dataset import Dataset
from odf_engine.data.parquet.parquet_reader import parquet_errors, read_bounded, read_parquet_schema
from odf_engine.errors import BadData, InvalidIdentity, InvalidSchema, NotFound, UsageError
from odf_engine.identity.multiformats import SHA3_256, Multihash
from odf_engine.metadata.model import DatasetKind, SetDataSchema
from odf_engine.metadata.object_links import LinkedTotals, find_link_columns
from odf_engine.storage.object_store import hash_file

_BYTES: Final = 1 << 20
_BLOCKS: Final = 1000
_HINT: Final = "attach the files with odf ingest --attach; nothing was committed"


class SliceLinks(NamedTuple):
    """The links of a slice.

    Attributes:
        counts: number of links to each object.
        invalid: a message for the first link that is not a hash, or None if absent.
    """

    counts: dict[Multihash, int]
    invalid: str | None = None


def read_links(path: Path, columns: Sequence[str]) -> SliceLinks:
    """Read the links of a slice. Columns that it lacks, or that are not text, have none.

    Raises:
        BadData: the file cannot be read.
        NotFound: the file does not exist.
    """
    texts: dict[str, int] = {}
    try:
        names = [
            field.name
            for field in read_parquet_schema(path)
            if field.name in columns and (types.is_string(field.type) or types.is_large_string(field.type))
        ]
        for name in names:
            for batch in read_bounded(path, [name]):
                for pair in pc.value_counts(batch.column(0).drop_null()).to_pylist():
                    texts[str(pair["values"])] = texts.get(str(pair["values"]), 0) + pair["counts"]
    except FileNotFoundError:
        raise NotFound(
            "slice is missing", where=str(path), hint="run odf verify to find all errors"
        ) from None
    except (*parquet_errors(), InvalidSchema) as error:
        raise BadData(f"the slice cannot be read: {error}", where=str(path)) from error
    counts: dict[Multihash, int] = {}
    invalid: str | None = None
    for text, count in texts.items():
        try:
            link = Multihash.parse(text)
        except InvalidIdentity:
            invalid = invalid or _describe_invalid(path, names, text)
        else:
            counts[link] = counts.get(link, 0) + count
    return SliceLinks(counts, invalid)


def _describe_invalid(path: Path, names: Sequence[str], text: str) -> str:
    """Return a message with row and column of a value that is not a hash."""
    for name in names:
        row = 0
        for batch in read_bounded(path, [name]):
            at = pc.index(batch.column(0), text).as_py()
            if at >= 0:
                return f"row {row + at + 1}, column \"{name}\": '{text[:100]}' is not the hash of an object"
            row += batch.num_rows
    return f"'{text[:100]}' is not the hash of an object"


def check_links(
    dataset: Dataset, staged: Path, columns: Sequence[str], stored: Iterable[Multihash], reporter: Reporter
) -> LinkedTotals:
    """Check the links of a slice before its commit; return the summary for its block.

    Args:
        dataset: the dataset, which must have the objects.
        staged: the slice.
        columns: the columns with links.
        stored: objects whose bytes were verified when they were stored.
        reporter: its cancellation ends the check.

    Raises:
        BadData: a value is not a hash, or the bytes of an object do not match its hash.
        NotFound: an object is missing; the message lists the first ones.
    """
    links = read_links(staged, columns)
    if links.invalid is not None:
        raise BadData(links.invalid, hint=_HINT)
    verified = set(stored)
    missing: list[Multihash] = []
    objects = size = 0
    for link, count in links.counts.items():
        path = dataset.slice_path(link)
        if not path.is_file():
            missing.append(link)
            continue
        if link not in verified:
            check_object_hash(path, link, reporter)
        objects, size = objects + count, size + count * path.stat().st_size
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise NotFound(
            f"linked objects are missing: {', '.join(map(str, missing[:3]))}{more}",
            hint=_HINT,
        )
    return LinkedTotals(objects, size)


def check_object_hash(path: Path, link: Multihash, reporter: Reporter) -> None:
    """Check the bytes of an object.

    Raises:
        BadData: they do not match its hash, or the file cannot be read.
    """
    try:
        file_hash = hash_file(path, link.code, lambda read: reporter.raise_if_cancelled())
    except OSError as error:
        raise BadData(f"object {link} cannot be read: {error.strerror}", where=str(path)) from error
    if file_hash != link:
        raise BadData(
            f"object {link} is damaged: its bytes do not match its hash",
            where=str(path),
            hint="attach its file again with odf ingest --attach, or run odf pull --force",
        )


def store_object(dataset: Dataset, source: Path, reporter: Reporter) -> Multihash:
    """Copy a file into the dataset as an object, durably; return its hash. A damaged object is replaced.

    Raises:
        NotFound: the file does not exist.
        OdfError: it cannot be read, or the object cannot be written.
    """
    objects = dataset.objects("data")
    if not source.is_file():
        raise NotFound("file not found", where=str(source))
    with translate_os_errors(source, "nothing was committed"):
        staged = objects.staging_path()
        hasher = hashlib.sha3_256()
        try:
            with source.open("rb") as file, staged.open("xb") as copy:
                while piece := file.read(_BYTES):
                    reporter.raise_if_cancelled()
                    hasher.update(piece)
                    copy.write(piece)
            link = Multihash(SHA3_256, hasher.digest())
            existing = dataset.slice_path(link)
            if existing.is_file() and hash_file(existing, link.code, lambda read: None) != link:
                existing.unlink()
            objects.put_file(str(link), staged)
            if dataset.origin is not None:
                dataset.origin.upload_used("data", str(link))
        finally:
            remove_temporary(staged)
    return link


def store_objects(dataset: Dataset, files: Mapping[str, Path], reporter: Reporter) -> dict[str, Multihash]:
    """Store files as objects; return their hashes by name. See :func:`store_object`."""
    return {name: store_object(dataset, path, reporter) for name, path in files.items()}


def list_attachments(paths: Sequence[Path]) -> dict[str, Path]:
    """Return files by name: the name of a file, or the path relative to a folder argument.

    Raises:
        NotFound: a path does not exist.
        UsageError: two files have the same name.
    """
    attachments: dict[str, Path] = {}
    for path in paths:
        if path.is_dir():
            files = {str(item.relative_to(path)): item for item in sorted(path.rglob("*")) if item.is_file()}
        elif path.is_file():
            files = {path.name: path}
        else:
            raise NotFound("file not found", where=str(path))
        for name, file in files.items():
            if attachments.setdefault(name, file) != file:
                raise UsageError(f"two attached files have the name '{name}'", hint="attach their folder")
    return attachments


def export_object(dataset: Dataset, link: Multihash, target: Path, reporter: Reporter) -> None:
    """Copy an object to a file, which is replaced. The bytes are verified before.

    Raises:
        NotFound: the object is missing.
        BadData: it is damaged.
        OdfError: the file cannot be written.
    """
    source = dataset.slice_path(link)
    if not source.is_file():
        raise NotFound(f"object {link} not found", hint="odf objects list shows the objects of a dataset")
    check_object_hash(source, link, reporter)
    with translate_os_errors(target), atomic_file(target, 0o666) as staged:
        shutil.copyfile(source, staged)


class LinkedSlice(NamedTuple):
    """A slice that may have links, and its columns with links."""

    summary: SliceSummary
    columns: list[str]


def linked_slices(dataset: Dataset, after: int = -1) -> Iterator[LinkedSlice]:
    """Yield the slices of a root dataset that may have links, oldest first.

    Links of a derivative dataset belong to its inputs.

    Args:
        dataset: the dataset.
        after: sequence number of the last block to leave out.
    """
    if dataset.head() is None or dataset.state().kind is not DatasetKind.Root:
        return
    columns: dict[int, list[str]] = {}
    for summary in dataset.list_blocks(_BLOCKS, kinds=["SetDataSchema"]):
        event = dataset.block(summary.sequence_number).block.event
        if isinstance(event, SetDataSchema):
            columns[summary.sequence_number] = find_link_columns(event.odf_schema)
    if not any(columns.values()):
        return
    for data_slice in dataset.slices():
        numbers = [number for number in columns if number < data_slice.sequence_number]
        names = columns[max(numbers)] if numbers else []
        if names and data_slice.sequence_number > after:
            yield LinkedSlice(data_slice, names)


def linked_objects(dataset: Dataset, reporter: Reporter, after: int = -1) -> Mapping[Multihash, int]:
    """Return the linked objects of a dataset, with their number of links, in the order of the slices.

    Raises:
        NotFound, BadData: a slice is missing or damaged.
    """
    counts: dict[Multihash, int] = {}
    for summary, columns in linked_slices(dataset, after):
        reporter.raise_if_cancelled()
        for link, count in read_links(dataset.slice_path(summary), columns).counts.items():
            counts[link] = counts.get(link, 0) + count
    return counts
