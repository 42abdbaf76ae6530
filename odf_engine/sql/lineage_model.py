"""Types of column-level lineage: columns, relations, and what feeds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import msgspec

TransformationType = Literal[
    "identity", "transformation", "aggregation", "unknown", "join", "group_by", "filter", "window", "sort"
]
ANY_COLUMN: Final = "*"
"""Stands for the columns of an input, or of a result, whose names are not known."""


class InputColumn(msgspec.Struct, frozen=True):
    """A column that has part in a result.

    Attributes:
        input: what the query calls the input.
        column: its name there, as the input writes it; :data:`ANY_COLUMN` where that is not known.
        how: of a value, whether it is handed on as it is (``identity``), something is made of it
            (``transformation``), it is one of many that were put together (``aggregation``), or whatever
            it may be (``unknown``). Of rows, what the column decides: which go together (``join``,
            ``group_by``, ``window``), which stay (``filter``), their order (``sort``).
    """

    input: str
    column: str
    how: TransformationType


class ColumnLineage(msgspec.Struct, frozen=True):
    """What feeds the columns of a result.

    Attributes:
        outputs: for each column of the result, in order, those that its values can come from.
        rows: those that decide which rows there are, and what is put together in them.
        problem: why the query could not be followed; everything is ``unknown`` then.
    """

    outputs: dict[str, list[InputColumn]]
    rows: list[InputColumn]
    problem: str | None = None


def unknown_lineage(
    inputs: Mapping[str, Sequence[str] | None], outputs: Sequence[str] | None, problem: str
) -> ColumnLineage:
    """The answer where nothing is known: everything may come from everything."""
    everything = [
        InputColumn(name, column, "unknown")
        for name, columns in inputs.items()
        for column in ([ANY_COLUMN] if columns is None else columns)
    ]
    return ColumnLineage(dict.fromkeys(outputs or [ANY_COLUMN], everything), everything, problem)


ValueSources = dict[tuple[str, str], TransformationType]
"""The columns of inputs, as (input, column), that a value can come from, and how."""
RowDependencies = dict[tuple[str, str, TransformationType], None]
"""The columns that decide about rows, in the order in which they were met."""
_STRENGTH: dict[TransformationType, int] = {
    "identity": 0,
    "transformation": 1,
    "aggregation": 2,
    "unknown": 3,
}


def merge_sources(*values: ValueSources) -> ValueSources:
    """What several values come from; the less of a column is left in one, the more that counts."""
    found: ValueSources = {}
    for value in values:
        for column, how in value.items():
            if column not in found or _STRENGTH[how] > _STRENGTH[found[column]]:
                found[column] = how
    return found


def with_transformation(value: ValueSources, how: TransformationType) -> ValueSources:
    """The value after something was done with it."""
    return {column: max(old, how, key=_STRENGTH.__getitem__) for column, old in value.items()}


def as_row_dependencies(value: ValueSources, how: TransformationType) -> RowDependencies:
    """The columns of a value that decides about rows."""
    return {(*column, how): None for column in value}


@dataclass(frozen=True)
class OutputColumn:
    """A column of a table.

    Attributes:
        name: None where the query gives it none.
        value: what it comes from.
        fields: the columns that a structure was made of, by their names in small letters.
        text: what a column without a name says.
    """

    name: str | None
    value: ValueSources
    fields: Mapping[str, OutputColumn] | None = None
    text: str = ""

    def field(self, name: str) -> OutputColumn:
        """A part of it."""
        if self.fields is not None and (found := self.fields.get(name.casefold())) is not None:
            return found
        return OutputColumn(name, with_transformation(self.value, "transformation"))


@dataclass(frozen=True)
class UnresolvedColumns:
    """Columns whose names are not known.

    Attributes:
        inputs: those whose columns they are, handed on under their names.
        value: what they come from else, whichever they are.
        but: names in small letters that they do not have.
    """

    inputs: tuple[str, ...] = ()
    value: ValueSources = field(default_factory=dict)
    but: frozenset[str] = frozenset()

    def column(self, name: str) -> ValueSources:
        """What a column of this name comes from."""
        if not self.inputs:
            return self.value
        how: TransformationType = "identity" if len(self.inputs) == 1 and not self.value else "unknown"
        return merge_sources(
            {(each, name): how for each in self.inputs}, with_transformation(self.value, how)
        )

    def whole(self) -> ValueSources:
        """What any of them may come from."""
        return merge_sources({(each, ANY_COLUMN): "unknown" for each in self.inputs}, self.value)


@dataclass(frozen=True)
class Relation:
    """A table: an input, a step, a subquery.

    Attributes:
        outs: its columns in order.
        rows: what decides about its rows.
        open: columns that it has besides, with unknown names and places.
    """

    outs: Sequence[OutputColumn]
    rows: RowDependencies = field(default_factory=dict)
    open: UnresolvedColumns | None = None

    def find(self, name: str) -> OutputColumn | None:
        """The column of this name, or what several of it come from."""
        found = [out for out in self.outs if out.name is not None and out.name.casefold() == name.casefold()]
        if not found:  # a column without a name has one that Spark gives it, like sum(x)
            found = [out for out in self.outs if out.name is None and _plain(out.text) == _plain(name)]
        if not found and not name.isidentifier():
            found = [replace(out, fields=None) for out in self.outs if out.name is None]
        if len(found) > 1:
            return OutputColumn(name, merge_sources(*(out.value for out in found)))
        return found[0] if found else None

    def unresolved_column(self, name: str) -> OutputColumn | None:
        """A column of this name that may be among those with unknown names."""
        if self.open is None or name.casefold() in self.open.but:
            return None
        return OutputColumn(name, self.open.column(name))

    def without(self, names: Iterable[str]) -> Relation:
        """All columns but those of these names."""
        gone = frozenset(name.casefold() for name in names)
        outs = [out for out in self.outs if out.name is None or out.name.casefold() not in gone]
        return replace(
            self, outs=outs, open=replace(self.open, but=self.open.but | gone) if self.open else None
        )

    def all_sources(self) -> ValueSources:
        """What anything in it comes from."""
        return merge_sources(*(out.value for out in self.outs), self.open.whole() if self.open else {})

    def renamed(self, names: Sequence[str]) -> Relation | None:
        """With other names for its columns; None when there are not as many."""
        if self.open is not None:
            return Relation(
                [OutputColumn(name, with_transformation(self.all_sources(), "unknown")) for name in names],
                self.rows,
            )
        if len(names) != len(self.outs):
            return None
        outs = [replace(out, name=name) for out, name in zip(self.outs, names, strict=True)]
        return replace(self, outs=outs)

    def column_sources(self, names: Sequence[str] | None) -> dict[str, ValueSources]:
        """What each column comes from; ``names`` are those that the result is known to have."""
        found: dict[str, ValueSources] = {}
        spelled: dict[str, str] = {}
        for out in self.outs:
            if out.name is not None or not names:
                name = out.name or out.text
                name = spelled.setdefault(name.casefold(), name)
                found[name] = merge_sources(found.get(name, {}), out.value)
        for name in names or ():
            if name.casefold() not in spelled:
                found[name] = self._guessed(name)
        if self.open is not None and not names:
            found[ANY_COLUMN] = self.open.whole()
        return found

    def _guessed(self, name: str) -> ValueSources:
        """What a column comes from whose name the query does not say."""
        if (out := self.find(name)) is not None:
            return out.value
        opened = self.unresolved_column(name)
        nameless = [with_transformation(out.value, "unknown") for out in self.outs if out.name is None]
        return merge_sources(opened.value if opened else {}, *nameless)


def _plain(text: str) -> str:
    """As it is compared: brackets are set by Spark as it likes."""
    return "".join(text.casefold().translate({ord(sign): None for sign in "`()"}).split())


def input_relations(inputs: Mapping[str, Sequence[str] | None]) -> dict[str, Relation]:
    """The inputs of a query, by their names in small letters."""
    found: dict[str, Relation] = {}
    for name, columns in inputs.items():
        if columns is None:
            found[name.casefold()] = Relation([], open=UnresolvedColumns((name,)))
        else:
            outs = [OutputColumn(column, {(name, column): "identity"}) for column in columns]
            found[name.casefold()] = Relation(outs)
    return found
