"""Definitions of checks: the YAML files in ``.odf/checks``.

Example::

    headers: {name: cases}
    spec:
      target: my.cases
      rules:
        - {kind: NotNull, columns: [date, region]}
        - {kind: Range, column: cases, min: 0}
        - {kind: Pattern, column: region, pattern: "^[A-Z]{2}$", onFailure: warn}
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from odf_engine.base.config import Config
from odf_engine.data.arrow_compute import check_regex
from odf_engine.errors import InvalidManifest
from odf_engine.identity.did import DatasetId
from odf_engine.identity.names import DatasetAlias
from odf_engine.workspace.documents.document import (
    Document,
    DocumentSource,
    Kind,
    TargetedSpec,
    matches_target,
)
from odf_engine.workspace.documents.store import DocumentEntry, Documents, Unreadable
from odf_engine.workspace.documents.values import DurationText

OnFailure = Literal["block", "warn"]
Value = str | int | float | bool
NEW_ROWS: Final = "new_rows"
"""Name of the table with the examined rows in queries of rules."""


class _Rule(Kind, frozen=True, kw_only=True):
    """A rule.

    Attributes:
        name: name of the rule in messages; by default its kind and columns.
        on_failure: overrides the file's value.
    """

    name: str = ""
    on_failure: OnFailure | None = None

    @property
    def used_columns(self) -> Sequence[str]:
        """The columns that the rule reads."""
        return ()

    @property
    def label(self) -> str:
        """The name of the rule, or its kind and columns."""
        kind = str(self.__struct_config__.tag)
        return self.name or (f"{kind}({', '.join(self.used_columns)})" if self.used_columns else kind)


class _ColumnRule(_Rule, frozen=True, kw_only=True):
    column: str

    @property
    def used_columns(self) -> Sequence[str]:
        """The column."""
        return (self.column,)


class _ColumnsRule(_Rule, frozen=True, kw_only=True):
    columns: list[str]

    def __post_init__(self) -> None:
        if not self.columns:
            raise ValueError("columns is empty")

    @property
    def used_columns(self) -> Sequence[str]:
        """The columns."""
        return self.columns


class NotNull(_ColumnsRule, frozen=True, kw_only=True, tag="NotNull"):
    """No value of the columns is null."""


class Unique(_ColumnsRule, frozen=True, kw_only=True, tag="Unique"):
    """No two rows have the same values in the columns. Rows with a null in them are not examined.

    Attributes:
        within: ``dataset``: among all rows that are not retracted. ``slice``: among the new rows.
    """

    within: Literal["dataset", "slice"] = "dataset"


class Range(_ColumnRule, frozen=True, kw_only=True, tag="Range"):
    """The values are from ``min`` to ``max``, both inclusive. Times are in RFC 3339. Nulls pass."""

    min: Value | None = None
    max: Value | None = None

    def __post_init__(self) -> None:
        if self.min is None and self.max is None:
            raise ValueError("Range requires min or max")


class Pattern(_ColumnRule, frozen=True, kw_only=True, tag="Pattern"):
    """Each text contains a match of a regular expression (RE2; ``^`` and ``$`` anchor it). Nulls pass."""

    pattern: str

    def __post_init__(self) -> None:

        check_regex(self.pattern)


class Set(_ColumnRule, frozen=True, kw_only=True, tag="Set"):
    """The values are among ``values``. Nulls pass."""

    values: list[Value]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("values is empty")


class RowCount(_Rule, frozen=True, kw_only=True, tag="RowCount"):
    """The number of new rows is within limits, absolute or as multiples of the rows of the last commit."""

    min: int | None = None
    max: int | None = None
    min_ratio: float | None = None
    max_ratio: float | None = None

    def __post_init__(self) -> None:
        if all(limit is None for limit in (self.min, self.max, self.min_ratio, self.max_ratio)):
            raise ValueError("RowCount requires min, max, minRatio or maxRatio")


class Retractions(_Rule, frozen=True, kw_only=True, tag="Retractions"):
    """The number of retracted rows (-R) is within limits. Corrections (-C, +C) are not counted.

    Attributes:
        max: the largest allowed number.
        max_ratio: the largest allowed number as a fraction of the rows in the latest state before the commit.
    """

    max: int | None = None
    max_ratio: float | None = None

    def __post_init__(self) -> None:
        if self.max is None and self.max_ratio is None:
            raise ValueError("Retractions requires max or maxRatio")


class Freshness(_Rule, frozen=True, kw_only=True, tag="Freshness"):
    """The watermark after the commit is at most ``maxAge`` before the system time of the commit."""

    max_age: DurationText


class Reference(_ColumnsRule, frozen=True, kw_only=True, tag="Reference"):
    """The values occur in rows of another dataset that are not retracted. Rows with a null pass.

    Attributes:
        dataset: name or id of the other dataset.
        keys: its columns; by default the columns of the same names.
    """

    dataset: str
    keys: list[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keys is not None and len(self.keys) != len(self.columns):
            raise ValueError("keys and columns must have the same length")


class SqlRule(_Rule, frozen=True, kw_only=True, tag="Sql"):
    """The query returns no row. It reads the new rows as table ``new_rows``, and datasets by their names.

    ``new_rows`` has all rows of the commit, with retractions and corrections, and all system columns.
    """

    query: str

    def __post_init__(self) -> None:
        if not self.query.strip():
            raise ValueError("the query is empty")


Rule = NotNull | Unique | Range | Pattern | Set | RowCount | Retractions | Freshness | Reference | SqlRule


class CheckSpec(TargetedSpec, frozen=True, kw_only=True):
    """The content of a check.

    Attributes:
        target: names of datasets, patterns such as ``my.%``, or selectors by labels.
        rules: the rules.
        on_failure: ``block``: rows that violate a rule are not committed. ``warn``: they are, with a warning.
    """

    rules: list[Rule]
    on_failure: OnFailure = "block"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rules:
            raise ValueError("a check must have at least one rule")


class CheckDefinition(Document[CheckSpec], frozen=True):
    """A check. Its queries run only if the user has accepted it."""

    word = "check"

    @classmethod
    def create(cls, name: str, spec: CheckSpec, source: DocumentSource) -> CheckDefinition:
        """Return the check of a file.

        Raises:
            InvalidManifest: a query is invalid, or two rules have the same name.
        """
        check = cls(name, spec, source)
        for index, rule in enumerate(spec.rules):
            if isinstance(rule, SqlRule):
                _check_syntax(rule.query, check.where(index, ".query"))
        labels = [rule.label for rule in spec.rules]
        for index, label in enumerate(labels):
            if label in labels[:index]:
                raise InvalidManifest(
                    f"two rules are named '{label}'",
                    where=check.where(index),
                    hint="set the field name of one",
                )
        return check

    @property
    def accepted_part(self) -> str:
        """What takes effect only after the user has accepted the check: its queries, if it has some."""
        return "its queries" if any(isinstance(rule, SqlRule) for rule in self.spec.rules) else ""

    def where(self, rule: int, key: str = "") -> str:
        """Return ``file:line:column`` of a rule, or of its field ``key``, such as ``.column``."""
        return self.source.where(f".spec.rules[{rule}]{key}")

    def matches(self, alias: DatasetAlias, dataset_id: DatasetId, config: Config) -> bool:
        """Return whether a dataset is a target; ``config`` has the labels."""
        return any(matches_target(target, alias, dataset_id, config) for target in self.spec.targets)


def _check_syntax(query: str, where: str) -> None:
    """Check the syntax of a query.

    Raises:
        InvalidManifest: it is invalid.
    """
    import sqlglot  # deferred: slow to import, and few files have queries
    from sqlglot import errors, exp

    try:
        parsed = sqlglot.parse(query, dialect="spark")
    except errors.SqlglotError as error:
        details: list[dict[str, Any]] = getattr(error, "errors", [])
        first = details[0] if details else {}
        at = f" at line {first['line']}, column {first['col']} of the query" if first.get("line") else ""
        problem = str(first.get("description") or "syntax error").partition(" but got <")[0]
        problem = re.sub(r"\s+", " ", problem)[:200].rstrip(". ")
        raise InvalidManifest(f"invalid SQL{at}: {problem}", where=where) from None
    if len(parsed) != 1 or not isinstance(parsed[0], exp.Query):
        raise InvalidManifest("the query of a rule must be one SELECT", where=where)


def checks_of(
    odf: Path, alias: DatasetAlias, dataset_id: DatasetId, config: Config
) -> list[DocumentEntry[CheckDefinition]]:
    """Return the checks of a dataset.

    Raises:
        InvalidManifest: a file is invalid. Its target is unknown, so it could be this dataset.
    """
    entries: list[DocumentEntry[CheckDefinition]] = []
    for entry in Documents(odf, CheckDefinition).entries():
        if isinstance(entry, Unreadable):
            raise entry.error
        if entry.document.matches(alias, dataset_id, config):
            entries.append(entry)
    return entries
