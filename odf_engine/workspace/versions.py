"""Which version of an engine a transform is of (specification: Engine Versioning)."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from odf_engine.errors import InvalidManifest
from odf_engine.metadata.model import SetTransform

SPARK: Final = "spark"
SPARK_VERSION: Final = "4.3.0+odf1"
"""The engine of this program: Spark's version and the revision of the rules of transformations."""


def versioned(event: SetTransform) -> SetTransform:
    """The transform with the exact version of the engine, where that is the one of this program.

    Raises:
        InvalidManifest: it asks for another version.
    """
    transform = event.transform
    if transform.engine.lower() != SPARK:
        return event
    if transform.version not in (None, SPARK_VERSION):
        raise InvalidManifest(
            f"the transform is for version {transform.version} of the engine, and this is {SPARK_VERSION}",
            where="SetTransform",
            hint="leave `version` out: it is written down when the transform is",
        )
    return replace(event, transform=replace(transform, version=SPARK_VERSION))


def unversioned(event: SetTransform) -> SetTransform:
    """The transform as people write it, without the version that was filled in."""
    if event.transform.engine.lower() != SPARK:
        return event
    return replace(event, transform=replace(event.transform, version=None))
