"""The filter language of the datasets pane: names, kinds, states, remotes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from odf_engine.api.model import DatasetRow
from odf_tui.state.model import Health
from odf_tui.text.graph_layout import Edge
from odf_tui.text.remotes import remote_filter_terms

KINDS: Final = ("root", "push", "derivative")
UNTRUSTED: Final = "untrusted"
REMOTES: Final = ("from", "to", "behind", "ahead", "diverged")
_KEYS: Final = ("kind", "state", "remote")


class FilterTerm(msgspec.Struct, frozen=True):
    """One condition of a filter.

    Attributes:
        key: ``kind``, ``state``, ``remote``, or empty for the name.
        alternatives: the accepted values; for the name, one text that it must contain.
        excludes: whether datasets that match are excluded.
    """

    key: str
    alternatives: tuple[str, ...]
    excludes: bool = False


def parse_filter(text: str) -> list[FilterTerm]:
    """Return the conditions of a filter. Incomplete conditions, such as ``state:``, are skipped."""
    terms: list[FilterTerm] = []
    for part in text.lower().split():
        excludes, word = part.startswith("!"), part.removeprefix("!")
        key, colon, rest = word.partition(":")
        if not colon or key not in _KEYS:
            key, rest = "", word
        alternatives = tuple(filter(None, rest.split(","))) if key else (rest,) if rest else ()
        if alternatives:
            terms.append(FilterTerm(key, alternatives, excludes))
    return terms


def list_kinds(row: DatasetRow) -> tuple[str, ...]:
    """Return the kinds of a dataset: root, push, derivative. Empty for a missing dataset."""
    if row.missing:
        return ()
    if row.derivative:
        return ("derivative",)
    return ("root", "push") if row.push_sources else ("root",)


def list_states(row: DatasetRow, health: Health) -> tuple[str, ...]:
    """Return the states of a dataset: its health, and whether it is untrusted."""
    word = health.word.replace(" ", "-")
    return (word, UNTRUSTED) if row.untrusted else (word,)


def matches_filter(terms: Sequence[FilterTerm], row: DatasetRow, health: Health) -> bool:
    """Return whether a dataset matches all conditions."""
    return all(_matches_term(term, row, health) != term.excludes for term in terms)


def _matches_term(term: FilterTerm, row: DatasetRow, health: Health) -> bool:
    if not term.key:
        return term.alternatives[0] in row.name.lower()
    if term.key == "remote":
        values = () if row.missing else remote_filter_terms(row.remotes)
    else:
        values = list_kinds(row) if term.key == "kind" else list_states(row, health)
    return any(value.startswith(prefix) for value in values for prefix in term.alternatives)


def depends_on_health(text: str) -> bool:
    """Return whether the result of a filter can change with the health of datasets."""
    return any(term.key == "state" for term in parse_filter(text))


def count_terms(rows: Iterable[DatasetRow], healths: Mapping[str, Health]) -> list[tuple[str, str, int]]:
    """Return all kinds, states and remotes in use: key, value, and the number of datasets."""
    rows = list(rows)
    kinds = Counter(kind for row in rows for kind in list_kinds(row))
    states = Counter(state for row in rows for state in list_states(row, healths.get(row.id, Health.new)))
    order = [*(health.word.replace(" ", "-") for health in Health), UNTRUSTED]
    remotes = Counter(word for row in rows if row.remotes for word in remote_filter_terms(row.remotes))
    return [
        *(("kind", kind, kinds[kind]) for kind in KINDS if kinds[kind]),
        *(("state", state, states[state]) for state in order if states[state]),
        *(("remote", word, remotes[word]) for word in REMOTES if remotes[word]),
    ]


def toggle_term(text: str, key: str, word: str) -> str:
    """Add a condition to a filter, or remove it if the filter has it. Returns the new filter."""
    parts, is_replaced = [], False
    for part in text.split():
        if part.lower().startswith(f"{key}:"):
            words = [value for value in part[len(key) + 1 :].split(",") if value]
            words = [value for value in words if value != word] if word in words else [*words, word]
            part, is_replaced = f"{key}:{','.join(words)}" if words else "", True
        parts.append(part)
    return " ".join(filter(None, parts if is_replaced else [*parts, f"{key}:{word}"]))


def filter_graph(
    rows: Sequence[DatasetRow], text: str, healths: Mapping[str, Health] | None = None
) -> tuple[list[DatasetRow], list[Edge]]:
    """Return the datasets that match a filter, and the edges between them.

    An edge bridges datasets that the filter hides.
    """
    terms, known = parse_filter(text), healths or {}
    by_id = {row.id: row for row in rows}
    shown = {row.id for row in rows if matches_filter(terms, row, known.get(row.id, Health.new))}
    edges: list[Edge] = []
    for row in rows:
        if row.id not in shown:
            continue
        seen: set[str] = set()
        todo = list(row.inputs)
        while todo:
            source = todo.pop()
            if source in seen:
                continue
            seen.add(source)
            if source in shown:
                edges.append((source, row.id))
            elif source in by_id:
                todo += by_id[source].inputs
    return [row for row in rows if row.id in shown], edges
