"""Datasets to cite."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from odf_engine.metadata.model import (
    Append,
    AttachmentEmbedded,
    Csv,
    Embedded,
    SetAttachments,
    SetInfo,
    SetLicense,
    SetPollingSource,
    Url,
)
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import Odf, call_odf
from tests.sync.builders import add_slices, commit, make_derivative, make_root

CITATION_FILE = """cff-version: 1.2.0
title: City numbers
authors:
- family-names: Doe
  given-names: Jane Rae
  orcid: https://orcid.org/0000-0001-2345-6789
- name: Statistics & Co
"""


LICENSE = SetLicense(
    short_name="CC-BY",
    name="Creative Commons Attribution 4.0",
    spdx_id="CC-BY-4.0",
    website_url="https://creativecommons.org/licenses/by/4.0/",
)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[DatasetEntry]:
    """A root dataset with two slices of a URL, metadata, and a derivative dataset of it."""
    workspace = Workspace.init(tmp_path / "here")
    entry = make_root(workspace)
    source = SetPollingSource(fetch=Url("https://example.com/n.csv"), read=Csv(), merge=Append())
    commit(entry, [source])
    add_slices(entry, 2)
    files = [AttachmentEmbedded("CITATION.cff", CITATION_FILE), AttachmentEmbedded("README.md", "# N\n")]
    commit(entry, [SetInfo("Numbers of cities.", ["city"]), LICENSE, SetAttachments(Embedded(files))])
    make_derivative(workspace, entry)
    workspace.index.close()
    yield entry
    call_odf("worker", "stop", cwd=tmp_path / "here")


@pytest.fixture
def odf(root: DatasetEntry, tmp_path: Path) -> Odf:
    return partial(call_odf, cwd=tmp_path / "here")
