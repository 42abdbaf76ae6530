"""The datasets of a workspace as the tables of a query: each seen at a block, and in a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from odf_engine.errors import InvalidIdentity, InvalidQuery, NotFound, UsageError
from odf_engine.metadata.sql_calls import TableCall, moment
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.workspace.answers import Table

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_engine.chain.chain import SliceRow
    from odf_engine.transform.contract import TableFiles
    from odf_engine.workspace.pins import Pin
    from odf_engine.workspace.projecting import Projection
    from odf_engine.workspace.workspace import DatasetEntry, Workspace


@dataclass(frozen=True)
class Seen:
    """How datasets are seen that a query says nothing of by itself.

    Attributes:
        as_at: a system time or a block.
        as_of: an event time.
        blocks: the blocks of some of them, by their ids.
        tables: what was read before, by the names of the tables in small letters: nothing else counts then.
    """

    as_at: str | None = None
    as_of: Timestamp | None = None
    blocks: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Table] | None = None


def seen(workspace: Workspace, as_at: str | None, as_of: str | None, pins: Mapping[str, str]) -> Seen:
    """What a request says about time.

    Raises:
        UsageError: what should be a time is none.
        NotFound: a dataset is not here.
    """
    event_time = None if as_of is None else moment(as_of)
    if as_of is not None and event_time is None:
        raise UsageError(f"'{as_of}' is not a time", hint="such as 2024-03-05T10:00:00Z")
    blocks = {str(resolve(workspace, name).id): block for name, block in pins.items()}
    return Seen(as_at, event_time, blocks)


class Tables:
    """Finds the tables of one query.

    Attributes:
        read: what was read so far, in its order.
        pins: the blocks of it, each once.
    """

    def __init__(self, workspace: Workspace, reporter: Reporter, seen: Seen) -> None:
        self._workspace = workspace
        self._reporter = reporter
        self._seen = seen
        self.read: list[Table] = []
        self.pins: list[Pin] = []

    @property
    def names(self) -> list[str]:
        """What people call the datasets: names and ids."""
        known = self._seen.tables or {}
        return [
            *(name for each in self._workspace.datasets() for name in (str(each.alias), str(each.id))),
            *(table.table for table in known.values()),
        ]

    def files(self, name: str, call: TableCall | None = None) -> TableFiles:
        """The files with the rows that a table has, and the columns that the dataset had at its block.

        Args:
            name: of the table.
            call: the table function that it stands for; None when the query names a dataset.

        Raises:
            NotFound: there is no dataset of this name, or no such block.
            InvalidQuery: it has no columns yet.
            UsageError: the time is before its first block or has not come yet, or it has no key.
            InvalidSchema: the key is none of its columns.
        """
        if self._seen.tables is None:
            call = call or TableCall(name, name)
            entry = resolve(self._workspace, call.dataset)
            pin = self._pin(entry, call)
        else:
            entry, pin, call = self._as_before(name, self._seen.tables)
        files = self._files(entry, pin, call, name)
        if pin not in self.pins:
            self.pins.append(pin)
        return files

    def check_all_used(self) -> None:
        """Every pin has to be of a dataset that the query reads.

        Raises:
            UsageError: one is not.
        """
        unused = self._seen.blocks.keys() - {each.id for each in self.read}
        if unused:
            name = self._workspace.resolve(min(unused)).alias
            raise UsageError(
                f"the query does not read {name} but where it says itself how, and a block was given for it",
                hint="leave it out",
            )

    def _pin(self, entry: DatasetEntry, call: TableCall) -> Pin:
        as_at = call.as_at or self._seen.blocks.get(str(entry.id)) or self._seen.as_at
        return pin_at(entry, as_at)

    def _as_before(self, name: str, tables: Mapping[str, Table]) -> tuple[DatasetEntry, Pin, TableCall]:
        table = tables.get(name.casefold())
        if table is None:
            raise NotFound(f"there is no dataset '{name}'")
        entry = self._workspace.resolve(table.id)
        call = TableCall(table.table, table.name, state=table.state, as_of=table.as_of, key=tuple(table.key))
        return entry, pin_at(entry, table.block), call

    def _files(self, entry: DatasetEntry, pin: Pin, call: TableCall, name: str) -> TableFiles:
        from odf_engine.transform.contract import TableFiles

        of_all = self._seen.as_of if call.state is None else None
        state = call.state or ("changelog" if of_all is None else "as of")
        as_of = moment(call.as_of) if call.as_of is not None else of_all
        schema, vocabulary = columns_at(entry, pin), entry.dataset.state().vocabulary
        slices = [] if pin.last_offset is None else entry.dataset.slices(0, pin.last_offset)
        rows = sum(each.end - each.start + 1 for each in slices)
        block = f"{entry.alias} at block {pin.sequence_number}"
        key: list[str] = []
        if state == "changelog":
            self._reporter.line(f"reads {block}: {rows} rows in {_slices(slices)}")
            paths = [entry.dataset.slice_path(each) for each in slices]
        else:
            found = self._projection(entry, pin, call.key, as_of)
            said = state if as_of is None else f"as of {as_of}"
            self._reporter.line(f"reads {block}, {said}: {found.rows} rows of {rows}")
            paths, key = [found.file], list(found.key)
        self.read.append(
            Table(
                table=name,
                name=str(entry.alias),
                id=str(entry.id),
                block=pin.block,
                sequence_number=pin.sequence_number,
                system_time=pin.system_time,
                state=state,
                as_of=None if as_of is None else str(as_of),
                key=key,
            )
        )
        return TableFiles(name, paths, schema, vocabulary)

    def _projection(
        self, entry: DatasetEntry, pin: Pin, key: Sequence[str], as_of: Timestamp | None
    ) -> Projection:
        from odf_engine.workspace.projecting import key_of, project

        if as_of is None and not key and not key_of(entry.dataset):
            problem = f"it is not known which columns tell the rows of {entry.alias} apart"
            raise UsageError(problem, hint=f"name them: current({entry.alias}, key, …)")
        until = -1 if pin.last_offset is None else pin.last_offset
        return project(self._workspace.odf, entry.dataset, key, self._reporter, until=until, as_of=as_of)


def pin_at(entry: DatasetEntry, as_at: str | None) -> Pin:
    """Where a dataset stood at a system time or a block, which may also be its number.

    Raises:
        UsageError: the time is before the first block, or has not come yet.
        NotFound: there is no such block.
    """
    from odf_engine.workspace.pins import pin

    if as_at is None:
        return pin(entry)
    time = moment(as_at)
    if time is None:
        try:
            return pin(entry, as_at)
        except NotFound as error:
            hint = error.hint or f"a time or a block is meant; odf log {entry.alias} shows both"
            raise NotFound(error.message, hint=hint) from None
    if time > Timestamp.now():
        raise UsageError(
            f"{time} has not come yet: nobody can say what will be known then",
            hint="without a time it is what is known now",
        )
    return pin(entry, str(time))


def resolve(workspace: Workspace, name: str) -> DatasetEntry:
    """The dataset that a query names.

    Raises:
        NotFound: there is none; the hint has one with a similar name.
    """
    from difflib import get_close_matches

    try:
        return workspace.resolve(name)
    except (NotFound, InvalidIdentity):
        names = {str(each.alias).lower(): str(each.alias) for each in workspace.datasets()}
    holding = [each for each in names if name.lower() in each]
    close = [*get_close_matches(name.lower(), names, 1), *holding][:1]
    hint = f"did you mean {names[close[0]]}?" if close else "a query reads datasets; see: odf list"
    raise NotFound(f"there is no dataset '{name}'", hint=hint)


def columns_at(entry: DatasetEntry, pin: Pin) -> pa.Schema:
    """The columns that a dataset had at a block: what came later is no part of what was known.

    Raises:
        InvalidQuery: it had none yet.
    """
    from odf_engine.data.arrow_schema import decode_schema

    state = entry.dataset.state()
    schema = state.schema
    if str(state.head) != pin.block:
        rows = entry.dataset.page(1, before=pin.sequence_number + 1, kinds=("SetDataSchema",))
        event = entry.dataset.block(rows[0].hash).block.event if rows else None
        schema = getattr(event, "schema", None)
    if schema is not None:
        return decode_schema(schema)
    if pin.head:
        problem = f"{entry.alias} has no rows yet, so its columns are not known"
        raise InvalidQuery(problem, hint=f"bring some in first: odf pull {entry.alias}")
    problem = f"{entry.alias} had no rows at block {pin.sequence_number}, so its columns are not known"
    raise InvalidQuery(problem, hint=f"ask for a later block: odf log {entry.alias}")


def _slices(slices: list[SliceRow]) -> str:
    return "1 slice" if len(slices) == 1 else f"{len(slices)} slices"
