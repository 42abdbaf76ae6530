"""Runs benchmarks, and prints one table of the results.

The modules in the subfolders are the benchmarks; they share the modules of this folder. A benchmark has
``METRICS``, which name what is measured, the baseline and the goal, and a function ``run(size, folder)``,
which returns the figures. It runs in a separate process.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.measure import Figure, Metric, Size, Unavailable, run_benchmark, run_in_process

FOLDER = Path(__file__).parent
BENCHMARKS = {
    path.stem: f"tests.bench.{path.parent.name}.{path.stem}" for path in sorted(FOLDER.glob("*/*.py"))
}
RESULTS = {None: "no goal", True: "[green]met[/]", False: "[red]not met[/]"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run (default: all)")
    parser.add_argument("--list", action="store_true", help="list the metrics, run nothing")
    parser.add_argument("--quick", action="store_true", help="use little data, to check that benchmarks work")
    arguments = parser.parse_args()
    names = arguments.names or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"unknown: {', '.join(unknown)} (known: {', '.join(BENCHMARKS)})")
    console = Console(width=None if sys.stdout.isatty() else 150)
    if arguments.list:
        for name in arguments.names:
            print(f"{name}: {importlib.import_module(BENCHMARKS[name]).__doc__}")
        console.print(list_metrics(names))
        return 0
    return run(names, Size.QUICK if arguments.quick else Size.FULL, console)


def new_table(*columns: str) -> Table:
    table = Table()
    for column in columns:
        is_number = column in ("measured", "baseline", "ratio", "CPU ratio")
        table.add_column(column, justify="right" if is_number else "left", no_wrap=is_number)
    return table


def list_metrics(names: list[str]) -> Table:
    """Return the metrics of benchmarks as a table."""
    table = new_table("benchmark", "what is measured", "compared with", "goal")
    for name in names:
        metrics: dict[str, Metric] = importlib.import_module(BENCHMARKS[name]).METRICS
        for number, metric in enumerate(metrics.values()):
            table.add_row("" if number else name, metric.what, metric.baseline, metric.goal)
        table.add_section()
    return table


def run(names: list[str], size: Size, console: Console) -> int:
    """Run benchmarks, and print their figures. Returns 1 if a benchmark failed or a goal is not met."""
    table = new_table(
        "benchmark", "what is measured", "measured", "compared with", "baseline", "ratio", "CPU ratio",
        "goal", "result",
    )  # fmt: skip
    if size is Size.QUICK:
        table.caption = "Little data: the goals are for the full sizes."
    failed = False
    for number, name in enumerate(names, 1):
        print(f"{name} ({number} of {len(names)})", file=sys.stderr, flush=True)
        try:
            figures = run_in_process(run_benchmark, BENCHMARKS[name], size)
        except Unavailable as error:
            table.add_row(name, f"not run: {error}")
        except Exception as error:
            failed = True
            traceback.print_exception(error.__cause__ or error)  # the cause is the error of the process
            table.add_row(name, f"[red]failed: {type(error).__name__}[/]")
        else:
            failed |= size is Size.FULL and any(figure.is_met is False for figure in figures)
            for row, figure in enumerate(figures):
                table.add_row("" if row else name, *cells(figure, size))
        table.add_section()
    console.print(table)
    return int(failed)


def cells(figure: Figure, size: Size) -> list[str]:
    """Return the cells of a row."""
    metric = figure.metric
    ratios = [format_ratio(ratio) for ratio in (figure.ratio, figure.cpu_ratio)]
    result = RESULTS[figure.is_met] if size is Size.FULL or figure.is_met is None else ""
    return [
        metric.what, metric.format(figure.measured), metric.baseline, metric.format(figure.baseline),
        *ratios, metric.goal, result,
    ]  # fmt: skip


def format_ratio(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


if __name__ == "__main__":
    sys.exit(main())
