"""The requests of pull and verify, and the reports of verify, without a worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from odf_engine.errors import UsageError
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.verify import Verify
from odf_engine.metadata.model import SetInfo
from odf_engine.metadata.yaml import read_manifests
from odf_engine.worker.protocol import Job, JobState, Request
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.shared.root import odf as odf_group

MANIFESTS = """
kind: DatasetSnapshot
version: 1
content: {name: rain, kind: Root, metadata: []}
---
kind: DatasetSnapshot
version: 1
content:
  name: wet-days
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: rain}]
      transform: {kind: Sql, engine: spark, query: SELECT * FROM rain}
"""


class Odf:
    """The command, with jobs that end at once with these results."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.workspace = Workspace.init(folder)
        self.workspace.add(read_manifests(MANIFESTS, "test"))
        self.asked: list[Request] = []
        self.results: dict[str, dict[str, Any]] = {}
        for module in ("pull", "verify"):
            monkeypatch.setattr(f"odf_tui.cli.{module}.follow", self._follow)

    def _follow(self, workspace: Workspace, requests: list[tuple[Request, str]]) -> list[Job]:
        self.asked += [request for request, _ in requests]
        return [
            Job(
                id="1", kind="verify", target=name, dataset=request.dataset, state=JobState.done,
                created="2024-05-01T00:00:00Z", result=json.dumps(self.results.get(name, {})),
            )
            for request, name in requests
        ]  # fmt: skip

    def __call__(self, *arguments: str) -> Result:
        return CliRunner().invoke(odf_group, ["-w", str(self.folder), *arguments])


@pytest.fixture
def odf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Odf:
    return Odf(tmp_path, monkeypatch)


def test_pull_all_passes_reset_on_divergence_to_each_dataset(odf: Odf) -> None:
    odf.results = {name: {"status": "up-to-date"} for name in ("rain", "wet-days")}
    assert odf("pull", "--all", "--reset-on-divergence").exit_code == 0
    assert odf("pull", "wet-days").exit_code == 0
    rain, wet, plain = (request for request in odf.asked if isinstance(request, Pull))
    assert rain.reset_on_divergence and wet.reset_on_divergence and not plain.reset_on_divergence
    assert wet.after == [rain.dataset]  # which may be what it diverged from


def test_recursive_verify_applies_the_range_to_inputs(odf: Odf) -> None:
    odf.results = {name: report(name) for name in ("rain", "wet-days")}
    ran = odf("verify", "-r", "wet-days", "--range", "1..", "--rows")
    assert ran.exit_code == 0, ran.output
    assert [request.first for request in odf.asked if isinstance(request, Verify) and request.rows] == [1, 1]


def report(name: str, **more: Any) -> dict[str, Any]:
    counts = {"blocks": 2, "slices": 1, "transforms": 0, "rows_known": 0}
    return {
        "name": name, "valid": True, "findings": [], "unchecked": [], "engines": [], "origins": [],
        **counts, **more,
    }  # fmt: skip


def test_verify_prints_findings_and_engine_versions(odf: Odf) -> None:
    finding = {"kind": "transform-data", "block": "f1620" + "0" * 64, "message": "record 3 is x=1\x1b[2J"}
    engine = {"engine": "spark", "made_by": "3.9", "version": "4.3", "transactions": 2, "records": 1200}
    odf.results = {"wet-days": report("wet-days", valid=False, findings=[finding], engines=[engine])}
    ran = odf("verify", "wet-days")
    assert ran.exit_code == 3
    said = ran.stdout
    assert "wet-days: INVALID (" in said and "1 finding\n" in said
    assert "2 transactions with 1 200 rows replayed by spark 4.3, originally 3.9" in said
    assert "transform-data" in said and "record 3 is x=1" in said and "\x1b" not in said
    assert json.loads(odf("verify", "wet-days", "--json").stdout)["datasets"][0]["findings"] == [finding]


@pytest.mark.parametrize(
    ("kind", "intact", "verdict", "advice"),
    [
        ("slice-physical-hash", False, "INVALID", "files were changed, damaged or lost"),
        ("transform-data", False, "INVALID", "the files match their hashes"),
        ("prev-offset", False, "INVALID", "the files match their hashes"),
        ("slice-op", True, "intact, but its changelog is INVALID", "no file was changed"),
        ("input-damaged", True, "NOT CONFIRMED", "verify its inputs first"),
        ("transform-version", True, "NOT CONFIRMED", "or derive it again: odf pull --rederive"),
    ],
)
def test_verdict_states_only_what_findings_show(
    odf: Odf, kind: str, intact: bool, verdict: str, advice: str
) -> None:
    finding = {"kind": kind, "block": "x", "message": "m"}
    odf.results = {"wet-days": report("wet-days", valid=False, findings=[finding], intact=intact)}
    ran = odf("verify", "wet-days")
    assert ran.exit_code == 3
    assert f"wet-days: {verdict} (" in ran.stdout
    assert advice in ran.stderr and ("changed, damaged" in ran.stderr) == (kind == "slice-physical-hash")


@pytest.mark.parametrize(("newer", "words"), [(0, "the newest"), (1, "1 newer block"), (3, "3 newer blocks")])
def test_verify_reports_the_last_proven_block(odf: Odf, newer: int, words: str) -> None:
    remark = {"kind": "proof-elsewhere", "block": "x", "message": "a proof is for a block elsewhere"}
    odf.results = {"wet-days": report("wet-days", proofs=2, proven=12, newer=newer, unchecked=[remark])}
    said = odf("verify", "wet-days").stdout
    assert f"wet-days: valid (2 blocks, 1 slice, ownership proven up to block 12, {words})" in said
    assert "not checked: proof-elsewhere: a proof is for a block elsewhere (1 proof)" in said


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("input-missing", "valid as far as it could be checked ("),
        ("input-behind", "valid as far as it could be checked ("),
        ("checkpoint-other", "valid ("),
        ("slice-equivalent", "valid ("),
    ],
)
def test_verify_reports_what_was_not_checked(odf: Odf, kind: str, word: str) -> None:
    reason = {"kind": kind, "block": "x", "message": "the input 'rain' is not in this workspace"}
    missing = {"id": "did:odf:fed", "name": None, "problem": "it is not in this workspace", "inputs": []}
    made = {
        "id": "did:odf:fee", "name": "wet-days", "problem": None, "kind": "Derivative", "records": 5,
        "first": "2024-05-01T00:00:00Z", "last": "2024-05-02T00:00:00Z", "engine": "spark", "version": None,
        "transactions": 2, "sources": [],
        "inputs": [{"id": "did:odf:fed", "name": None, "alias": "rain", "block": None, "offset": 4}],
    }  # fmt: skip
    odf.results = {
        "wet-days": report("wet-days", unchecked=[reason] * 3, origins=[made, {**made, **missing}])
    }
    ran = odf("verify", "wet-days")
    assert ran.exit_code == 0
    assert f"wet-days: {word}" in ran.stdout
    label = "equivalent, not identical: " if kind == "slice-equivalent" else f"not checked: {kind}: "
    assert f"  {label}the input" in ran.stdout
    assert "rain: to offset 4, block" in ran.stdout
    assert "  rain      it is not in this workspace: did:odf:fed\n" in ran.stdout


def test_verify_range_must_be_in_the_current_chain(odf: Odf) -> None:
    """A block before a reset is stored; its number would select another block of the chain."""
    dataset = odf.workspace.resolve("rain").dataset
    time, seed = dataset.state().system_time, dataset.state().head
    old = dataset.commit([SetInfo("rain")], system_time=time, expected_head=seed)
    dataset.restart_chain([SetInfo("wind")], system_time=time, expected_head=old)
    before, head = str(old), str(dataset.head())
    odf.results = {"rain": report("rain")}
    for span in (f"{before}..", f"..{before[5:13]}", f"before-reset-{before[5:13]}.."):
        ran = odf("verify", "rain", "--range", span)
        assert (ran.exit_code, odf.asked) == (1, []), ran.output
        assert f"block {before} is not in the chain of rain" in str(ran.exception)
    assert odf("verify", "rain", "--range", f"..{head}").exit_code == 0
    assert [request.last for request in odf.asked if isinstance(request, Verify)] == [1]


@pytest.mark.parametrize(
    ("compatible", "line"),
    [
        (
            {"made_by": "4.2+odf6", "version": "4.3+odf6", "block": "f1620" + "a" * 64},
            "compatible: spark 4.2+odf6 → 4.3+odf6 (recorded in block aaaaaaaa)",
        ),
        (
            {"made_by": "4.3+odf6", "version": "4.3+odf6", "note": "this is the version of the query"},
            "compatible: spark 4.3+odf6 (this is the version of the query)",
        ),
    ],
)
def test_compatible_version_is_shown(odf: Odf, compatible: dict[str, str], line: str) -> None:
    odf.results = {"wet-days": report("wet-days", compatible={"engine": "spark", **compatible})}
    ran = odf("verify", "--compatible", "wet-days")
    assert ran.exit_code == 0 and f"  {line}\n" in ran.stdout
    assert [request.compatible for request in odf.asked if isinstance(request, Verify)] == [True]
    stated = json.loads(odf("verify", "--compatible", "wet-days", "--json").stdout)["datasets"][0]
    assert stated["compatible"]["version"] == "4.3+odf6"


@pytest.mark.parametrize("option", ["--integrity", "--recompute", "--range=1..2"])
def test_compatible_requires_a_complete_replay(odf: Odf, option: str) -> None:
    ran = odf("verify", "--compatible", option, "wet-days")
    assert isinstance(ran.exception, UsageError) and odf.asked == []
