"""The start of the workstation does not load what the first paint does not need."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

from odf_tui import cli

_HEAVY = ("pyspark", "py4j", "grpc", "aiohttp", "pyarrow", "yaml", "numpy", "pandas", "obstore")
_ROW_COMMANDS = {"diff", "digest", "late", "preview", "provenance", "schema", "sql", "tail"}


def _loaded(module: str) -> set[str]:
    script = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_entry_point_loads_no_heavy_modules() -> None:
    assert not _loaded("odf_tui.main") & {*_HEAVY, "textual", "rich"}


def test_the_first_paint_needs_no_spark_no_arrow_and_no_network() -> None:
    loaded = _loaded("odf_engine.api.workspace, odf_tui.app")
    assert "textual" in loaded
    assert not loaded & set(_HEAVY)


def test_the_first_paint_loads_no_feature_and_no_dialog_of_a_pane() -> None:
    """Controllers of panes are loaded at the start; a feature by the first of its actions."""
    loaded = _loaded("odf_tui.app")
    assert "odf_tui.panes.jobs.controller" in loaded
    unwanted = (
        "odf_tui.features.",
        "odf_tui.help",
        "odf_tui.cli",
        "odf_engine.chain",
        "odf_engine.workspace.",
    )
    assert not [name for name in loaded if name.startswith(unwanted) or name.endswith("_dialogs")]


def test_commands_that_read_no_rows_load_no_heavy_modules() -> None:
    names = [module.name for module in pkgutil.iter_modules(cli.__path__) if not module.ispkg]
    light = sorted({*names} - _ROW_COMMANDS)
    assert len(light) > 40
    loaded = _loaded(", ".join(f"odf_tui.cli.{name}" for name in light))
    assert not loaded & ({*_HEAVY} - {"yaml"})
