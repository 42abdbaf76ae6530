"""Which columns of the inputs the values in some columns come from, by the queries that made the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from odf_engine.chain.columns import column_names
from odf_engine.errors import OdfError
from odf_engine.metadata.model import SqlQueryStep
from odf_engine.metadata.sql_columns import ANY, Columns, From, columns_of
from odf_engine.provenance.words import listed
from odf_engine.workspace.column_lineage import lineage_of
from odf_engine.workspace.workspace import DatasetEntry, Workspace

if TYPE_CHECKING:
    from odf_engine.provenance.step import StepOf

Wanted = tuple[str, ...] | None
"""Names of columns; None for whole rows."""


class Cells:
    """What feeds some columns of rows.

    Args:
        workspace: where the inputs are.
        entry: a derivative dataset.
        steps: how its rows were made.
        wanted: its columns in question.

    Attributes:
        how: what is to be said of the columns, in words.
    """

    def __init__(
        self, workspace: Workspace, entry: DatasetEntry, steps: Sequence[StepOf], wanted: Wanted
    ) -> None:
        state = entry.dataset.state()
        vocab = state.vocabulary
        made_here = {vocab.offset_column, vocab.system_time_column}
        # What the system gives each row is of the whole row.
        self._whole = wanted is None or bool(made_here.intersection(wanted))
        self._found: dict[str, dict[tuple[str, str], None]] = {}
        self.how: list[str] = []
        if wanted is None or self._whole:
            return
        outputs = [
            name for name in column_names(state.schema, state.odf_schema) or [] if name not in made_here
        ]
        current = None if state.transform is None else _texts(state.transform.transform.queries or ())
        queries = {tuple(each.query): each for each in steps}
        for query, each in queries.items():
            if list(query) == current:
                columns = lineage_of(workspace, entry)
            else:  # a query of the past
                columns = _columns(workspace, query, each, outputs)
            for name in wanted:
                for found in columns.outputs.get(name, columns.outputs.get(ANY, [])):
                    self._note(found)
            if columns.problem is not None:
                self.how.append(f"which columns it is made of cannot be told: {columns.problem}")
        self._say(wanted, steps)

    def has_part(self, alias: str) -> bool:
        """Whether values of an input are among those that were made to the ones in question."""
        return self._whole or not self._found or alias.casefold() in self._found

    def of(self, alias: str) -> list[tuple[str, str]]:
        """The columns of an input and how they have part; none for whole rows."""
        return list(self._found.get(alias.casefold(), ()))

    def _note(self, found: From) -> None:
        self._found.setdefault(found.input.casefold(), {})[(found.column, found.how)] = None

    def _say(self, wanted: tuple[str, ...], steps: Sequence[StepOf]) -> None:
        names = listed(wanted)
        if not self._found:
            self.how.append(f"{names} has no value of an input: it follows from which rows there are")
            return
        fed = dict.fromkeys(alias for each in steps for alias, _, runs in each.feeds if runs)
        for alias in fed:
            if not self.has_part(alias):
                self.how.append(f"rows of {alias} decide which rows there are, not what {names} is")


def read_from(workspace: Workspace, entry: DatasetEntry, wanted: Wanted) -> list[str]:
    """What columns of a root dataset are made of, by the queries of its sources, in words."""
    lineage = lineage_of(workspace, entry)
    lines: list[str] = []
    for name in wanted or ():
        found = lineage.outputs.get(name, ())
        if found and all(each.column == name and each.how == "identity" for each in found):
            lines.append(f"{name} is as it was read")
        elif found:
            read = listed(list(dict.fromkeys(f"{each.column} ({each.how})" for each in found)))
            lines.append(f"{name} is made of what was read as {read}")
    return lines


def _texts(steps: Sequence[SqlQueryStep]) -> list[tuple[str, str]]:
    return [(each.alias or "", each.query) for each in steps]


def _columns(
    workspace: Workspace, query: Sequence[tuple[str, str]], step: StepOf, outputs: Sequence[str]
) -> Columns:
    inputs: dict[str, list[str] | None] = {}
    times: dict[str, str] = {}
    for alias, dataset, _ in step.feeds:
        try:
            state = workspace.resolve(dataset).dataset.state()
        except OdfError:
            inputs[alias] = None
            continue
        inputs[alias] = column_names(state.schema, state.odf_schema)
        times[alias] = state.vocabulary.event_time_column
    queries = [SqlQueryStep(alias=alias or None, query=text) for alias, text in query]
    return columns_of(queries, inputs, outputs=outputs, times=times)
