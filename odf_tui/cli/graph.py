"""Show the lineage of datasets or columns.

With --columns, shows the columns of the datasets NAMES, or of all datasets. Column lineage is
computed from the queries; no data is read. All columns that contribute to a value are shown. If a
query cannot be analysed, this is reported, and each column may depend on every input column.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from odf_engine.api import ROWS, ColumnEdge, ColumnGraph, ColumnRef, DatasetColumns, is_source
from odf_engine.api.text import printable
from odf_engine.api.workspace import Workspace
from odf_engine.errors import UsageError
from odf_tui.cli.shared.datasets import NO_DATASETS
from odf_tui.cli.shared.options import DATASET, define_command, options_of
from odf_tui.cli.shared.output import Table, print_note, select_fields, show, write_document
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.text.graphviz import column_graph_to_dot, dataset_graph_to_dot
from odf_tui.text.lineage_text import column_rows, dataset_graph_lines

ORDER = 110
MEANINGS = "tree lineage dag deps dependencies"


def _show_columns(workspace: Workspace, names: Sequence[str], *, dot: bool) -> None:
    """Print the columns of datasets and their lineage; of all datasets, or of those with these names."""
    datasets = workspace.match(names) if names else list(workspace)
    ids = [dataset.id for dataset in datasets]
    graph = workspace.column_graph(*(ids if names else ()))
    if dot:
        write_document(column_graph_to_dot(graph, ids))
        return
    table = Table(["dataset", "column", "from", "type"], list(column_rows(graph, ids)), empty=NO_DATASETS)
    show({"datasets": [_columns_json(graph, graph.datasets[dataset]) for dataset in ids]}, table)
    for dataset in datasets if not options_of().json else ():
        if problem := graph.datasets[dataset.id].lineage.problem:
            print_note(f"{dataset.name}: {printable(problem)}; each column may depend on every input column")


def _columns_json(graph: ColumnGraph, dataset: DatasetColumns) -> dict[str, Any]:
    """Return the columns of a dataset for JSON; ``how`` is a term of OpenLineage's column lineage."""
    outputs = [
        {
            "name": column,
            "from": [_link_json(graph, link) for link in graph.inputs_of(ColumnRef(dataset.id, column))],
        }
        for column in dataset.columns
    ]
    return {
        "id": dataset.id,
        "name": dataset.name,
        "columns": outputs,
        "rows": [_link_json(graph, link) for link in graph.inputs_of(ColumnRef(dataset.id, ROWS))],
        "problem": dataset.lineage.problem,
    }


def _link_json(graph: ColumnGraph, link: ColumnEdge) -> dict[str, Any]:
    if is_source(link.source.dataset):
        return {"source": True, "column": link.source.column, "how": link.how}
    source = graph.datasets[link.source.dataset]
    return {"dataset": source.name, "id": source.id, "column": link.source.column, "how": link.how}


@define_command("graph", help=__doc__, example="odf graph --dot | dot -Tsvg > graph.svg", json=True)
@click.argument("names", nargs=-1, type=DATASET)
@click.option("--columns", is_flag=True, help="Show column lineage.")
@click.option("--dot", is_flag=True, help="Print a Graphviz document.")
def command(names: tuple[str, ...], columns: bool, dot: bool) -> None:
    if dot and options_of().json:
        raise UsageError("--json and --dot exclude each other", hint="use only one of them")
    if columns:
        _show_columns(open_workspace(), names, dot=dot)
        return
    if names:
        raise UsageError("NAMES require --columns", hint="use --columns, or no names to show all datasets")
    summaries = open_workspace().summaries()
    datasets = [(summary.name, summary.kind) for summary in summaries]
    names_by_id = {summary.id: summary.name for summary in summaries}
    edges = [
        (names_by_id.get(source, str(source)), summary.name)
        for summary in summaries
        for source in summary.inputs
    ]
    if dot:
        write_document(dataset_graph_to_dot(datasets, edges))
        return
    document = {
        "datasets": [select_fields(summary, "id", "name", "kind") for summary in summaries],
        "edges": [{"from": source, "to": target} for source, target in edges],
    }
    show(
        document, lambda: sys.stdout.writelines(f"{line}\n" for line in dataset_graph_lines(datasets, edges))
    )
