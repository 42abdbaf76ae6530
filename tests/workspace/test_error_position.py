"""Errors about definitions have the file, the line and the column."""

from __future__ import annotations

from pathlib import Path

import pytest

from odf_engine.api import TextPosition, error_position
from odf_engine.api.workspace import Workspace
from odf_engine.errors import InvalidQuery, OdfError
from odf_engine.workspace.workspace import Workspace as EngineWorkspace

TEXT = """\
kind: DatasetSnapshot
version: 1
content:
  name: other
  metadata:
    - kind: SetPollingSource
      merge: {kind: Append}
---
content:
  name: boats
  metadata:
    - kind: SetPollingSource
      read:
        schema: [name STRIN]
      merge:
        kind: Ledger
        primaryKey: [nam]
    - kind: SetTransform
      inputs:
        - datasetRef: bots
"""
QUERY = """\
transform:
  kind: Sql
  engine: spark
  query: |

    SELECT event_time,
      cuont(*) AS n
    FROM air
"""
FIRST = """\
kind: DatasetSnapshot
version: 1
content: {name: first, kind: Root, metadata: []}
"""
ADDED = """\
kind: DatasetSnapshot
version: 1
content:
  name: boats
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: main
      read:
        kind: NdJson
        schema:
          - name STRING
          - length DECIMAL(5, 1)
      merge:
        kind: Ledger
        primaryKey: [name]
"""


@pytest.mark.parametrize(
    ("where", "message", "position"),
    [
        ("m.yaml:14:9", "unknown", TextPosition(14, 9)),
        ("m.yaml:3", "unknown", TextPosition(3)),
        ("m.yaml:14:9: dataset boats, read.schema", "unknown", TextPosition(14, 9)),
        ("dataset boats, read.schema", "no type 'STRIN'", TextPosition(14, 23)),
        ("dataset boats, merge", "column 'nam' is not in the schema", TextPosition(17, 22)),
        ("dataset boats, merge.primaryKey", "it is empty", TextPosition(17)),
        (None, "dataset not found: 'bots' (input of boats)", TextPosition(20, 23)),
        ("dataset boats, block 3", "column 'name' changed from nullable to NOT NULL", TextPosition(14, 18)),
        ("boats", "duplicate push source 'boats'", TextPosition(10, 9)),
        (None, "feeds itself", None),
    ],
)
def test_error_has_a_position_in_the_manifest(
    where: str | None, message: str, position: TextPosition | None
) -> None:
    assert error_position(OdfError(message, where=where), TEXT) == position


def test_position_in_a_query_becomes_one_in_the_manifest() -> None:
    def position(where: str, text: str = QUERY) -> TextPosition | None:
        return error_position(InvalidQuery("no", where=where), text)

    assert position("query, line 3, column 3") == TextPosition(7, 7)  # the empty line counts
    assert QUERY.splitlines()[6][6:].startswith("cuont")
    steps = "queries:\n  - alias: a\n    query: SELECT 1\n  - query: 'SELECT x'\n"
    assert position("query step 1 of 2, line 1, column 8", steps) == TextPosition(3, 19)
    assert position("query step 2 of 2, line 1, column 8", steps) == TextPosition(4, 20)
    assert position("dataset a: query, line 1, column 1", "query: >\n  SELECT\n") == TextPosition(1)
    assert position("query step 3 of 3, line 1, column 8", steps) is None
    two = "name: a\nquery: SELECT 1\n---\nname: b\nquery: SELECT x\n"
    assert position("dataset b, query, line 1, column 8", two) == TextPosition(5, 15)


@pytest.mark.parametrize(
    ("old", "new", "position", "message"),
    [
        ("(5, 1)", "(5, 9)", "13:13", "invalid type DECIMAL(5,9)"),
        ("DECIMAL(5, 1)", "STRUCT<>", "13:13", "empty STRUCT"),
        ("DECIMAL(5, 1)", "INT7", "13:13", "unknown type INT7"),
        ("[name]", "[nam]", "16:22", "column 'nam' is not in the schema"),
        ("kind: Root", "kind: Derivative", "4", "AddPushSource is only allowed in Root datasets"),
    ],
)
def test_refused_definition_is_located(
    tmp_path: Path, old: str, new: str, position: str, message: str
) -> None:
    engine = EngineWorkspace.init(tmp_path)
    path = tmp_path / "boats.yaml"
    text = ADDED.replace(old, new)
    assert text != ADDED
    path.write_text(text)
    with Workspace(engine) as workspace:
        with pytest.raises(OdfError) as caught:
            workspace.add(path)
        assert str(caught.value).startswith(f"{path}:{position}: ")
        assert message in str(caught.value)
        with pytest.raises(OdfError) as caught:
            workspace.add(f"{FIRST}---\n{text}")
        line, _, column = position.partition(":")
        shifted = f"definition:{int(line) + 4}" + (f":{column}" if column else "")
        assert str(caught.value).startswith(f"{shifted}: ")
        assert not list(workspace)
