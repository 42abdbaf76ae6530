"""Text and HTML of workspaces, datasets and results, without Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import odf_engine as odf
from odf_engine.base.html_text import fields_html, table_html
from odf_engine.derive.verify.model import IntegrityFinding
from odf_engine.errors import BadData, Cancelled, Conflict, NotFound
from odf_engine.worker.job_queue import failure_of
from odf_engine.worker.protocol import Failure

MANIFEST = "{kind: DatasetSnapshot, version: 1, content: {name: my.cases, kind: Root, metadata: []}}"


@pytest.fixture
def workspace(tmp_path: Path) -> odf.Workspace:
    workspace = odf.init(tmp_path / "ws", in_process=True)
    path = tmp_path / "cases.yaml"
    path.write_text(MANIFEST)
    workspace.add(str(path))  # a path as text
    return workspace


def test_missing_manifest_raises_not_found(workspace: odf.Workspace) -> None:
    with pytest.raises(NotFound, match="cannot be read"):
        workspace.add("other.yaml")


def test_workspace_and_dataset_have_text_and_html(workspace: odf.Workspace) -> None:
    assert repr(workspace) == f"<Workspace {workspace.folder}: 1 dataset>"
    html = workspace._repr_html_()
    assert "<td>my.cases</td><td>root</td><td>1</td><td>0</td>" in html and "<th>rows</th>" in html
    dataset = workspace["my.cases"]
    assert repr(dataset) == "<Dataset my.cases (root)>"
    html = dataset._repr_html_()
    assert f"<th>head</th><td>{dataset.head}</td>" in html and dataset.id in html


def test_a_damaged_dataset_is_displayed(workspace: odf.Workspace) -> None:
    folder = workspace["my.cases"]._entry.dataset.folder
    (folder / "refs" / "head").write_text(f"f1620{'00' * 32}")
    reopened = odf.open(workspace.folder)
    assert "my.cases" in reopened._repr_html_()
    assert "<th>problem</th>" in reopened["my.cases"]._repr_html_()


def test_results_have_escaped_html_without_unset_fields() -> None:
    html = odf.PullResult("my.<cases>", "updated", records=12345)._repr_html_()
    assert "<td>my.&lt;cases&gt;</td>" in html and "<th>records</th><td>12,345</td>" in html
    assert "UNSET" not in html and "old head" not in html  # fields without a value
    report = odf.VerifyResult("a", valid=False, findings=[IntegrityFinding("slice", "f1", "damaged\x1b[2J")])
    html = report._repr_html_()
    assert "<th>findings</th><td>1</td>" in html and "<td>damaged\\x1b[2J</td>" in html
    assert repr(odf.PushResult("a", blocks=2)).startswith("PushResult(name='a'")


def test_html_tables_escape_text_and_format_values() -> None:
    assert table_html(["a"], [[None], [True], [1234]], "<t>", "1 more row") == (
        "<p>&lt;t&gt;</p><table><thead><tr><th>a</th></tr></thead><tbody><tr><td></td></tr>"
        "<tr><td>True</td></tr><tr><td>1,234</td></tr></tbody></table><p>… 1 more row</p>"
    )
    assert fields_html([("a", 0), ("b", None), ("c", [])]) == (
        "<table><tbody><tr><th>a</th><td>0</td></tr></tbody></table>"
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("BadData", BadData),
        ("Conflict", Conflict),
        ("Cancelled", Cancelled),
        ("Final", odf.OdfError),
        ("", odf.OdfError),
    ],
)
def test_failures_become_errors(kind: str, expected: type[Exception]) -> None:
    error = Failure("no", "try", "here", 4, ["1", "line"], kind).to_error()
    assert type(error) is expected and str(error) == "here: no"
    assert (error.hint, error.exit_code, error.excerpt) == ("try", 4, ("1", "line"))


def test_a_failure_has_the_nearest_public_class() -> None:
    class RejectedCell(BadData):
        """An error of one module."""

    assert failure_of(RejectedCell("no"), None).to_error().__class__ is BadData  # type: ignore[arg-type]


def test_the_packages_are_typed() -> None:
    for package in ("odf_engine", "odf_tui"):
        assert (Path(__file__).parents[2] / package / "py.typed").is_file()


def test_help_lists_the_methods() -> None:
    script = "import odf_engine as odf; help(odf.Dataset)"
    text = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    for name in ("scan", "latest", "as_of", "pull", "ingest", "push", "verify", "provenance", "blocks"):
        assert f" {name}(self" in text
    assert ">>> " in text and "typing." not in text
