"""All columns of a workspace as a graph: from where to where their values go, over any number of datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from odf_engine.identity.did import DatasetId
from odf_engine.metadata.sql_columns import ANY, Columns, From, How
from odf_engine.workspace.column_lineage import DatasetColumns, all_columns
from odf_engine.workspace.lineage import Graph
from odf_engine.workspace.workspace import Workspace

ROWS: Final = ""
"""Stands for the rows of a dataset where a column would stand."""

_STRENGTH: Final[dict[How, int]] = {"identity": 0, "transformation": 1, "aggregation": 2, "unknown": 3}


class Place(NamedTuple):
    """A column of a dataset, by the dataset's id.

    ``source:`` and the id of a root dataset stands for what that reads, before its own query.
    """

    dataset: str
    column: str


class Link(NamedTuple):
    """A column has part in another one, or, where the target is :data:`ROWS`, in which rows there are."""

    source: Place
    target: Place
    how: How


class Reach(NamedTuple):
    """A column that another one is connected with.

    ``how`` is the most that is done on the way; ``steps`` counts datasets: 1 for a neighbour.
    """

    place: Place
    how: How
    steps: int


class ColumnGraph:
    """Columns and the links between them.

    Attributes:
        datasets: what is known of each, by its id; inputs that are not here have the columns that are
            asked of them, and roots have a source with what they read.
        links: all of them.
    """

    def __init__(self, datasets: Sequence[DatasetColumns]) -> None:
        self.datasets: dict[str, DatasetColumns] = {each.id: each for each in datasets}
        self.links: list[Link] = []
        self._into: dict[Place, list[Link]] = {}
        self._out_of: dict[Place, list[Link]] = {}
        self._spelled = {each.id: {name.casefold(): name for name in each.columns} for each in datasets}
        for each in datasets:
            self._add(each)

    def _add(self, each: DatasetColumns) -> None:
        sources = {feeder.alias: feeder.dataset for feeder in each.feeders}
        for target, value in [*each.lineage.outputs.items(), (ROWS, each.lineage.rows)]:
            for part in value:
                source = sources.get(part.input) if each.feeders else source_of(each.id)
                if source is not None:
                    self._link(Link(self._place(source, part, each), Place(each.id, target), part.how))

    def _link(self, link: Link) -> None:
        self.links.append(link)
        self._into.setdefault(link.target, []).append(link)
        self._out_of.setdefault(link.source, []).append(link)

    def _place(self, dataset: str, part: From, reader: DatasetColumns) -> Place:
        known = self.datasets.get(dataset)
        if known is None:
            name = next((each.name for each in reader.feeders if each.dataset == dataset), reader.name)
            known = DatasetColumns(dataset, name, [], [], Columns({}, []))
            self.datasets[dataset] = known
        spelled = self._spelled.setdefault(dataset, {})
        if part.column.casefold() not in spelled:
            spelled[part.column.casefold()] = part.column
            known.columns.append(part.column)
        return Place(dataset, spelled[part.column.casefold()])

    def is_here(self, dataset: str) -> bool:
        """Whether it is a dataset of the workspace: no source, and no input that is missing."""
        known = self.datasets.get(dataset)
        return known is not None and not dataset.startswith(_SOURCE) and bool(known.lineage.outputs)

    def into(self, place: Place) -> list[Link]:
        """What a column, or the rows of a dataset, come from at once."""
        return self._into.get(place, [])

    def out_of(self, place: Place) -> list[Link]:
        """Where a column goes at once."""
        return self._out_of.get(place, [])

    def upstream(self, *places: Place) -> dict[Place, Reach]:
        """Everything that the values of columns can come from, nearest first."""
        return self._reach(places, self._into, up=True)

    def downstream(self, *places: Place) -> dict[Place, Reach]:
        """Everything that the values of columns can go to, nearest first, and to which rows."""
        return self._reach(places, self._out_of, up=False)

    def _reach(
        self, places: Sequence[Place], links: Mapping[Place, list[Link]], *, up: bool
    ) -> dict[Place, Reach]:
        found: dict[Place, Reach] = {}
        todo = [Reach(place, "identity", 0) for place in places]
        while todo:
            here, todo = todo, []
            for reach in here:
                for link in links.get(reach.place, ()):
                    place_ = link.source if up else link.target
                    how = _more(reach.how, link.how)
                    old = found.get(place_)
                    if old is None:
                        found[place_] = Reach(place_, how, reach.steps + 1)
                        todo.append(found[place_])
                    elif _more(old.how, how) != old.how:
                        found[place_] = old._replace(how=_more(old.how, how))
                        todo.append(found[place_])  # what comes behind it learns of it, too
        return found


_SOURCE: Final = "source:"


def source_of(dataset: str) -> str:
    """What stands for that which a root dataset reads."""
    return _SOURCE + dataset


def is_source(dataset: str) -> bool:
    """Whether this stands for what a root dataset reads."""
    return dataset.startswith(_SOURCE)


def _more(one: How, other: How) -> How:
    """The more of two; what decides about rows is said as it is."""
    if other not in _STRENGTH:
        return other
    return max(one, other, key=lambda how: _STRENGTH.get(how, 0)) if one in _STRENGTH else one


def column_graph(workspace: Workspace, around: Iterable[DatasetId] | None = None) -> ColumnGraph:
    """The columns of all datasets, or of these and of all that they are made of, and that is made of them."""
    entries = workspace.datasets()
    if around is not None:
        graph = Graph(workspace.summaries(entries))
        wanted = set(around)
        for dataset in list(wanted):
            wanted |= graph.upstream(dataset) | graph.downstream(dataset)
        entries = [entry for entry in entries if entry.id in wanted]
    return ColumnGraph(all_columns(workspace, entries))


__all__ = ["ANY", "ROWS", "ColumnGraph", "Link", "Place", "Reach", "column_graph", "is_source", "source_of"]
