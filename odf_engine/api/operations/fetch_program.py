"""Runs a program that fetches data as a container does: one batch, without a workspace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, cast

from odf_engine.base.config import FetchConfig
from odf_engine.base.progress import Reporter
from odf_engine.errors import InvalidManifest
from odf_engine.metadata.model import Container, SourceState
from odf_engine.on_demand import fetch_model, fetch_step
from odf_engine.workspace.environment import find_variables

if TYPE_CHECKING:
    from odf_engine.chain.dataset import Dataset
    from odf_engine.ingest.fetch.model import Payload


@contextmanager
def run_fetch_program(
    program: Literal["odf/pages", "odf/listing"],
    arguments: Sequence[str],
    environment: Mapping[str, str],
    reporter: Reporter,
) -> Iterator[Payload | None]:
    """Yield the next batch of a source, or None if it has no new data.

    Args:
        program: the program.
        arguments: its arguments, as in ``fetch.args``.
        environment: ``ODF_ETAG`` is the state after the last batch; other variables may occur in arguments.
        reporter: receives log lines and amounts.

    Raises:
        OdfError: an argument is invalid, or the fetch failed.
    """
    allowed: list[str] = []
    for text in arguments:
        with suppress(InvalidManifest):  # reported by the fetch
            allowed += find_variables(text)
    etag = environment.get("ODF_ETAG")
    with TemporaryDirectory(prefix="odf-fetch-") as folder:
        context = fetch_model.FetchContext(
            resolve=Path,
            root=Path(folder),
            dataset=cast("Dataset", None),  # only FilesGlob needs it
            state=None if not etag else SourceState(fetch_model.SOURCE_NAME, fetch_model.ETAG, etag),
            job=Path(folder),
            config=FetchConfig(),
            reporter=reporter,
            environment=environment,
            allowed=allowed,
            name=program,
        )
        with closing(fetch_step.fetch(Container(program, args=[*arguments]), context)) as payloads:
            yield next(payloads, None)
