"""What a screen pays for: the client is quick to import and brings no engine with it."""

from __future__ import annotations

import subprocess
import sys


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


def test_decoding_blocks_imports_no_numpy_and_hashing_no_pandas():
    assert not loaded_by("odf_engine.metadata.flatbuffers") & {"flatbuffers", "numpy"}
    loaded = loaded_by("odf_engine.data.digest as digest; digest._null_and_empty()")
    assert "pyarrow" in loaded
    assert "pandas" not in loaded


def test_modules_of_schemas_and_slices_load_arrow_when_they_use_it():
    modules = ("data.parquet.slices", "workspace.definitions.definition_update", "sync.recorded_sync")
    for module in modules:
        assert "pyarrow" not in loaded_by(f"odf_engine.{module}")
