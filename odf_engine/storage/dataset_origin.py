"""The store that the folder of a dataset is a local copy of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from odf_engine.base.progress import Reporter
from odf_engine.identity.multiformats import Multihash
from odf_engine.storage.refs import HEAD

if TYPE_CHECKING:
    from odf_engine.data.parquet.parquet_reader import RangedFile


class CheckedObjects(NamedTuple):
    """The objects of a kind in a store that are not needed and older than a day, and those it lacks."""

    orphans: list[str]
    missing: list[Multihash]


class DatasetOrigin(Protocol):
    """The store whose dataset a folder mirrors. The head in the store is authoritative."""

    def fetch(self, kind: str, name: str) -> bool:
        """Store an object in the folder, verified; return whether the store has it.

        Raises:
            BadData: the bytes in the store do not match the hash.
        """
        ...

    def fetch_all(self, kind: str, sizes: Mapping[str, int], reporter: Reporter) -> None:
        """Store missing objects in the folder, verified, several at the same time.

        Args:
            kind: the kind of the objects.
            sizes: their sizes in bytes, by name. An object that the store lacks is skipped.
            reporter: receives the bytes, and cancels the requests.

        Raises:
            BadData: the bytes in the store do not match the hash.
            SourceUnavailable: the store cannot be read.
            Cancelled: the job was cancelled.
        """
        ...

    def open_ranges(self, kind: str, names: Sequence[str], size: int) -> RangedFile | None:
        """Return an object that is fetched in parts, or None if :meth:`fetch` is faster.

        Args:
            kind: the kind of the object.
            names: its possible names.
            size: its size in bytes.
        """
        ...

    def newest_head(self, reference: str = HEAD) -> Multihash | None:
        """Return the head of the dataset or a branch in the store, or None if it does not exist there."""
        ...

    def references(self) -> dict[str, Multihash]:
        """Return the references in the store other than the head, by their names."""
        ...

    def store_reference(self, name: str, block: Multihash) -> None:
        """Set a reference other than the head in the store, without a condition."""
        ...

    def read_records(self) -> bool:
        """Store missing compaction records in the folder; return whether there were any.

        Raises:
            SourceUnavailable: the store cannot be read.
        """
        ...

    def read_author(self) -> None:
        """Store the origin of the definition in the folder, if another machine has recorded one.

        Raises:
            SourceUnavailable: the store cannot be read.
        """
        ...

    def record_author(self, text: str) -> None:
        """Record that the definition is by a third party, for all machines; ``text`` is its origin.

        Raises:
            SourceUnavailable: the store cannot be written.
        """
        ...

    def upload(self, kind: str, name: str) -> None:
        """Store an object of the folder."""
        ...

    def upload_used(self, kind: str, name: str) -> None:
        """Store an object of the folder for a later commit, also if it exists and is about to be deleted.

        Raises:
            Conflict: another machine is deleting objects.
        """
        ...

    def publish(
        self,
        objects: Sequence[tuple[str, str]] | None,
        expected: Multihash | None,
        new: Multihash,
        backup_ref: str | None = None,
        reference: str = HEAD,
        required: Collection[str] = (),
    ) -> None:
        """Store objects of the folder, then move the head in the store by a conditional write.

        Args:
            objects: kinds and names, in their order; None: all that the store lacks.
            expected: the current head.
            new: the new head.
            backup_ref: the name of a reference that stores the current head.
            reference: the head, or the branch that is moved instead.
            required: objects of the new chain, such as ``data/HASH``, that no reference may use yet.

        Raises:
            Conflict: the head in the store is not ``expected``.
            NotFound: the store lacks a required object.
        """
        ...

    def remove_reference(self, name: str, expected: Multihash) -> None:
        """Remove a reference other than the head in the store, if its value is ``expected``.

        Raises:
            Conflict: another machine has changed it.
        """
        ...

    def check_objects(self, kind: str, needed: Collection[Multihash]) -> CheckedObjects:
        """Compare the objects of a kind in the store with those that are needed."""
        ...

    def claim_unused(self, names: Collection[str], *, now: bool) -> list[str]:
        """Return the unused objects that may be deleted until :meth:`delete_unused`.

        They are those that were unused at a call at least an hour ago; all of them with ``now``. Commits that
        use existing objects are refused until then.

        Args:
            names: unused objects, such as ``data/HASH``.
            now: whether recent objects may be deleted.

        Raises:
            Conflict: another machine is deleting objects.
        """
        ...

    def delete_unused(self, names: Sequence[str]) -> None:
        """Delete claimed objects in the store, and end the claim."""
        ...
