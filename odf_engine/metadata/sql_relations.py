"""What is known of tables while a query is followed: their columns, and what feeds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from odf_engine.metadata.sql_columns import ANY, How

Value = dict[tuple[str, str], How]
"""The columns of inputs, as (input, column), that a value can come from, and how."""

Rows = dict[tuple[str, str, How], None]
"""The columns that decide about rows, in the order in which they were met."""

_STRENGTH: dict[How, int] = {"identity": 0, "transformation": 1, "aggregation": 2, "unknown": 3}


def merged(*values: Value) -> Value:
    """What several values come from; the less of a column is left in one, the more that counts."""
    found: Value = {}
    for value in values:
        for column, how in value.items():
            if column not in found or _STRENGTH[how] > _STRENGTH[found[column]]:
                found[column] = how
    return found


def raised(value: Value, how: How) -> Value:
    """The value after something was done with it."""
    return {column: max(old, how, key=_STRENGTH.__getitem__) for column, old in value.items()}


def as_rows(value: Value, how: How) -> Rows:
    """The columns of a value that decides about rows."""
    return {(*column, how): None for column in value}


@dataclass(frozen=True)
class Out:
    """A column of a table.

    Attributes:
        name: None where the query gives it none.
        value: what it comes from.
        fields: the columns that a structure was made of, by their names in small letters.
        text: what a column without a name says.
    """

    name: str | None
    value: Value
    fields: Mapping[str, Out] | None = None
    text: str = ""

    def field(self, name: str) -> Out:
        """A part of it."""
        if self.fields is not None and (found := self.fields.get(name.casefold())) is not None:
            return found
        return Out(name, raised(self.value, "transformation"))


@dataclass(frozen=True)
class Open:
    """Columns whose names are not known.

    Attributes:
        inputs: those whose columns they are, handed on under their names.
        value: what they come from else, whichever they are.
        but: names in small letters that they do not have.
    """

    inputs: tuple[str, ...] = ()
    value: Value = field(default_factory=dict)
    but: frozenset[str] = frozenset()

    def column(self, name: str) -> Value:
        """What a column of this name comes from."""
        if not self.inputs:
            return self.value
        how: How = "identity" if len(self.inputs) == 1 and not self.value else "unknown"
        return merged({(each, name): how for each in self.inputs}, raised(self.value, how))

    def whole(self) -> Value:
        """What any of them may come from."""
        return merged({(each, ANY): "unknown" for each in self.inputs}, self.value)


@dataclass(frozen=True)
class Relation:
    """A table: an input, a step, a subquery.

    Attributes:
        outs: its columns in order.
        rows: what decides about its rows.
        open: columns that it has besides, with unknown names and places.
    """

    outs: Sequence[Out]
    rows: Rows = field(default_factory=dict)
    open: Open | None = None

    def find(self, name: str) -> Out | None:
        """The column of this name, or what several of it come from."""
        found = [out for out in self.outs if out.name is not None and out.name.casefold() == name.casefold()]
        if not found:  # a column without a name has one that Spark gives it, like sum(x)
            found = [out for out in self.outs if out.name is None and _plain(out.text) == _plain(name)]
        if not found and not name.isidentifier():
            found = [replace(out, fields=None) for out in self.outs if out.name is None]
        if len(found) > 1:
            return Out(name, merged(*(out.value for out in found)))
        return found[0] if found else None

    def opened(self, name: str) -> Out | None:
        """A column of this name that may be among those with unknown names."""
        if self.open is None or name.casefold() in self.open.but:
            return None
        return Out(name, self.open.column(name))

    def without(self, names: Iterable[str]) -> Relation:
        """All columns but those of these names."""
        gone = frozenset(name.casefold() for name in names)
        outs = [out for out in self.outs if out.name is None or out.name.casefold() not in gone]
        return replace(
            self, outs=outs, open=replace(self.open, but=self.open.but | gone) if self.open else None
        )

    def whole(self) -> Value:
        """What anything in it comes from."""
        return merged(*(out.value for out in self.outs), self.open.whole() if self.open else {})

    def renamed(self, names: Sequence[str]) -> Relation | None:
        """With other names for its columns; None when there are not as many."""
        if self.open is not None:
            return Relation([Out(name, raised(self.whole(), "unknown")) for name in names], self.rows)
        if len(names) != len(self.outs):
            return None
        outs = [replace(out, name=name) for out, name in zip(self.outs, names, strict=True)]
        return replace(self, outs=outs)

    def named(self, names: Sequence[str] | None) -> dict[str, Value]:
        """What each column comes from; ``names`` are those that the result is known to have."""
        found: dict[str, Value] = {}
        spelled: dict[str, str] = {}
        for out in self.outs:
            if out.name is not None or not names:
                name = out.name or out.text
                name = spelled.setdefault(name.casefold(), name)
                found[name] = merged(found.get(name, {}), out.value)
        for name in names or ():
            if name.casefold() not in spelled:
                found[name] = self._guessed(name)
        if self.open is not None and not names:
            found[ANY] = self.open.whole()
        return found

    def _guessed(self, name: str) -> Value:
        """What a column comes from whose name the query does not say."""
        if (out := self.find(name)) is not None:
            return out.value
        opened = self.opened(name)
        nameless = [raised(out.value, "unknown") for out in self.outs if out.name is None]
        return merged(opened.value if opened else {}, *nameless)


def _plain(text: str) -> str:
    """As it is compared: brackets are set by Spark as it likes."""
    return "".join(text.casefold().translate({ord(sign): None for sign in "`()"}).split())


def of_inputs(inputs: Mapping[str, Sequence[str] | None]) -> dict[str, Relation]:
    """The inputs of a query, by their names in small letters."""
    found: dict[str, Relation] = {}
    for name, columns in inputs.items():
        if columns is None:
            found[name.casefold()] = Relation([], open=Open((name,)))
        else:
            outs = [Out(column, {(name, column): "identity"}) for column in columns]
            found[name.casefold()] = Relation(outs)
    return found
