"""What a screen pays for: the client is quick to import and brings no engine with it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from odf_engine import init, on_demand


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
    packages = ("chain", "derive.run", "engines", "ingest", "rows", "spark", "sync", "workspace")
    unwanted = tuple(f"odf_engine.{package}" for package in packages)
    assert not [name for name in loaded if name.startswith(unwanted)]


def test_modules_on_demand_are_the_declared_ones():
    tree = ast.parse(Path(on_demand.__file__).read_text(encoding="utf-8"))
    (branch,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in branch.body if isinstance(node, ast.ImportFrom)]
    declared = {alias.asname: f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    modules = vars(on_demand).items()
    lazy = {name: value._name for name, value in modules if isinstance(value, on_demand.LazyModule)}
    assert lazy == declared


@pytest.mark.complete
def test_spark_is_ready_when_the_modules_of_the_first_pull_are_imported(tmp_path: Path):
    init(tmp_path)
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
