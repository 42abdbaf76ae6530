"""Templates of checks, flows and alerts, with the name and the columns of a dataset."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from itertools import count
from typing import Final, NamedTuple

_MAX_STEM: Final = 50
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_YAML_WORDS: Final = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_NUMBERS: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL")
_DATASET: Final = "my.dataset"
_RETRY: Final = "  retry: {maxAttempts: 3, minDelay: 1min, backoff: Exponential}\n"
_FAILURES: Final = "JobFailed, CheckFailed, VerifyFailed, FlowPaused"


class Template(NamedTuple):
    """A template.

    Attributes:
        key: the key that chooses it.
        title: what the definition does.
        text: the definition.
    """

    key: str
    title: str
    text: str


class TemplateDataset(NamedTuple):
    """The dataset that templates are about.

    Attributes:
        name: name of the dataset.
        columns: names and types of its columns, without those that every dataset has.
        key: the columns that identify its rows, or () if they are unknown.
        derivative: whether it is derived from other datasets.
    """

    name: str = _DATASET
    columns: Sequence[tuple[str, str]] = ()
    key: Sequence[str] = ()
    derivative: bool = False


def check_templates(dataset: TemplateDataset, used: Collection[str]) -> list[Template]:
    """Return the templates of checks; ``used`` are the names of existing checks."""
    names = [name for name, _ in dataset.columns] or ["id"]
    key = list(dataset.key) or [next((name for name in names if name != "event_time"), names[0])]
    number = next((name for name, kind in dataset.columns if kind.startswith(_NUMBERS)), None)
    keys, first = ", ".join(map(_yaml, key)), names[0]
    limits = (
        f"{{kind: Range, column: {_yaml(number)}, min: 0}}"
        if number is not None
        else f'{{kind: Range, column: {_yaml(first)}, min: "2000-01-01"}}'
    )
    selected = ", ".join(map(_sql, [*key, *([number] if number is not None else [])]))
    condition = f"{_sql(number)} < 0" if number is not None else f"{_sql(key[0])} IS NULL"
    query = f"SELECT {selected}\n        FROM new_rows\n        WHERE {condition}"
    rules = [
        ("k", "the key is complete and unique", "key",
         f"- {{kind: NotNull, columns: [{keys}]}}\n    - {{kind: Unique, columns: [{keys}]}}"),
        ("r", "values are within a range", "range", f"- {limits}"),
        ("c", "a commit has a plausible number of rows", "rows",
         "- {kind: RowCount, min: 1, minRatio: 0.5, maxRatio: 2}"),
        ("f", "the data are fresh", "fresh", "- {kind: Freshness, maxAge: 2d, onFailure: warn}"),
        ("s", "a SQL query returns no rows", "query",
         f"- kind: Sql\n      name: no-invalid-rows\n      query: |\n        {query}"),
    ]  # fmt: skip
    columns = f"  # columns: {', '.join(map(_yaml, names))}\n" if dataset.columns else ""
    return [
        Template(
            letter,
            title,
            f"{_head(dataset, suffix, used)}  onFailure: block\n{columns}  rules:\n    {rule}\n",
        )
        for letter, title, suffix, rule in rules
    ]


def flow_templates(dataset: TemplateDataset, used: Collection[str]) -> list[Template]:
    """Return the templates of flows; ``used`` are the names of existing flows."""
    flows = [
        ("h", "pull every hour", "hourly", "{kind: Schedule, cron: 0 * * * *, timezone: UTC}", "Pull"),
        ("d", "pull every day", "daily", "{kind: Schedule, cron: 0 6 * * *, timezone: UTC}", "Pull"),
        ("u", "pull after an input has new rows", "inputs", "{kind: Inputs}", "Pull"),
        ("v", "verify every week", "weekly", "{kind: Schedule, cron: 0 4 * * 0, timezone: UTC}", "Verify"),
    ]
    return [
        Template(
            letter,
            title,
            f"{_head(dataset, suffix, used)}  triggers:\n    - {trigger}\n"
            f"  tasks:\n    - {{kind: {task}}}\n{_RETRY}",
        )
        for letter, title, suffix, trigger, task in flows
        if dataset.derivative or letter != "u"
    ]


def alert_templates(dataset: TemplateDataset, used: Collection[str]) -> list[Template]:
    """Return the templates of alerts; ``used`` are the names of existing alerts."""
    mail = (
        "sink:\n    kind: Email\n    server: smtp://mail.example.com\n"
        "    from: odf@example.com\n    to: [ops@example.com]"
    )
    sinks = [
        ("o", "failures to open workstations", "failures", "sink: {kind: Terminal}"),
        (
            "w",
            "failures to a webhook",
            "webhook",
            "sink: {kind: Webhook, url: https://hooks.example.com/odf}",
        ),
        ("m", "failures by mail", "mail", mail),
    ]
    return [
        Template(
            letter,
            title,
            f"headers: {{name: {_unused(name, used)}}}\nspec:\n"
            f'  target: "%"  # or a dataset, such as {_yaml(dataset.name)}\n'
            f"  events: [{_FAILURES}]\n  {sink}\n",
        )
        for letter, title, name, sink in sinks
    ]


def _head(dataset: TemplateDataset, suffix: str, used: Collection[str]) -> str:
    """Return the first lines of a definition about a dataset."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", dataset.name.rpartition("/")[2].rpartition(".")[2])
    name = _unused(f"{stem[:_MAX_STEM].strip('-') or 'dataset'}-{suffix}", used)
    return f"headers: {{name: {name}}}\nspec:\n  target: {_yaml(dataset.name)}\n"


def _unused(name: str, used: Collection[str]) -> str:
    """Return a name, with a number if it is in use."""
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(candidate for candidate in names if candidate not in used)


def _yaml(name: str) -> str:
    """Return a name as a YAML scalar."""
    plain = all(map(_PLAIN.fullmatch, re.split(r"[./-]", name))) and name.lower() not in _YAML_WORDS
    return name if plain else json.dumps(name)


def _sql(name: str) -> str:
    """Return the name of a column in a query."""
    return name if _PLAIN.fullmatch(name) else f"`{name.replace('`', '``')}`"
