"""What a screen pays for: the client is quick to import and brings no engine with it."""

from __future__ import annotations

import subprocess
import sys


def loaded_by(module: str) -> set[str]:
    script = f"import sys; import {module}; print('\\n'.join(sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_client_imports_neither_spark_nor_arrow_nor_the_worker():
    modules = loaded_by("odf_engine.coordinator.client")
    assert "msgspec" in modules
    for heavy in ("pyspark", "py4j", "pyarrow", "yaml", "textual", "importlib.metadata"):
        assert heavy not in modules
    for part in ("worker", "queue", "server", "operations", "spark_service"):
        assert f"odf_engine.coordinator.{part}" not in modules


def test_worker_module_imports_neither_spark_nor_arrow():
    modules = loaded_by("odf_engine.coordinator.worker")
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


def test_every_kind_of_job_has_its_work_which_imports_no_spark():
    """PySpark is imported after Spark has started: two threads must not import it at the same time."""
    script = "odf_engine.jobs as jobs; [jobs.base.find_work(kind) for kind in jobs.JOB_KINDS.values()]"
    loaded = loaded_by(script)
    assert "odf_engine.jobs.work.pull" in loaded
    assert not loaded & {"pyspark", "py4j"}


def test_requests_of_jobs_import_nothing_of_their_work():
    loaded = loaded_by("odf_engine.jobs")
    unwanted = ("odf_engine.jobs.work.", "odf_engine.workspace.", "odf_engine.chain.", "odf_engine.transform")
    assert not [name for name in loaded if name.startswith(unwanted)]
