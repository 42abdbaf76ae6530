"""Types of column-level lineage: columns, relations and the input columns that they depend on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import msgspec

TransformationType = Literal[
    "identity", "transformation", "aggregation", "unknown", "join", "group_by", "filter", "window", "sort"
]
ANY_COLUMN: Final = "*"
"""Name for all columns of an input or a result whose names are unknown."""


class InputColumn(msgspec.Struct, frozen=True):
    """An input column that a result depends on.

    Attributes:
        input: name of the input in the query.
        column: name of the column, spelled as in the input; :data:`ANY_COLUMN` if it is unknown.
        how: a value is copied (``identity``), computed (``transformation``), combined from many rows
            (``aggregation``), or ``unknown``. For rows: the column pairs or groups rows (``join``,
            ``group_by``, ``window``), removes rows (``filter``), or orders them (``sort``).
    """

    input: str
    column: str
    how: TransformationType


class ColumnLineage(msgspec.Struct, frozen=True):
    """The input columns that each column of a result depends on.

    Attributes:
        outputs: input columns of each output column's values, in the order of the output columns.
        rows: input columns that determine which rows exist and how rows are combined.
        problem: why the lineage could not be resolved; all dependencies are ``unknown`` then.
    """

    outputs: dict[str, list[InputColumn]]
    rows: list[InputColumn]
    problem: str | None = None


def unknown_lineage(
    inputs: Mapping[str, Sequence[str] | None], outputs: Sequence[str] | None, problem: str
) -> ColumnLineage:
    """Return the most general lineage: every output column depends on every input column."""
    everything = [
        InputColumn(name, column, "unknown")
        for name, columns in inputs.items()
        for column in ([ANY_COLUMN] if columns is None else columns)
    ]
    return ColumnLineage(dict.fromkeys(outputs or [ANY_COLUMN], everything), everything, problem)


ValueSources = dict[tuple[str, str], TransformationType]
"""Input columns of a value, as (input, column), with the strongest transformation."""
RowDependencies = dict[tuple[str, str, TransformationType], None]
"""Input columns that determine the rows, in the order in which the query uses them."""
_STRENGTH: dict[TransformationType, int] = {
    "identity": 0,
    "transformation": 1,
    "aggregation": 2,
    "unknown": 3,
}


def merge_sources(*values: ValueSources) -> ValueSources:
    """Merge the sources of several values. For a column in several of them, the strongest transformation
    wins.
    """
    merged: ValueSources = {}
    for value in values:
        for column, transformation in value.items():
            if column not in merged or _STRENGTH[transformation] > _STRENGTH[merged[column]]:
                merged[column] = transformation
    return merged


def with_transformation(value: ValueSources, transformation: TransformationType) -> ValueSources:
    """Return the sources after a further transformation of the value."""
    return {column: max(old, transformation, key=_STRENGTH.__getitem__) for column, old in value.items()}


def as_row_dependencies(value: ValueSources, transformation: TransformationType) -> RowDependencies:
    """Return the sources of a value as row dependencies of this type."""
    return {(*column, transformation): None for column in value}


@dataclass(frozen=True)
class OutputColumn:
    """A column of a relation.

    Attributes:
        name: None if the query does not name it.
        value: its sources.
        fields: fields of a struct by lower-case name, if they are known.
        text: SQL text of a column without a name.
    """

    name: str | None
    value: ValueSources
    fields: Mapping[str, OutputColumn] | None = None
    text: str = ""

    def field(self, name: str) -> OutputColumn:
        """Return a field of the column."""
        if self.fields is not None and (column := self.fields.get(name.casefold())) is not None:
            return column
        return OutputColumn(name, with_transformation(self.value, "transformation"))


@dataclass(frozen=True)
class UnresolvedColumns:
    """Columns of a relation whose names are unknown.

    Attributes:
        inputs: inputs whose columns are passed on under their own names.
        value: further sources that any of the columns may have.
        excluded: lower-case names of columns that are excluded.
    """

    inputs: tuple[str, ...] = ()
    value: ValueSources = field(default_factory=dict)
    excluded: frozenset[str] = frozenset()

    def column(self, name: str) -> ValueSources:
        """Return the sources of a column with this name."""
        if not self.inputs:
            return self.value
        transformation: TransformationType = (
            "identity" if len(self.inputs) == 1 and not self.value else "unknown"
        )
        return merge_sources(
            {(relation, name): transformation for relation in self.inputs},
            with_transformation(self.value, transformation),
        )

    def all_sources(self) -> ValueSources:
        """Return the sources that any of the columns may have."""
        return merge_sources({(relation, ANY_COLUMN): "unknown" for relation in self.inputs}, self.value)


@dataclass(frozen=True)
class SqlRelation:
    """A table: an input, a step or a subquery.

    Attributes:
        columns: its columns in order.
        rows: its row dependencies.
        open: further columns with unknown names and positions.
    """

    columns: Sequence[OutputColumn]
    rows: RowDependencies = field(default_factory=dict)
    open: UnresolvedColumns | None = None

    def find(self, name: str) -> OutputColumn | None:
        """Return the column with this name; several columns with the same name are merged."""
        matches = [
            out for out in self.columns if out.name is not None and out.name.casefold() == name.casefold()
        ]
        if not matches:  # Spark generates a name for a column without one, like sum(x)
            matches = [
                out
                for out in self.columns
                if out.name is None and _normalize_name(out.text) == _normalize_name(name)
            ]
        if not matches and not name.isidentifier():
            matches = [replace(out, fields=None) for out in self.columns if out.name is None]
        if len(matches) > 1:
            return OutputColumn(name, merge_sources(*(out.value for out in matches)))
        return matches[0] if matches else None

    def unresolved_column(self, name: str) -> OutputColumn | None:
        """Return the column with this name among the columns with unknown names."""
        if self.open is None or name.casefold() in self.open.excluded:
            return None
        return OutputColumn(name, self.open.column(name))

    def drop_columns(self, names: Iterable[str]) -> SqlRelation:
        """Return the relation without the columns of these names."""
        removed = frozenset(name.casefold() for name in names)
        outs = [out for out in self.columns if out.name is None or out.name.casefold() not in removed]
        return replace(
            self,
            columns=outs,
            open=replace(self.open, excluded=self.open.excluded | removed) if self.open else None,
        )

    def all_sources(self) -> ValueSources:
        """Return the sources of all columns."""
        return merge_sources(
            *(out.value for out in self.columns), self.open.all_sources() if self.open else {}
        )

    def rename_columns(self, names: Sequence[str]) -> SqlRelation | None:
        """Return the relation with these column names, or None if the number of columns differs."""
        if self.open is not None:
            return SqlRelation(
                [OutputColumn(name, with_transformation(self.all_sources(), "unknown")) for name in names],
                self.rows,
            )
        if len(names) != len(self.columns):
            return None
        outs = [replace(out, name=name) for out, name in zip(self.columns, names, strict=True)]
        return replace(self, columns=outs)

    def column_sources(self, names: Sequence[str] | None) -> dict[str, ValueSources]:
        """Return the sources of each column. ``names`` are the known names of the result's columns."""
        sources: dict[str, ValueSources] = {}
        spelling: dict[str, str] = {}
        for out in self.columns:
            if out.name is not None or not names:
                name = out.name or out.text
                name = spelling.setdefault(name.casefold(), name)
                sources[name] = merge_sources(sources.get(name, {}), out.value)
        for name in names or ():
            if name.casefold() not in spelling:
                sources[name] = self._infer_sources(name)
        if self.open is not None and not names:
            sources[ANY_COLUMN] = self.open.all_sources()
        return sources

    def _infer_sources(self, name: str) -> ValueSources:
        """Return the sources of a column whose name is not in the query."""
        if (out := self.find(name)) is not None:
            return out.value
        unresolved = self.unresolved_column(name)
        nameless = [with_transformation(out.value, "unknown") for out in self.columns if out.name is None]
        return merge_sources(unresolved.value if unresolved else {}, *nameless)


def _normalize_name(text: str) -> str:
    """Normalize a generated column name: Spark adds brackets and backquotes."""
    return "".join(text.casefold().translate({ord(sign): None for sign in "`()"}).split())


def input_relations(inputs: Mapping[str, Sequence[str] | None]) -> dict[str, SqlRelation]:
    """Return the inputs of a query as relations by lower-case name."""
    relations: dict[str, SqlRelation] = {}
    for name, columns in inputs.items():
        if columns is None:
            relations[name.casefold()] = SqlRelation([], open=UnresolvedColumns((name,)))
        else:
            outs = [OutputColumn(column, {(name, column): "identity"}) for column in columns]
            relations[name.casefold()] = SqlRelation(outs)
    return relations
