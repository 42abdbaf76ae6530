"""The notebook of the tour runs from top to bottom, and displays what it promises."""

from __future__ import annotations

import os
from pathlib import Path

import nbclient
import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager

pytestmark = pytest.mark.spark

_PATH = Path(__file__).with_name("tour.ipynb")
_ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 300


def test_the_stored_notebook_has_no_outputs() -> None:
    notebook = nbformat.read(_PATH, as_version=4)
    nbformat.validate(notebook)
    assert [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")] == []


@pytest.mark.complete
def test_tour_runs_and_displays_its_results(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    notebook = nbformat.read(_PATH, as_version=4)
    sockets = tmp_path_factory.mktemp("k")  # short, since paths of sockets are limited to 107 bytes
    kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=str(sockets / "ipc"))
    resources = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(notebook, km=kernel, timeout=_SECONDS, resources=resources)
    path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
    client.execute(env={**os.environ, "PYTHONPATH": path})  # an error in a cell is raised

    outputs = {cell.id: cell.outputs for cell in notebook.cells if "outputs" in cell}
    ingest = outputs["ingest"]
    assert [each.output_type for each in ingest] == ["display_data", "execute_result"]
    progress, result = (each.data for each in ingest)
    assert progress["text/html"].startswith("ingest tour.cases: done in ")
    assert "<th>records</th><td>20</td>" in result["text/html"]
    shown = {name: found[-1].data for name, found in outputs.items() if found and "data" in found[-1]}
    assert "<th>rows</th>" in shown["open"]["text/html"]
    assert "<td>tour.cases</td>" in shown["create"]["text/html"]
    table = shown["rows"]
    assert "<td>north</td>" in table["text/html"] and "21 rows" in table["text/plain"]
    assert "tour.cases" in shown["trace"]["text/html"]
    assert "<th>valid</th><td>True</td>" in shown["verify"]["text/html"]
    assert "BadData" in outputs["error"][-1].text
    streams = [each for found in outputs.values() for each in found if each.output_type == "stream"]
    assert {stream.name for stream in streams} == {"stdout"}  # no warnings
