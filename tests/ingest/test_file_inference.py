"""Inference of separators, headers, types and formats from messy CSV files, without Spark."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData
from odf_engine.ingest.inference.file_inference import FileChoices, InferredFile, infer_csv, time_parser


def infer(text: str, **choices: object) -> InferredFile:
    return infer_csv(text, FileChoices(**choices), Reporter())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "kind", "form", "evidence"),
    [
        (["1", "-2", "3"], "BIGINT", "", ""),
        (["+4930123", "-2"], "STRING", "", "+4930123 has a plus sign"),
        (["12", "1E5"], "STRING", "", "1E5 may be a code"),
        (["\uff11\uff12", "3"], "STRING", "", ""),
        (["1", "2.5", "3"], "DOUBLE", "", ""),
        (["1.5e5", "1e-05", ".5", "3."], "DOUBLE", "", ""),
        (["01234", "80331"], "STRING", "", "01234 has a leading zero"),
        (["true", "False"], "BOOLEAN", "", ""),
        (["yes", "no"], "BOOLEAN", "", ""),
        (["1.234,50", "7,25"], "DOUBLE", "1.234,5", "2 of 2 values can only have a decimal comma"),
        (["1,234.50", "1,000.25"], "DOUBLE", "1,234.5", "2 of 2"),
        (["1 234,5", "22 000,25"], "DOUBLE", "1 234,5", ""),
        (["1\u00a0234,5", "22\u202f000,25"], "DOUBLE", "1 234,5", ""),
        (["1'234.5", "22'000.75"], "DOUBLE", "1'234.5", ""),
        (["1.000,5", "2.000"], "DOUBLE", "1.234,5", "1 of 2"),
        (["2024-01-31", "2024-2-1"], "DATE", "", ""),
        (["2024-01-31 10:00", "2024-02-01T11:30:15.25Z"], "TIMESTAMP", "", ""),
        (["2024-01-31", "2024-02-01 10:00"], "TIMESTAMP", "", ""),
        (["13/01/2024", "05/06/2024"], "DATE", "dd/MM/yyyy", "1 of 2 values can only be day first"),
        (["01/13/2024", "05/06/2024"], "DATE", "MM/dd/yyyy", "1 of 2 values can only be month first"),
        (["1/2/2024", "5/6/2024"], "DATE", "d/M/yyyy", "day first is assumed"),
        (["1.2.24", "31.12.23"], "DATE", "d.M.yy", "1 of 2"),
        (["2024/01/31", "2024/02/01"], "DATE", "yyyy/MM/dd", ""),
        (["20240131", "20240201"], "DATE", "yyyyMMdd", ""),
        (["3 Jan 2024", "14 Feb 2024"], "DATE", "d MMM yyyy", ""),
        (["Jan 3, 2024", "Feb 14, 2024"], "DATE", "MMM d, yyyy", ""),
        (["3-Jan-24", "14-Feb-24"], "DATE", "d-MMM-yy", ""),
        (["31.01.2024 10:00", "01.02.2024 11:30"], "TIMESTAMP", "dd.MM.yyyy HH:mm", "1 of 2"),
        (["31.01.2024 10:00:01", "01.02.2024 11:30"], "TIMESTAMP", "dd.MM.yyyy HH:mm[:ss]", ""),
        (["1/2/2024 3:04 PM", "1/3/2024 11:00 am"], "TIMESTAMP", "M/d/yyyy h:mm a", "month first"),
        (["31/01/2024T10:00:00.123", "01/02/2024T10:00:00.5"], "TIMESTAMP", "dd/MM/yyyy'T'HH:mm:ss.SSS", ""),
        (["31/01/2024 10:00:00+01:00", "01/02/2024 10:00:00-05:00"], "TIMESTAMP",
         "dd/MM/yyyy HH:mm:ssXXX", ""),
        (["2024-01-31T10:00:00+0100", "2024-02-01T10:00:00+0100"], "TIMESTAMP",
         "yyyy-MM-dd'T'HH:mm:ssXX", ""),
        (["1700000000", "1700000060"], "TIMESTAMP", "epoch s", "seconds"),
        (["1700000000000", "1700000060000"], "TIMESTAMP", "epoch ms", "milliseconds"),
        (["31/02/2024", "32/01/2024"], "STRING", "", ""),
        (["10.0.0.1", "10.0.0.2"], "STRING", "", ""),
        (["n/a", "-", "3"], "BIGINT", "", "null is written -, n/a"),
        (["-", "?"], "STRING", "", ""),
        (["12345678901234567890"], "STRING", "", "has too many digits"),
    ],
)  # fmt: skip
def test_column_types_and_formats_are_inferred(
    values: list[str], kind: str, form: str, evidence: str
) -> None:
    rows = "".join(f"{value};x{number}\n" for number, value in enumerate(values))
    (column, _) = infer(f"time;name\n{rows}").columns
    assert (column.name, column.type, column.form) == ("time", kind, form)
    assert evidence in column.evidence
    assert not column.invalid


@pytest.mark.parametrize(
    ("text", "separator", "header", "names"),
    [
        ("a,b\n1,2\n", ",", True, ["a", "b"]),
        ("1,2\n3,4\n", ",", False, ["c1", "c2"]),
        ("a;b\n1,5;2,5\n", ";", True, ["a", "b"]),
        ("1,5;2,5\n3,5;4,5\n", ";", False, ["c1", "c2"]),
        ("a\tb, c\n1\tx, y\n", "\t", True, ["a", "b, c"]),
        ("a|b\n1|2\n", "|", True, ["a", "b"]),
        ("name\nx\ny\n", ",", True, ["name"]),
        ("x,n\nx,1\ny,2\n", ",", True, ["x", "n"]),
        ("a,b\nc,d\na,b\ne,f\n", ",", True, ["a", "b"]),
        ("Berlin,DE\nMunich,DE\n", ",", False, ["c1", "c2"]),
        ("a,a,\n1,2,3\n", ",", False, ["c1", "c2", "c3"]),
        ("a,b,\n1,2,3\n", ",", True, ["a", "b", "c3"]),
        ("op,offset,x\n1,2,3\n", ",", True, ["source_op", "source_offset", "x"]),
        ("2024-01-01,a\n2024-01-02,b\n", ",", False, ["c1", "c2"]),
        ("a,b\n'x, y',1\n'z, z',2\n'w, w',2\n", ",", True, ["a", "b"]),
        ('a,b\r\n"x\r\ny",1\r\n"z",2\r\n', ",", True, ["a", "b"]),
    ],
)
def test_separator_header_and_names_are_inferred(
    text: str, separator: str, header: bool, names: list[str]
) -> None:
    found = infer(text)
    assert (found.separator, found.header) == (separator, header)
    assert [column.name for column in found.columns] == names
    assert not found.bad_rows


@pytest.mark.parametrize(
    ("text", "options", "names", "rows"),
    [
        # Fields beside an empty first column, and columns without a name.
        (",Payments above 500,,,\n,Period:,13,,\n,Start:,4 March 2012,,\n,Id,Vendor,Amount,\n"
         ',1,"A, B","1,000.50",\n,2,C,20.00,\n', "--skip 3", ["", "Id", "Vendor", "Amount", ""], 2),
        ("Report,,,,,,,,\nPeriod:,7,,,,,,,\nEnd:,12 Oct 2013,,,,,,,\n,,,,,,,,\n"
         "Id,Vendor,Cost,Account,No,Amount,,,\n1,A,3,Rent,5,1.5,,,\n2,B,3,Grant,6,2.5,,,\n", "--skip 4",
         ["Id", "Vendor", "Cost", "Account", "No", "Amount", "", "", ""], 2),
        # Another header above the header.
        (",,\nPayments,,\n,,\nSupplier,Expense,Amount\n\nSupplier Name,Expense Code,Amount Paid\nA,Rent,1.5\n"
         "B,Rent,2\n", "--skip 5", ["Supplier Name", "Expense Code", "Amount Paid"], 2),
        # The names of the first columns below groups of columns.
        (",,,Key figures,,2011,\n,,,,,,\n,,province,province,province,province,province\n,,A,B,C,D,E\n"
         "NR.,Cluster,,,,,\n0,Income:,,,,,\n1,Taxes,208,173,163,179,190\n2,Other,7,55,52,66,37\n",
         "--skip 2 --header-rows 3", ["NR.", "Cluster", *(f"province {each}" for each in "ABCDE")], 3),
        # Years as names, and a separator at the end.
        ('"Data Source","Indicators",\n\n"Updated","2020-07-01",\n\n"Country","Code","1960","1961","1962",\n'
         '"Aruba","ABW","","","",\n"Angola","AGO","5.5","4","4",\n"Albania","ALB","1","2","3",\n',
         "--skip 4", ["Country", "Code", "1960", "1961", "1962", ""], 3),
        ("Region,1,2,3,4,5\nNorth,10,12,13,14,15\nSouth,20,22,23,24,25\n", "",
         ["Region", "1", "2", "3", "4", "5"], 2),
        ("Area,2019,2020\nEngland,,\nNorth,1,2\nWales,,\nCardiff,5,6\n", "", ["Area", "2019", "2020"], 4),
        # Fields, footnotes and a separator at the end of the rows.
        ('\nPhysicians: years, region\n*****\nRegion:;Germany\n""\n;"1985";"1993";"2000";\n'
         '"A ...";" ";" ";" ";\n"B";".";"379";"575";\n"C";".";"1";"";\n"D";".";"1.613";"2.003";\n\n'
         '*****\n"1.";"Until 1992 only west"\n',
         "--separator ; --skip 5 --stop-at-blank", ["", "1985", "1993", "2000", ""], 4),
        # Names for another number of columns.
        ("a,b,c\n1,2,3,\n4,5,6,\n", "--names a,b,c,c4", ["a", "b", "c", ""], 2),
        ('"mpg","cyl"\n"1",21,6\n"2",22,4\n', "--names c1,mpg,cyl", ["", "mpg", "cyl"], 2),
        ("id,name,x,y,z\n1,foo,2\n2,bar,3,4\n3,baz,3\n4,q,1,2,3\n5,r,9\n", "--ragged pad",
         ["id", "name", "x", "y", "z"], 5),
        ("Area,Cases\nNorth,3\nSouth,4\nTotal,7\n", "--until ^Total$", ["Area", "Cases"], 2),
        ("Anna Smith\nBob Jones\n", "", ["Anna Smith"], 1),
        ("10:30:00\n11:45:10\n12:00:00\n", "", [""], 3),
        ("Name Age\nAnna 30\nBob 25\n", "", ["Name", "Age"], 2),
        ('id,name\n1,"ROAD\n2,plain\n3,said "hi"\n4,z\n', "", ["id", "name"], 4),
    ],
)  # fmt: skip
def test_layout_of_published_files_is_inferred(text: str, options: str, names: list[str], rows: int) -> None:
    found = infer(text)
    assert found.filters == ((("csv", *options.split()),) if options else ())
    assert [column.source for column in found.columns] == names
    assert len(found.rows) == rows
    assert bool(found.evidence) == bool(options)


def test_a_comma_before_three_digits_separates_thousands_unless_the_file_has_decimal_commas() -> None:
    def form(text: str) -> str:
        return infer_csv(text, FileChoices(), Reporter()).columns[1].form

    assert form('k,n\na,"1,200"\nb,800\n') == "1,234.5"
    assert form("k\tn\na\t1,200\nb\t800\n") == "1,234.5"
    assert form("k;n\na;1,200\nb;800\n") == "1.234,5"
    assert form("k\tn\tm\na\t1,200\t0,5\nb\t800\t1,25\n") == "1.234,5"


def test_bad_rows_are_named_and_the_others_are_read() -> None:
    rows = [f"{day:02d}/01/2024;S{day};{day},50" for day in range(1, 29)]
    rows[3], rows[10], rows[20] = "short", "31/02/2024;x;1,5", "01/01/2024;y;much"
    found = infer("\n".join(["when;name;amount", *rows, "a;b;c;d"]))
    assert [(row.line, row.reason) for row in found.bad_rows] == [
        (5, "1 value for 3 columns"),
        (12, "when: '31/02/2024' is not a DATE written dd/MM/yyyy"),
        (22, "amount: 'much' is not a DOUBLE written 1.234,5"),
        (30, "4 values for 3 columns"),
    ]
    assert [(column.type, column.form) for column in found.columns] == [
        ("DATE", "dd/MM/yyyy"), ("STRING", ""), ("DOUBLE", "1.234,5"),
    ]  # fmt: skip
    assert [line for line, _ in found.rows][3] == 6
    with pytest.raises(BadData, match="no rows"):
        infer("\n\n")


def test_choices_replace_what_is_inferred() -> None:
    text = "when,plz\n1/2/2024,01234\n3/4/2024,1x\n"
    found = infer(text, types={0: ("DATE", "M/d/yyyy"), 1: ("BIGINT", "")}, names={1: "code"})
    assert [(column.name, column.type, column.form) for column in found.columns] == [
        ("when", "DATE", "M/d/yyyy"), ("code", "BIGINT", ""),
    ]  # fmt: skip
    assert [row.reason for row in found.bad_rows] == ["code: '1x' is not a BIGINT"]
    found = infer(text, header=False, separator=";", quote="")
    assert [column.name for column in found.columns] == ["c1"]
    assert infer("n\n1,5\n2,5\n3,5\n", separator=";").columns[0].form == "1.234,5"


FORMS = ("dd/MM/yyyy", "MM/dd/yyyy", "dd.MM.yyyy", "yyyy/MM/dd", "dd-MMM-yyyy", "MMM dd, yyyy")
STRFTIME = {"dd": "%d", "MMM": "%b", "MM": "%m", "yyyy": "%Y", "HH": "%H", "mm": "%M", "ss": "%S"}


@given(
    st.sampled_from(FORMS),
    st.sampled_from(("", " HH:mm", " HH:mm:ss")),
    st.integers(0, 86_400 * 365 * 30),
    st.integers(10, 40),
)
def test_dates_of_a_series_are_read_as_they_were_written(
    form: str, clock: str, start: int, days: int
) -> None:
    pattern = form + clock
    text = pattern
    for letters, directive in STRFTIME.items():
        text = text.replace(letters, directive) if letters != "MM" or "MMM" not in form else text
    moments = [datetime(1990, 1, 1) + timedelta(seconds=start, days=day) for day in range(days)]
    written = [moment.strftime(text) for moment in moments]
    (column, _) = infer("when;n\n" + "".join(f"{each};{at}\n" for at, each in enumerate(written))).columns
    assert not column.invalid
    parse = time_parser(column.form)
    length = 10 if not clock else 19
    shown = [moment.strftime("%Y-%m-%d" if not clock else "%Y-%m-%d %H:%M:%S") for moment in moments]
    if clock == " HH:mm":
        shown = [each[:17] + "00" for each in shown]
    day_is_clear = form[:2] not in ("dd", "MM") or "MMM" in form or any(moment.day > 12 for moment in moments)
    if day_is_clear:
        assert [(parse(each) or "")[:length] for each in written] == shown


@given(st.text(max_size=300))
def test_any_text_is_inferred_or_refused(text: str) -> None:
    try:
        found = infer(text)
    except BadData:
        return
    assert all(len(row) == len(found.columns) for _, row in found.rows)
