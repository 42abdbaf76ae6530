"""CSV files with the faults of published files, each with the table that a reader should return.

The files are the same on every run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import date, timedelta
from itertools import accumulate
from typing import Final, NamedTuple

Row = list[str]


class Table(NamedTuple):
    """A clean table.

    Attributes:
        name: the name of the table.
        header: the names of the columns.
        rows: the values as texts.
        units: a unit for each column, or "".
    """

    name: str
    header: Row
    rows: list[Row]
    units: Sequence[str] = ()


class PollutedFile(NamedTuple):
    """A file, and the table that a reader should return."""

    kind: str
    name: str
    data: bytes
    header: Row
    rows: list[Row]


class Form(NamedTuple):
    """How a table is written.

    Attributes:
        separator: one or more characters between two values.
        quote: the character around values that need it.
        escape: the character before a quote in a value; "" doubles the quote.
        end: the characters after a record.
        quotes_all: whether every text is quoted.
    """

    separator: str = ","
    quote: str = '"'
    escape: str = ""
    end: str = "\n"
    quotes_all: bool = False

    def record(self, row: Sequence[str]) -> str:
        """Return a record without its end."""
        return self.separator.join(map(self._value, row))

    def text(self, rows: Sequence[Sequence[str]]) -> str:
        """Return the records of a table."""
        return "".join(self.record(row) + self.end for row in rows)

    def _value(self, value: str) -> str:
        needs_quote = any(part in value for part in (self.separator, self.separator[0], self.quote, "\n"))
        if not needs_quote and not (self.quotes_all and not value.replace(".", "").isdigit()):
            return value
        return self.quote + value.replace(self.quote, (self.escape or self.quote) + self.quote) + self.quote


WORDS: Final = (
    "harbour", "north", "mill", "castle", "old", "green", "river", "market", "school", "bridge", "station",
    "upper",
)  # fmt: skip
TITLES: Final = ["Department for Work and Pensions", "Statistics of the year 2020", "Table 3: All regions"]
NOTES: Final = [
    "Source: Office for National Statistics",
    "* Values are provisional",
    "Notes: 1) Figures are rounded, totals may differ",
]


def products() -> Table:
    """Return a table with quoted texts, commas and web addresses."""
    chance = random.Random(1)
    rows = [
        [
            f"{date(2021, 3, 1) + timedelta(days=number)}",
            f"{chance.randint(0, 23):02}:{chance.randint(0, 59):02}",
            str(chance.randint(1, 40)),
            f"P{chance.randint(1000, 9999)}",
            f"{chance.uniform(2, 900):.2f}",
            chance.choice(["Chair", "Desk, oak", 'Screen 24" wide', "Lamp"]),
            f"The {chance.choice(WORDS)} one, from {chance.choice(WORDS)}",
            f"http://shop.example.com/p?id={number}&c=1",
        ]
        for number in range(40)
    ]
    header = ["DATE", "TIME", "Qty", "PRODUCTID", "Price", "ProductType", "ProductDescription", "URL"]
    return Table("products", header, rows)


def measurements() -> Table:
    """Return a table of numbers with units."""
    chance = random.Random(2)
    rows = [
        [f"{date(2020, 1, 1) + timedelta(days=day)}", chance.choice(WORDS),
         f"{chance.gauss(12, 6):.1f}", str(chance.randint(20, 99)), f"{chance.uniform(0, 12):.2f}"]
        for day in range(60)
    ]  # fmt: skip
    return Table(
        "measurements", ["Day", "Station", "Temperature", "Humidity", "Wind"], rows,
        ["", "", "°C", "%", "m/s"],
    )  # fmt: skip


def spending() -> Table:
    """Return government spending with dates and grouped amounts."""
    chance = random.Random(3)
    rows = [
        [
            "Department of Health",
            f"{chance.choice(WORDS).title()} House",
            f"{chance.randint(1, 28):02}/{chance.randint(1, 12):02}/2019",
            chance.choice(["Consultancy", "Rent", "IT, software", "Travel and subsistence"]),
            f"{chance.choice(WORDS).title()} & {chance.choice(WORDS).title()} Ltd.",
            str(5_100_000 + number * 37),
            f"{chance.randint(500, 90_000):,}.{chance.randint(0, 99):02}",
        ]
        for number in range(50)
    ]
    header = [
        "Department Family",
        "Entity",
        "Date",
        "Expense Type",
        "Supplier",
        "Transaction Number",
        "Amount",
    ]
    return Table("spending", header, rows, ["", "", "", "", "", "", "GBP"])


def years() -> Table:
    """Return a wide table with a column for each year."""
    chance = random.Random(4)
    header = ["Country", "Code", *map(str, range(2001, 2021))]
    names = [f"{word.title()}land" for word in WORDS] + [f"New {word.title()}" for word in WORDS]
    rows = [[name, name[:3].upper() + str(at), *(str(chance.randint(10, 90_000)) for _ in range(20))]
            for at, name in enumerate(names)]  # fmt: skip
    rows[3][5:9] = [""] * 4
    return Table("years", header, rows)


def short_table(size: int) -> Table:
    """Return a table of few rows."""
    rows = [[f"{word.title()} {at}", str(at * 17 + 3), f"{at * 1.5:.1f}", f"2022-0{at + 1}-15"]
            for at, word in enumerate(WORDS[:size])]  # fmt: skip
    return Table(f"short{size}", ["Area", "Cases", "Rate", "Updated"], rows, ["", "count", "per 1000", ""])


LARGE: Final = (products(), measurements(), spending(), years())
TABLES: Final = (*LARGE, *(short_table(size) for size in range(1, 6)))
Writer = Callable[[Table], Iterator[tuple[str, str, Row, list[Row]]]]
"""Yields the variant, the text, the header and the rows of each file of a kind."""


def lines(*texts: str) -> str:
    return "".join(f"{text}\n" for text in texts)


def plain(table: Table) -> Iterator[tuple[str, str, Row, list[Row]]]:
    text = Form().text([table.header, *table.rows])
    yield "", text, table.header, table.rows
    yield "no-final-newline", text.removesuffix("\n"), table.header, table.rows
    yield "double-final-newline", text + "\n", table.header, table.rows
    yield "quoted", Form(quotes_all=True).text([table.header, *table.rows]), table.header, table.rows


def header_missing(table: Table) -> Iterator[tuple[str, str, Row, list[Row]]]:
    names = [f"c{at + 1}" for at in range(len(table.header))]
    yield "", Form().text(table.rows), names, table.rows


def header_alone(table: Table) -> Iterator[tuple[str, str, Row, list[Row]]]:
    yield "", Form().text([table.header]), table.header, []
    yield "no-final-newline", Form().record(table.header), table.header, []


def header_rows(table: Table) -> Iterator[tuple[str, str, Row, list[Row]]]:
    halves = [name.split(" ", 1) if " " in name else [name[: len(name) // 2], name[len(name) // 2 :]]
              for name in table.header if not name.isdigit()]  # fmt: skip
    if len(halves) != len(table.header):
        return
    two = [[half[0] for half in halves], [half[1] for half in halves]]
    yield "2", Form().text([*two, *table.rows]), [" ".join(half) for half in halves], table.rows
    if len(table.rows) > 3:
        third = ["(revised)" if at % 2 else "" for at in range(len(halves))]
        names = [" ".join(filter(None, (*half, last))) for half, last in zip(halves, third, strict=True)]
        yield "3", Form().text([*two, third, *table.rows]), names, table.rows
        repeated = [f"{name} {name}" for name in table.header]
        yield "repeated", Form().text([table.header, table.header, *table.rows]), repeated, table.rows


def header_groups(table: Table) -> Iterator[tuple[str, str, Row, list[Row]]]:
    width = len(table.header)
    if table.name == "years":
        top = ["", "", *("Cases" if at == 0 else "Deaths" if at == 10 else "" for at in range(20))]
        bottom = ["Country", "Code", *(str(2011 + at % 10) for at in range(20))]
    else:
        top = ["" if at % 2 == 0 else f"Group {at // 2 + 1}" for at in range(width)]
        bottom = table.header
    groups = list(accumulate(top, lambda left, right: right or left))
    names = [" ".join(filter(None, pair)) for pair in zip(groups, bottom, strict=True)]
    yield "", Form().text([top, bottom, *table.rows]), names, table.rows
    title = lines(TITLES[0], "")
    yield "title", title + Form().text([top, bottom, *table.rows]), names, table.rows


def units_row(table: Table) -> Iterator[tuple[str, str, Row, list[Row]]]:
    if table.units:
        names = [" ".join(filter(None, pair)) for pair in zip(table.header, table.units, strict=True)]
        yield "", Form().text([table.header, table.units, *table.rows]), names, table.rows


def preamble(table: Table) -> Iterator[tuple[str, str, Row, list[Row]]]:
    text, padding = Form().text([table.header, *table.rows]), "," * (len(table.header) - 1)
    for count in (1, 2, 3):
        titles = TITLES[:count]
        yield f"{count}", lines(*titles) + text, table.header, table.rows
        yield f"{count}-empty-row", lines(*titles, "") + text, table.header, table.rows
        wide = [title + padding for title in titles]
        yield f"{count}-wide", lines(*wide) + text, table.header, table.rows
        yield f"{count}-wide-empty-row", lines(*wide, padding) + text, table.header, table.rows
    fields = ["Published," + "2021-05-01" + padding[1:], "Contact,Statistics team" + padding[1:], padding]
    yield "fields", lines(*fields) + text, table.header, table.rows
    prose = lines('"Figures for all areas, by year, as published; see the notes"')
    yield "prose", prose + text, table.header, table.rows


def footnotes(table: Table) -> Iterator[tuple[str, str, Row, list[Row]]]:
    text, padding = Form().text([table.header, *table.rows]), "," * (len(table.header) - 1)
    for count in (1, 2):
        notes = NOTES[:count]
        wide = [note + padding for note in notes]
        yield f"{count}", text + lines(*notes), table.header, table.rows
        yield f"{count}-empty-row", text + lines("", *notes), table.header, table.rows
        yield f"{count}-wide", text + lines(*wide), table.header, table.rows
        yield f"{count}-wide-empty-row", text + lines(padding, *wide), table.header, table.rows
    yield "prose", text + lines("", *NOTES), table.header, table.rows
    both = lines(*TITLES[:2], "") + text + lines("", *NOTES)
    yield "titles", both, table.header, table.rows


def totals_row(table: Table) -> Iterator[tuple[str, str, Row, list[Row]]]:
    if len(table.rows) > 3:
        total = ["Total", *("" for _ in table.header[2:]), "123456"]
        yield "", Form().text([table.header, *table.rows, total]), table.header, table.rows


def comments(table: Table) -> Iterator[tuple[str, str, Row, list[Row]]]:
    form = Form()
    head = lines("# Exported by the register", "# 2 remarks, in the file")
    yield "top", head + form.text([table.header, *table.rows]), table.header, table.rows
    middle = form.text([table.header, *table.rows[:2]]) + lines("# from here: estimates")
    yield "middle", head + middle + form.text(table.rows[2:]), table.header, table.rows


def several_tables(table: Table) -> Iterator[tuple[str, str, Row, list[Row]]]:
    if len(table.rows) < 4:
        return
    width = len(table.header)
    second = [
        ["Name", "Share"] + [""] * (width - 2),
        *([word, "12"] + [""] * (width - 2) for word in WORDS[:3]),
    ]
    text = Form().text([table.header, *table.rows]) + "," * (width - 1) + "\n" + Form().text(second)
    yield "", text, table.header, [*table.rows, *second]


def ragged_row(table: Table) -> Iterator[tuple[str, str, Row, list[Row]]]:
    form, width = Form(), len(table.header)
    for at in (0, len(table.rows) // 2, len(table.rows) - 1):
        for column in (0, width // 2, width - 1):
            rows = [form.record(row) for row in table.rows]
            cells = table.rows[at]
            longer = [*cells[:column], "", *cells[column:]]
            rows[at] = form.record(longer)
            clean = [*table.rows[:at], longer, *table.rows[at + 1 :]]
            yield f"more-{at}-{column}", lines(form.record(table.header), *rows), table.header, clean
            if column:
                shorter = [*cells[: column - 1], cells[column - 1] + cells[column], *cells[column + 1 :]]
                rows[at] = form.record(shorter)
                clean = [*table.rows[:at], shorter, *table.rows[at + 1 :]]
                yield f"less-{at}-{column}", lines(form.record(table.header), *rows), table.header, clean
    if len(table.rows) > 3:
        rows = [form.record(row) for row in table.rows]
        rows[1] += ",,"
        yield "empty-values", lines(form.record(table.header), *rows), table.header, table.rows
        cut = [[*row[:-1], ""] if at % 3 == 1 else row for at, row in enumerate(table.rows)]
        rows = [form.record(row).rstrip(",") for row in cut]
        yield "values-left-out", lines(form.record(table.header), *rows), table.header, cut


def stray_quote(table: Table) -> Iterator[tuple[str, str, Row, list[Row]]]:
    form = Form()
    for at in (0, len(table.rows) // 2, len(table.rows) - 1):
        for column in (0, len(table.header) // 2, len(table.header) - 1):
            cells = list(table.rows[at])
            record = [form.record([cell]) for cell in cells]
            record[column] = '"' + record[column]
            cells[column] = '"' + cells[column]
            rows = [form.record(row) for row in table.rows]
            rows[at] = ",".join(record)
            clean = [*table.rows[:at], cells, *table.rows[at + 1 :]]
            yield f"{at}-{column}", lines(form.record(table.header), *rows), table.header, clean


def other_separator(table: Table) -> Iterator[tuple[str, str, Row, list[Row]]]:
    form = Form()
    for at in (0, len(table.rows) // 2, len(table.rows) - 1):
        for name, separator in (("semicolon", ";"), ("tab", "\t"), ("comma-space", ", ")):
            rows = [form.record(row) for row in table.rows]
            rows[at] = Form(separator).record(table.rows[at])
            yield f"{name}-{at}", lines(form.record(table.header), *rows), table.header, table.rows


def record_ends(table: Table) -> Iterator[tuple[str, str, Row, list[Row]]]:
    for name, end in (("r", "\r"), ("rn", "\r\n")):
        yield name, Form(end=end).text([table.header, *table.rows]), table.header, table.rows
    ends, form = ("\n", "\r", "\r\n"), Form()
    mixed = "".join(form.record(row) + ends[at % 3] for at, row in enumerate([table.header, *table.rows]))
    yield "mixed", mixed, table.header, table.rows
    two = form.text([table.header]) + Form(end="\r\n").text(table.rows)
    yield "n-rn", two, table.header, table.rows


def separators(table: Table) -> Iterator[tuple[str, str, Row, list[Row]]]:
    for name, separator in (
        ("semicolon", ";"), ("tab", "\t"), ("comma-space", ", "), ("space", " "), ("pipe", "|"),
        ("two-tabs", "\t\t"), ("colon", ":"), ("caret", "^"), ("tilde", "~"),
    ):  # fmt: skip
        yield name, Form(separator).text([table.header, *table.rows]), table.header, table.rows
        titled = lines(*TITLES[:2], "") + Form(separator).text([table.header, *table.rows])
        if name in ("semicolon", "tab", "pipe"):
            yield f"{name}-titles", titled, table.header, table.rows


def quotes_and_escapes(table: Table) -> Iterator[tuple[str, str, Row, list[Row]]]:
    rows = [table.header, *table.rows]
    yield "single", Form(quote="'").text(rows), table.header, table.rows
    yield "single-all", Form(quote="'", quotes_all=True).text(rows), table.header, table.rows
    yield "single-semicolon", Form(";", "'", quotes_all=True).text(rows), table.header, table.rows
    yield "backslash", Form(escape="\\").text(rows), table.header, table.rows
    yield "backslash-all", Form(escape="\\", quotes_all=True).text(rows), table.header, table.rows


def separator_line(table: Table) -> Iterator[tuple[str, str, Row, list[Row]]]:
    for name, separator in (("semicolon", ";"), ("comma", ","), ("tab", "\t")):
        text = f"sep={separator}\n" + Form(separator).text([table.header, *table.rows])
        yield name, text, table.header, table.rows


def empty_columns(table: Table) -> Iterator[tuple[str, str, Row, list[Row]]]:
    clean = [[*row, "", ""] for row in (table.header, *table.rows)]
    yield "", Form().text(clean), clean[0], clean[1:]
    wide = lines(TITLES[0] + "," * (len(clean[0]) - 1))
    yield "title", wide + Form().text(clean), clean[0], clean[1:]


KINDS: Final[dict[str, Writer]] = {
    writer.__name__: writer
    for writer in (
        plain, header_missing, header_alone, header_rows, header_groups, units_row, preamble, footnotes,
        totals_row, comments, several_tables, ragged_row, stray_quote, other_separator, record_ends,
        separators, quotes_and_escapes, separator_line, empty_columns,
    )
}  # fmt: skip


def polluted_files(kind: str) -> Iterator[PollutedFile]:
    """Yield the files of a kind, from all tables."""
    for table in TABLES:
        for variant, text, header, rows in KINDS[kind](table):
            name = "-".join(filter(None, (kind, table.name, variant))) + ".csv"
            yield PollutedFile(kind, name, text.encode(), header, rows)


def random_tables(count: int) -> Iterator[tuple[Table, str]]:
    """Yield clean tables of random columns, some with empty values, each with a separator."""
    for seed in range(count):
        chance = random.Random(seed)
        columns = [chance.choice(COLUMNS) for _ in range(chance.randint(2, 8))]
        header = [f"{chance.choice(WORDS)} {at}" for at in range(len(columns))]
        share = chance.choice([0, 0, 0.1, 0.3])
        rows = [["" if chance.random() < share else column(chance) for column in columns]
                for _ in range(chance.randint(1, 25))]  # fmt: skip
        rows = [row for row in rows if any(row)]
        if rows:
            yield Table(f"random{seed}", header, rows), chance.choice(",;\t|")


def sentence(chance: random.Random) -> str:
    """Return words with marks that are also separators, quotes or notes."""
    words = " ".join(chance.choice(WORDS) for _ in range(chance.randint(1, 12)))
    return words + chance.choice(["", ", all", "; x", ": y", " 'q'", ' "z"'])


COLUMNS: Final[Sequence[Callable[[random.Random], str]]] = (
    lambda chance: str(chance.randint(-5, 3000)),
    lambda chance: str(chance.randint(1990, 2024)),
    lambda chance: f"{chance.gauss(0, 50):.2f}",
    lambda chance: str(date(2010, 1, 1) + timedelta(days=chance.randint(0, 5000))),
    lambda chance: chance.choice(WORDS),
    lambda chance: f"{chance.choice('ABC')}{chance.randint(100, 999)}",
    lambda chance: chance.choice(["yes", "no"]),
    sentence,
)
