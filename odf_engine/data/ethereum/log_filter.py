"""Filters of EthereumLogs sources: conditions in SQL that a node can evaluate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from odf_engine.data.ethereum.abi import WORD, SignatureError, eth_event_selector
from odf_engine.errors import InvalidManifest

_ADDRESS: Final = 20
_BLOCK: Final = "block_number"
_SIZES: Final = {"address": _ADDRESS, "topic0": WORD, "topic1": WORD, "topic2": WORD, "topic3": WORD}
_HINT: Final = (
    "combine with AND: block_number =, >, >=, <, <=, BETWEEN; address and topic0 to topic3 = X'…', or an OR"
    " of such terms for one column; eth_event_selector('…') can replace X'…'; put other conditions in"
    " preprocess"
)
_MIRRORED: Final = {exp.GT: exp.LT, exp.GTE: exp.LTE, exp.LT: exp.GT, exp.LTE: exp.GTE, exp.EQ: exp.EQ}


@dataclass(frozen=True)
class LogFilter:
    """Which logs a source reads.

    Attributes:
        first, last: block numbers, both included, or None if they are not limited.
        values: the allowed values of ``address`` and ``topic0`` to ``topic3``; any if a column is missing.
    """

    first: int | None = None
    last: int | None = None
    values: dict[str, frozenset[bytes]] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no log can match."""
        return any(not value for value in (self.values or {}).values())

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of ``eth_getLogs`` besides the blocks."""
        values = self.values or {}
        parameters: dict[str, Any] = {}
        if "address" in values:
            parameters["address"] = _hex_list(values["address"])
        topics = [_hex_list(values[name]) if name in values else None for name in sorted(_SIZES)[1:]]
        while topics and topics[-1] is None:
            topics.pop()
        return parameters | ({"topics": topics} if topics else {})

    def with_value(self, column: str, value: bytes) -> LogFilter:
        """Return the filter with another condition."""
        return _intersect([self, LogFilter(values={column: frozenset([value])})])


def parse_filter(text: str) -> LogFilter:
    """Parse the condition of a filter.

    Raises:
        InvalidManifest: it is not SQL, or a node cannot evaluate it.
    """
    try:
        tree: Any = parse_one(text, dialect="postgres", into=exp.Condition)
    except SqlglotError as error:
        details = (getattr(error, "errors", None) or [{}])[0]
        position = f", line {details['line']}, column {details['col']}" if "line" in details else ""
        problem = details.get("description") or "it cannot be parsed"
        raise InvalidManifest(
            f"the filter is not a condition in SQL: {problem.rstrip('.').lower()}{position}",
            where="fetch.filter",
            hint=_HINT,
        ) from None
    except RecursionError:
        raise InvalidManifest("the filter is nested too deeply", where="fetch.filter") from None
    return _intersect([_parse_term(term) for term in _operands(tree, exp.And)])


def _operands(tree: exp.Expr, kind: type[exp.Connector]) -> list[exp.Expr]:
    tree = tree.unnest()
    if isinstance(tree, kind):
        return [*_operands(tree.left, kind), *_operands(tree.right, kind)]
    return [tree]


def _parse_term(term: exp.Expr) -> LogFilter:
    choices = _operands(term, exp.Or)
    if len(choices) > 1:
        parsed = [_parse_term(choice) for choice in choices]
        columns = {next(iter(part.values or {_BLOCK: None})) for part in parsed}
        if len(columns) > 1 or _BLOCK in columns or any(len(part.values or ()) > 1 for part in parsed):
            raise _too_complex(term)
        (column,) = columns
        return LogFilter(
            values={column: frozenset().union(*((part.values or {})[column] for part in parsed))}
        )
    if isinstance(term, exp.Between) and _column(term.this) == _BLOCK:
        return LogFilter(_integer(term.args["low"]), _integer(term.args["high"]))
    if isinstance(term, exp.In) and (column := _column(term.this)) in _SIZES and term.expressions:
        return LogFilter(
            values={column: frozenset(_binary(expression, column) for expression in term.expressions)}
        )
    kind = next((kind for kind in _MIRRORED if type(term) is kind), None)
    if kind is None:
        raise _too_complex(term)
    column, value = _column(term.this), term.expression
    if column is None:
        column, value, kind = _column(term.expression), term.this, _MIRRORED[kind]
    if column == _BLOCK:
        number = _integer(value)
        bounds: dict[Any, Callable[[], LogFilter]] = {
            exp.EQ: lambda: LogFilter(number, number),
            exp.GT: lambda: LogFilter(first=number + 1),
            exp.GTE: lambda: LogFilter(first=number),
            exp.LT: lambda: LogFilter(last=number - 1),
            exp.LTE: lambda: LogFilter(last=number),
        }
        return bounds[kind]()
    if column not in _SIZES or kind is not exp.EQ:
        raise _too_complex(term)
    return LogFilter(values={column: frozenset([_binary(value, column)])})


def _column(tree: exp.Expr) -> str | None:
    return tree.name.lower() if isinstance(tree, exp.Column) and not tree.table else None


def _integer(tree: exp.Expr) -> int:
    if isinstance(tree, exp.Literal) and not tree.is_string and tree.this.isdigit():
        return int(tree.this)
    raise InvalidManifest(f"{_shown(tree)} is not a block number", where="fetch.filter", hint=_HINT)


def _binary(tree: exp.Expr, column: str) -> bytes:
    place, size = "fetch.filter", _SIZES[column]
    if isinstance(tree, exp.Anonymous) and tree.name.lower() == "eth_event_selector":
        arguments = tree.expressions
        if len(arguments) != 1 or not (isinstance(arguments[0], exp.Literal) and arguments[0].is_string):
            raise InvalidManifest("eth_event_selector requires one text", where=place, hint=_HINT)
        try:
            value = eth_event_selector(arguments[0].this)
        except SignatureError as error:
            raise InvalidManifest(str(error), where=place) from None
    elif isinstance(tree, exp.HexString):
        try:
            value = bytes.fromhex(tree.this)
        except ValueError:
            raise InvalidManifest(f"{_shown(tree)} is not hexadecimal", where=place) from None
    else:
        raise InvalidManifest(
            f"{_shown(tree)} is not a binary value, which column {column} has", where=place, hint=_HINT
        )
    if len(value) != size:
        raise InvalidManifest(
            f"{_shown(tree)} has {len(value)} bytes; {column} has {size}",
            where=place,
            hint="write X'…' in full",
        )
    return value


def _intersect(filters: Sequence[LogFilter]) -> LogFilter:
    first = max((log_filter.first for log_filter in filters if log_filter.first is not None), default=None)
    last = min((log_filter.last for log_filter in filters if log_filter.last is not None), default=None)
    values: dict[str, frozenset[bytes]] = {}
    for log_filter in filters:
        for column, allowed in (log_filter.values or {}).items():
            values[column] = values.get(column, allowed) & allowed
    return LogFilter(first, last, values)


def _hex_list(values: frozenset[bytes]) -> list[str]:
    return [f"0x{value.hex()}" for value in sorted(values)]


def _shown(tree: exp.Expr) -> str:
    text = tree.sql(dialect="postgres")
    return f"'{text[:80]}'" if "'" not in text else text[:80]


def _too_complex(term: exp.Expr) -> InvalidManifest:
    return InvalidManifest(
        f"the filter is too complex: a node cannot evaluate {_shown(term)}", where="fetch.filter", hint=_HINT
    )
