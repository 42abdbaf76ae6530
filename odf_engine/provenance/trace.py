"""Where rows of a dataset come from, through all steps down to root rows and their sources.

The answer is a tree, see :mod:`odf_engine.workspace.traced`. It goes as far as what is here allows: an
input that is not in the workspace, or whose files are damaged, ends a branch with what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from odf_engine.chain.columns import column_names
from odf_engine.chain.state import ChainState
from odf_engine.data.conform import find_columns
from odf_engine.errors import Cancelled, InvalidSchema, NotFound, OdfError, UsageError
from odf_engine.metadata.model import DatasetKind
from odf_engine.metadata.sql_columns import ANY
from odf_engine.progress import Reporter
from odf_engine.provenance.cells import Cells, Wanted, read_from
from odf_engine.provenance.earlier import Changes
from odf_engine.provenance.roots import origin_of
from odf_engine.provenance.step_folding import folded
from odf_engine.provenance.words import operations
from odf_engine.workspace.traced import Feed, Made, Run, Step, count_of
from odf_engine.workspace.workspace import DatasetEntry, Workspace

if TYPE_CHECKING:
    from odf_engine.provenance.step import StepOf
    from odf_engine.spark.session import SparkRuntime

_MOST_REASONS: Final = 3


class Tracer:
    """Finds out where rows come from.

    Args:
        workspace: where the datasets are.
        spark: starts Spark when a query has to be run again, which rows of roots do not need.
        reporter: hears of phases and amounts, and is asked whether to stop.
    """

    def __init__(
        self, workspace: Workspace, spark: Callable[[Reporter], SparkRuntime], reporter: Reporter
    ) -> None:
        self._workspace = workspace
        self._spark = spark
        self._reporter = reporter
        self._known: dict[tuple[str, tuple[Run, ...], Wanted, int | None], Step] = {}
        self._found: dict[tuple[str, tuple[Run, ...]], list[StepOf]] = {}

    def trace(
        self,
        entry: DatasetEntry,
        runs: Sequence[Run],
        column: str | None = None,
        depth: int | None = None,
    ) -> Step:
        """Where rows come from.

        Args:
            entry: the dataset.
            runs: offsets of its rows, the last ones inclusive.
            column: the values of which column; by default whole rows.
            depth: so many datasets up; by default as far as it goes.

        Raises:
            UsageError: there are no such rows, or there is no such column.
            OdfError: the chain of the dataset, or a slice of it, cannot be read.
            Cancelled: in the middle.
        """
        if depth is not None and depth < 1:
            raise UsageError("a trace goes at least one dataset up", hint="--depth 1, or leave it out")
        state = entry.dataset.state()
        asked = check_rows(entry, state, runs)
        wanted: Wanted = None if column is None else (check_column(entry, state, column),)
        return self._step(entry, asked, wanted, depth)

    def check(self, entry: DatasetEntry, step: Step) -> list[str]:
        """Whether the newest step of an answer holds, see :func:`odf_engine.provenance.checked.checked`.

        Args:
            entry: the dataset that was asked about.
            step: what :meth:`trace` said of it.

        Raises:
            Cancelled: in the middle.
        """
        found = self._found.get((step.dataset, tuple(step.runs)))
        if found is None:
            return ["not checked: the rows of a root dataset come from outside, and nothing made them here"]
        spark = self._spark(self._reporter)
        from odf_engine.provenance.checked import checked
        from odf_engine.transform.engines import engines_for

        self._reporter.phase("check")
        with engines_for(self._workspace, entry, spark) as engine:
            return checked(self._workspace, entry, found, engine, self._reporter)

    def _step(self, entry: DatasetEntry, runs: list[Run], wanted: Wanted, depth: int | None) -> Step:
        key = str(entry.id), tuple(runs), wanted, depth
        if (known := self._known.get(key)) is None:
            self._reporter.phase("trace")
            self._reporter.line(f"{entry.alias}: {count_of(runs):,} rows")
            root = entry.dataset.state().kind is DatasetKind.Root
            known = (
                self._of_root(entry, runs, wanted)
                if root
                else self._of_derivative(entry, runs, wanted, depth)
            )
            self._known[key] = known
        return known

    def _of_root(self, entry: DatasetEntry, runs: list[Run], wanted: Wanted) -> Step:
        found = origin_of(entry.dataset, runs, self._reporter)
        return Step(
            dataset=str(entry.id),
            name=str(entry.alias),
            kind="root",
            runs=runs,
            rows=count_of(runs),
            made=found.made,
            how=[*found.how, *read_from(self._workspace, entry, wanted)],
            sources=found.sources,
            earlier=found.earlier,
        )

    def _of_derivative(self, entry: DatasetEntry, runs: list[Run], wanted: Wanted, depth: int | None) -> Step:
        changes = Changes(entry.dataset, runs, self._reporter)
        spark = self._spark(self._reporter)
        # Once Spark has started: its modules import each other in circles.
        from odf_engine.provenance.elsewhere import ask_elsewhere
        from odf_engine.provenance.step import step

        found = step(self._workspace, entry, runs, spark, self._reporter)
        found = ask_elsewhere(self._workspace, entry, found, spark, self._reporter)
        self._found[str(entry.id), tuple(runs)] = found
        cells = Cells(self._workspace, entry, found, wanted)
        return Step(
            dataset=str(entry.id),
            name=str(entry.alias),
            kind="derivative",
            runs=runs,
            rows=count_of(runs),
            made=[_made(each) for each in found],
            how=[
                *operations(changes.counts),
                *_once(line for each in found for line in each.how),
                *cells.how,
            ],
            exact=all(each.exact for each in found),
            reason=_reasons(found),
            feeds=self._feeds(found, cells, depth),
            earlier=changes.earlier(()),
        )

    def _feeds(self, steps: Sequence[StepOf], cells: Cells, depth: int | None) -> list[Feed]:
        merged: dict[tuple[str, str], list[Run]] = {}
        for each in steps:
            for alias, dataset, runs in each.feeds:
                merged.setdefault((alias, dataset), []).extend(runs)
        feeds: list[Feed] = []
        for (alias, dataset), runs in merged.items():
            if runs and cells.has_part(alias):
                feeds.append(self._feed(alias, dataset, folded(runs), cells, depth))
        return feeds

    def _feed(self, alias: str, dataset: str, runs: list[Run], cells: Cells, depth: int | None) -> Feed:
        columns = cells.of(alias)
        try:
            entry = self._workspace.resolve(dataset)
        except NotFound:
            problem = (
                f"{alias} is not in this workspace: pull it to go on (odf pull --from; its id is {dataset})"
            )
            end = Step(dataset, alias, "root", runs, count_of(runs), problem=problem)
            return Feed(alias, dataset, alias, runs, count_of(runs), columns, missing=True, step=end)
        deeper = None
        if depth is None or depth > 1:
            wanted = None if not columns or ANY in dict(columns) else tuple(name for name, _ in columns)
            deeper = self._deeper(entry, runs, wanted, None if depth is None else depth - 1)
        return Feed(alias, dataset, str(entry.alias), runs, count_of(runs), columns, step=deeper)

    def _deeper(self, entry: DatasetEntry, runs: list[Run], wanted: Wanted, depth: int | None) -> Step:
        """The step of an input; whatever is wrong there ends this branch and no other."""
        problem: str | None = None
        kind = "root"
        try:
            state = entry.dataset.state()
            kind = "root" if state.kind is DatasetKind.Root else "derivative"
            last = -1 if state.last_offset is None else state.last_offset
            if runs[-1][1] <= last:
                return self._step(entry, runs, wanted, depth)
            problem = f"{entry.alias} ends at offset {last} here: pull it to go on"
        except Cancelled:
            raise
        except OdfError as error:
            self._reporter.check()
            problem = error.in_full
        return Step(str(entry.id), str(entry.alias), kind, runs, count_of(runs), problem=problem)


def _made(step: StepOf) -> Made:
    return Made(
        block=step.block,
        sequence_number=step.sequence_number,
        system_time=str(step.system_time),
        runs=step.runs,
        query=step.query,
        engine=step.engine,
    )


def _once(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(lines))


def _reasons(steps: Sequence[StepOf]) -> str | None:
    """Why steps are not exact."""
    reasons = _once(each.reason or "it is not known why" for each in steps if not each.exact)
    more = f"; and {len(reasons) - _MOST_REASONS} more reasons" if len(reasons) > _MOST_REASONS else ""
    return "; ".join(reasons[:_MOST_REASONS]) + more if reasons else None


def check_rows(entry: DatasetEntry, state: ChainState, runs: Sequence[Run]) -> list[Run]:
    """The runs in order.

    Raises:
        UsageError: there are none, or not such rows.
    """
    last = state.last_offset
    if last is None:
        raise UsageError(f"{entry.alias} has no rows yet", hint="odf pull or odf ingest brings some in")
    if not runs:
        raise UsageError("which rows?", hint="an offset, or a range of them such as 10..20")
    for first, end in runs:
        if first > end:
            raise UsageError(f"the rows {first}..{end}: the first comes after the last")
        if first < 0 or end > last:
            wrong = first if first < 0 or first > last else end
            raise UsageError(
                f"{entry.alias} has no row {wrong}: its offsets are 0 to {last}",
                hint=f"odf tail {entry.alias} shows the newest rows with their offsets",
            )
    return folded(runs)


def check_column(entry: DatasetEntry, state: ChainState, column: str) -> str:
    """The name of a column as the dataset writes it.

    Raises:
        UsageError: there is none of this name.
    """
    names = column_names(state.schema, state.odf_schema) or []
    try:
        (place,) = find_columns(names, [column])
    except InvalidSchema as error:
        raise UsageError(error.message) from None
    if place is not None:
        return names[place]
    folded = {name.casefold(): name for name in names}
    close = get_close_matches(column.casefold(), folded, 1)
    hint = f"did you mean {folded[close[0]]}?" if close else f"there are {', '.join(names)}"
    raise UsageError(f"{entry.alias} has no column '{column}'", hint=hint)
