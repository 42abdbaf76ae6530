"""Manifests of data files, inferred without a dialog."""

from __future__ import annotations

from pathlib import Path

from odf_engine.base.progress import Reporter
from odf_engine.ingest.inference.file_inference import FileChoices
from odf_engine.ingest.inference.file_manifest import example_file, manifest_text
from odf_engine.ingest.inference.file_sample import infer_file, read_sample
from odf_engine.net.urls import is_url


def infer_manifest(location: str, folder: Path, name: str) -> str:
    """The manifest that the dialog proposes; with example columns for a URL, or a file that is damaged."""
    if is_url(location):
        return manifest_text(
            location, name, example_file(location), "Example columns: replace them by those of the file."
        )
    try:
        reporter = Reporter()
        sample = read_sample(folder / Path(location).expanduser(), location, reporter)
        return manifest_text(location, name, infer_file(sample, FileChoices(), reporter))
    except Exception as error:  # decoders raise any error for damaged files
        why = " ".join(str(error).split())
        return manifest_text(location, name, example_file(location), f"Example columns: {why}")
