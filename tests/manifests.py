"""Manifests that several folders of tests use."""

from __future__ import annotations

from typing import Final

ROOT_WITH_INFO: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: SetInfo
      description: {text}
"""
"""A root without a source; ``name`` and ``text`` are filled in."""

DERIVATIVE: Final = """
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{inputs}]
      transform: {{kind: Sql, engine: spark, query: "{query}"}}
"""
"""A derivative dataset; ``name``, ``inputs`` and ``query`` are filled in."""
