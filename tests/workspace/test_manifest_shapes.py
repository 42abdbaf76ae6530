"""Manifests of 54 shapes in use: each is read, written, and added."""

from __future__ import annotations

from pathlib import Path

import pytest

from odf_engine.errors import InvalidQuery, OdfError
from odf_engine.metadata.yaml import read_manifests, snapshot_to_yaml
from odf_engine.sql.manifest_translation import translate_manifest
from odf_engine.workspace.workspace import Workspace
from tests.workspace.manifest_shapes import SHAPES, SHORT_TEXTS, Shape

_TRADES = next(each for each in SHAPES if each.name == "my.trades").text
_LONG = _TRADES.replace("type: timestamp", "type: {kind: Timestamp}").replace(
    "type: string", "type: {kind: String}"
)
_LONG = _LONG.replace("type: int64", "type: {kind: Int64}").replace("type: float64", "type: {kind: Float64}")


def test_there_are_54_distinct_manifest_shapes() -> None:
    assert len(SHAPES) == 54 and len({(each.folder, each.name) for each in SHAPES}) == 54
    roots = [each for each in SHAPES if "kind: Root" in each.text]
    assert (len(roots), sum(each.short for each in SHAPES)) == (26, 17)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda each: f"{each.folder}/{each.name}")
def test_manifests_round_trip(shape: Shape) -> None:
    (snapshot,) = read_manifests(shape.text, "test")
    text = snapshot_to_yaml(snapshot)
    assert read_manifests(text, "test") == [snapshot] and snapshot_to_yaml(snapshot) == text
    # The translation reads and writes them too.
    found = translate_manifest(shape.text, "test", lambda ref: None)
    assert read_manifests(found.text, "test") == found.snapshots
    assert bool(found.queries) == (shape.engine in ("flink", "risingwave", "datafusion"))


@pytest.mark.parametrize("field", SHORT_TEXTS)
def test_short_forms_equal_long_forms(field: str) -> None:
    long, short = SHORT_TEXTS[field]
    text = (
        _LONG if field == "eventTime" else _LONG.replace("eventTime: {kind: FromMetadata}", f"cache: {long}")
    )
    assert f"{field}: {long}" in text
    (expected,) = read_manifests(text, "test")
    shortened = text.replace(f"{field}: {long}", f"{field}: {short}")
    assert read_manifests(shortened, "test") == [expected]


@pytest.mark.parametrize("folder", dict.fromkeys(each.folder for each in SHAPES))
def test_manifests_can_be_added_after_translation(folder: str, tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path / "w")
    chosen = [each for each in SHAPES if each.folder == folder]
    for each in chosen:
        if each.engine in ("flink", "risingwave") and "kind: Derivative" in each.text:
            with pytest.raises((InvalidQuery, OdfError)) as caught:
                workspace.add(read_manifests(each.text, "test"))
            assert caught.value.hint
            if not isinstance(caught.value, InvalidQuery):
                assert "add the inputs first" in caught.value.hint or "did you mean" in caught.value.hint
            else:
                assert "odf add --translate spark" in caught.value.hint
        workspace.add(translate_manifest(each.text, "test", lambda ref: None).snapshots)
    assert {str(entry.alias) for entry in workspace.datasets()} == {each.name for each in chosen}
