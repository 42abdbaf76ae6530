"""What a screen pays for: the client is quick to import and brings no engine with it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import odf_engine
import odf_tui


def loaded_by(module: str) -> set[str]:
    script = f"import sys; import {module}; print('\\n'.join(sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_client_imports_neither_spark_nor_arrow_nor_the_worker():
    modules = loaded_by("odf_engine.worker.client")
    assert "msgspec" in modules
    for heavy in ("pyspark", "py4j", "pyarrow", "yaml", "textual", "importlib.metadata"):
        assert heavy not in modules
    for part in ("worker", "queue", "server", "operations", "spark_service"):
        assert f"odf_engine.worker.{part}" not in modules


def test_worker_module_imports_neither_spark_nor_arrow():
    modules = loaded_by("odf_engine.worker.process")
    for heavy in ("pyspark", "py4j", "pyarrow"):
        assert heavy not in modules


def test_requests_of_jobs_import_no_engine():
    loaded = loaded_by("odf_engine.jobs")
    assert "odf_engine.jobs.pull" in loaded
    packages = ("chain", "derive.run", "engines", "ingest", "rows.", "spark", "sync", "workspace")
    unwanted = tuple(f"odf_engine.{package}" for package in packages)
    assert not [name for name in loaded if name.startswith(unwanted)]


def test_lazy_modules_are_the_ones_that_type_checkers_see():
    lazy = 0
    for path in [*Path(odf_engine.__path__[0]).rglob("*.py"), *Path(odf_tui.__path__[0]).rglob("*.py")]:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.If) and (modules := lazy_modules(node.orelse)):
                assert modules.items() <= imported_modules(node.body).items(), path
                lazy += len(modules)
    assert lazy > 50


def lazy_modules(body: list[ast.stmt]) -> dict[str, str]:
    """Return our lazy modules by the variables that they are assigned to."""
    modules = {}
    for node in body:
        match node:
            case ast.Assign(
                [ast.Name(name)], ast.Call(ast.Name("LazyModule"), [ast.Constant(str(module))])
            ) if module.startswith("odf_"):
                modules[name] = module
    return modules


def imported_modules(body: list[ast.stmt]) -> dict[str, str]:
    """Return the imported names by their names in the module."""
    names = {}
    for node in body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.complete
def test_spark_is_ready_when_the_modules_of_the_first_pull_are_imported(tmp_path: Path):
    odf_engine.init(tmp_path)
    script = f"""
import sys
from pathlib import Path
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.worker.process import start_spark
SparkRuntime.start = lambda runtime: print(len(sys.modules.keys() & {{"pyspark", "pyarrow"}}))
start_spark(Path({str(tmp_path)!r}), lambda runtime: None)
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    before, after = done.stdout.splitlines()
    assert before == "0"
    modules = ("engines.spark_engine", "ingest.polling_source", "spark.readers", "spark.user_query")
    assert {f"odf_engine.{module}" for module in modules} <= set(after.split())


def test_decoding_blocks_imports_no_numpy_and_hashing_no_pandas():
    assert not loaded_by("odf_engine.metadata.flatbuffers") & {"flatbuffers", "numpy"}
    loaded = loaded_by("odf_engine.data.digest as digest; digest._null_and_empty()")
    assert "pyarrow" in loaded
    assert "pandas" not in loaded


def test_modules_of_schemas_and_slices_load_arrow_when_they_use_it():
    modules = ("data.parquet.slices", "workspace.definitions.definition_update", "sync.recorded_sync")
    for module in modules:
        assert "pyarrow" not in loaded_by(f"odf_engine.{module}")
