"""How rules speak: the errors they raise, and words they share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from odf_engine.errors import ChainRuleViolated, MalformedBlock, NothingChanged
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import MetadataBlock

CONTENT_ERRORS: Final = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What code raises that meets unexpected content of a block. Chains are written by other programs too."""


def unexpected(block_hash: Multihash, error: Exception) -> MalformedBlock:
    """The error of a block whose content led to one of the :data:`CONTENT_ERRORS`."""
    return MalformedBlock(
        f"the block has content that cannot be processed: {type(error).__name__}: {error}",
        hint="report this as a bug; a dataset that cannot be read can still be deleted",
        where=f"block {block_hash}",
    )


def broken(block: MetadataBlock, rule: str, message: str, hint: str | None = None) -> ChainRuleViolated:
    """The block breaks this rule."""
    return ChainRuleViolated(rule, message, block=str(block.sequence_number), hint=hint)


def unchanged(block: MetadataBlock, rule: str, message: str) -> NothingChanged:
    """The block says nothing new, as this rule finds."""
    return NothingChanged(rule, message, block=str(block.sequence_number))


def or_none(value: object) -> str:
    """The value in words, ``none`` when there is none."""
    return "none" if value is None else str(value)


def repeated(values: Iterable[Any]) -> Any:
    """The first value that is there twice; None when all differ."""
    seen = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
