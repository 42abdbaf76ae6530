"""SQL in the editor and in the shell: completion and highlighting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from odf_engine.api import TABLE_FUNCTIONS, Token, table_names, tokenize

KEYWORDS: Final = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "OFFSET", "JOIN", "LEFT JOIN",
    "RIGHT JOIN", "FULL JOIN", "CROSS JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN", "ON", "USING", "AS", "AND",
    "OR", "NOT", "IN", "BETWEEN", "LIKE", "ILIKE", "RLIKE", "IS NULL", "IS NOT NULL", "CASE", "WHEN", "THEN",
    "ELSE", "END", "DISTINCT", "UNION ALL", "UNION", "EXCEPT", "INTERSECT", "WITH", "OVER", "PARTITION BY",
    "ROWS BETWEEN", "DESC", "ASC", "NULLS FIRST", "NULLS LAST", "EXISTS", "LATERAL VIEW", "CAST", "INTERVAL",
    "DATE", "TIMESTAMP", "VALUES", "TRUE", "FALSE", "NULL", "GROUPING SETS", "ROLLUP", "CUBE", "QUALIFY",
    "PIVOT", "UNPIVOT", "TABLESAMPLE", "WINDOW",
)  # fmt: skip
_NAMES: Final = """
abs add_months aggregate any_value approx_count_distinct approx_percentile array array_contains
array_distinct array_join array_sort array_union avg base64 bit_and bit_or bool_and bool_or ceil
char_length coalesce collect_list collect_set concat concat_ws contains corr count count_if covar_pop
cume_dist current_date current_timestamp date_add date_diff date_format date_sub date_trunc day
dayofweek dayofyear decode degrees dense_rank element_at endswith every exp explode extract filter
first first_value flatten floor format_number from_json from_unixtime get_json_object greatest hash
hex histogram_numeric hour if ifnull initcap instr isnan isnotnull isnull json_array_length kurtosis
lag last last_day last_value lead least left length levenshtein ln locate log log10 lower lpad ltrim
make_date make_timestamp map map_keys map_values max max_by md5 mean median min min_by minute mod mode
month months_between named_struct next_day now ntile nullif nvl octet_length percent_rank percentile
percentile_approx posexplode pow power quarter radians rand range rank regexp_count regexp_extract
regexp_extract_all regexp_like regexp_replace repeat replace reverse right round row_number rpad rtrim
second sequence sha2 sign size skewness slice some sort_array soundex split split_part sqrt startswith
std stddev stddev_pop string_agg struct substr substring substring_index sum timestampadd
timestampdiff to_date to_json to_number to_timestamp transform translate trim trunc try_add try_cast
try_divide try_to_date try_to_number try_to_timestamp typeof unbase64 unhex unix_seconds upper uuid
var_pop var_samp variance weekday weekofyear width_bucket window xxhash64 year zip_with
"""
FUNCTIONS: Final = tuple(_NAMES.split())
WORDS: Final = frozenset(word for phrase in KEYWORDS for word in phrase.split()) | frozenset({
    "GROUP", "ORDER", "BY", "IS", "SEMI", "ANTI", "INNER", "OUTER", "NATURAL", "LATERAL", "VIEW",
    "SETS", "ROWS", "RANGE", "UNBOUNDED", "PRECEDING", "FOLLOWING", "CURRENT", "ROW", "PARTITION",
    "ESCAPE", "FILTER", "ANY", "ALL", "FOR", "MINUS", "SORT", "CLUSTER", "DISTRIBUTE", "NULLS", "LEFT",
    "RIGHT", "FULL", "CROSS", "EXTRACT",
})  # fmt: skip
"""Single keywords."""
_TABLE_FUNCTIONS: Final = tuple((f"{name}(", "function") for name in TABLE_FUNCTIONS)
MAX_PROPOSALS: Final = 200
_PLAIN: Final = re.compile(r"[^\W\d]\w*")
_PART: Final = re.compile(r"[\w./-]*\Z")
_WORD: Final = re.compile(r"\w*\Z")
Columns = Mapping[str, Sequence[tuple[str, str]]]
"""Names and types of columns, by the name of the dataset in lower case."""


class Completion(msgspec.Struct, frozen=True):
    """A proposed completion.

    Attributes:
        text: the text to insert.
        kind: its kind, or the type of a column.
    """

    text: str
    kind: str


class Proposals(msgspec.Struct, frozen=True):
    """Completions for the characters from ``start`` to ``end`` of a query, best first."""

    start: int
    end: int
    words: tuple[Completion, ...]

    @property
    def shared(self) -> str:
        """The common beginning of all completions, ignoring case."""
        first = self.words[0].text if self.words else ""
        for at in range(len(first), 0, -1):
            if all(word.text[:at].casefold() == first[:at].casefold() for word in self.words):
                return first[:at]
        return ""


def complete(sql: str, at: int, datasets: Sequence[str], columns: Columns, selected: str = "") -> Proposals:
    """Return the completions at the cursor.

    Args:
        sql: the query.
        at: number of characters before the cursor.
        datasets: the names of all datasets.
        columns: the columns of those datasets whose columns were read.
        selected: the dataset whose columns are proposed first as long as the query reads no table.
    """
    before = sql[:at]
    opened = _open_quote(before)
    match = _PART.search(before, opened + 1 if opened is not None else 0)
    start = opened if opened is not None else match.start() if match else at
    if _is_table(before, start):
        typed = before[start:].lstrip("`")
        words = _ranked(typed, ((name, "dataset") for name in datasets), quoted=opened is not None)
        words += [] if opened is not None else _ranked(typed, _cte_names(sql))
        words += [] if opened is not None or not typed else _ranked(typed, _TABLE_FUNCTIONS)
        return Proposals(start, at, tuple(words[:MAX_PROPOSALS]))
    if opened is not None:
        rest = before[:opened] + sql[at:]
        words = _ranked(before[opened + 1 :], _columns(rest, columns, selected), quoted=True)
        return Proposals(opened, at, tuple(words[:MAX_PROPOSALS]))
    word = _WORD.search(before)
    begin = word.start() if word else at
    typed = before[begin:]
    if before[begin - 1 : begin] == ".":
        return Proposals(begin, at, tuple(_ranked(typed, _columns_of(sql, begin, columns))[:MAX_PROPOSALS]))
    words = _ranked(typed, _columns(sql, columns, selected))
    words += _ranked(typed, ((name, "table") for name in aliases(sql)))
    words += _ranked(typed, ((f"{name}(", "function") for name in FUNCTIONS)) if typed else []
    words += _ranked(typed, ((name, "") for name in KEYWORDS))
    return Proposals(begin, at, tuple(words[:MAX_PROPOSALS]))


def datasets_in(sql: str, datasets: Iterable[str]) -> list[str]:
    """Return the names of the datasets that a query reads."""
    known = {name.casefold(): name for name in datasets}
    return [known[table.name.casefold()] for table in table_names(sql) if table.name.casefold() in known]


def aliases(sql: str) -> dict[str, str]:
    """Return the table aliases of a query, each with the name of its table."""
    words = tokenize(sql)
    table_aliases: dict[str, str] = {}
    for table in table_names(sql):
        following = [token for token in words if token.start >= table.alias_start][:2]
        if following and following[0].text.upper() == "AS":
            following = following[1:]
        if following and _is_name(following[0]):
            table_aliases[following[0].name] = table.name
    return table_aliases


def highlight(sql: str) -> Iterator[tuple[Token, str]]:
    """Yield the tokens of a query that are highlighted, each with its style."""
    words = tokenize(sql, comments=True)
    for at, token in enumerate(words):
        following = words[at + 1].text if at + 1 < len(words) else ""
        if token.kind == "comment":
            yield token, "muted"
        elif token.kind == "string" or (token.kind == "word" and token.text[0].isdigit()):
            yield token, "good"
        elif (
            token.kind == "word"
            and following == "("
            and token.text.upper() not in ("IN", "AND", "OR", "OVER")
        ):
            yield token, "title"
        elif token.kind == "word" and token.text.upper() in WORDS and words[at - 1 if at else 0].text != ".":
            yield token, "key"


def _is_name(token: Token) -> bool:
    return token.kind == "quoted" or (token.kind == "word" and token.text.upper() not in WORDS)


def _open_quote(before: str) -> int | None:
    """Return the index of an unclosed backquote, or None if absent."""
    tokens = tokenize(before)
    last = tokens[-1] if tokens else None
    if last is None or last.kind != "quoted" or last.end != len(before):
        return None
    closed = len(last.text) > 1 and last.text.endswith("`") and last.text.count("`") % 2 == 0
    return None if closed else last.start


def _is_table(before: str, start: int) -> bool:
    names = table_names(before[:start] + "x")
    return bool(names) and names[-1].start == start


def _cte_names(sql: str) -> Iterator[tuple[str, str]]:
    """Yield the names of the common table expressions of a query."""
    for match in re.finditer(r"(?:\bWITH\s+|,\s*)(\w+)\s+AS\s*\(", sql, re.IGNORECASE):
        yield match[1], "CTE"


def _columns(sql: str, columns: Columns, selected: str) -> Iterator[tuple[str, str]]:
    """Yield the columns of all tables of a query, each name once.

    For a query without tables: the selected dataset's, then the other datasets'.
    """
    seen: set[str] = set()
    tables = [table.name for table in table_names(sql)] or [selected, *columns]
    for table in tables:
        for name, kind in columns.get(table.casefold(), ()):
            if name.casefold() not in seen:
                seen.add(name.casefold())
                yield name, kind


def _columns_of(sql: str, begin: int, columns: Columns) -> Iterator[tuple[str, str]]:
    """Yield the columns of the table that qualifies the name at ``begin``."""
    qualifier = re.search(r"(`[^`]+`|[\w./-]+)\.\Z", sql[:begin])
    name = qualifier[1].strip("`").casefold() if qualifier else ""
    others = {alias.casefold(): table for alias, table in aliases(sql).items()}
    yield from columns.get(others.get(name, name).casefold(), ())


def _ranked(typed: str, words: Iterable[tuple[str, str]], *, quoted: bool = False) -> list[Completion]:
    """Return the names that begin with ``typed``, then those with a later part that does."""
    prefix = typed.casefold()
    begins: list[Completion] = []
    within: list[Completion] = []
    for name, kind in words:
        text = f"`{name}`" if quoted or (kind and not _is_plain_name(name, kind)) else name
        if name.casefold().startswith(prefix):
            begins.append(Completion(text, kind))
        elif prefix and re.search(rf"[^a-z0-9]{re.escape(prefix)}", name.casefold()):
            within.append(Completion(text, kind))
    return begins + within


def _is_plain_name(name: str, kind: str) -> bool:
    """Return whether a name needs no backquotes."""
    return kind in ("dataset", "function") or _PLAIN.fullmatch(name) is not None
