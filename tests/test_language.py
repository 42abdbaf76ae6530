"""The language of everything that a person reads: strings, docstrings, help pages, README.

``python tests/test_language.py PATH…`` lists the places that break the rules, ``--list`` every string.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Words that stand for a standard term, or for no fact at all. Each has a better word: see the messages.
DIALECT = {
    r"anew": "again, rebuild",
    r"beside": "next to",
    r"tells?|told": "reports, shows",
    r"asks?|asked|asking": "queries, requests, prompts",
    r"says?|said|saying": "reports, states; use",
    r"gives?|gave|giving": "returns, produces",
    r"lies|lie|lay": "is stored, is",
    r"stands?|stood": "is",
    r"(?:come|comes|came|coming) (?:out|in|here|along)": "is emitted, is returned",
    r"(?:go|goes|went|gone|going) (?:on|another way)": "continues; diverged",
    r"look|looks|looked|looking": "read, check, search, view",
    r"what is": "name the subject",
    r"somebody|someone|nobody|no one|everybody|everyone|anybody": "name the subject: user, author, client",
    r"by now": "now, already",
    r"from there on": "from then on, after",
    r"of its own": "its own, separate",
    r"in (?:the )?place of": "instead of",
    r"amid|hence|whence|wherever|whatever|whoever": "use plain words",
    r"whole": "complete, entire, full",
    r"kept": "stored, cached, retained",
    r"taken": "ingested, used",
    r"brings?|brought|bringing": "imports, pulls",
    r"sought": "searched for",
    r"wants?|wanted": "requires, requested",
    r"alive": "running",
    r"ready-made": "prebuilt",
    r"elsewhere|places": "remotes, locations",
    r"(?:is|are|was|not) here": "in this workspace; not found",
    r"is there|are there already|is there already": "exists",
    r"too late": "late",
    r"(?:take|takes|taking|took) (?:in|over|back)": "ingest, pull, revoke",
    r"hears?|heard": "receives",
    r"knows?|knew": "has, reads, records",
    r"of no use": "cannot be used",
    r"shut in": "sandboxed",
    r"meanwhile": "during this time",
}
PATTERN = re.compile(r"\b(?:" + "|".join(f"(?:{each})" for each in DIALECT) + r")\b", re.IGNORECASE)

# Uses of these words that are standard terms, or are quoted: a file (or "*") and the text around the word.
EXCEPTIONS: dict[str, tuple[str, ...]] = {
    "*": ("whole number", "is there any", "AT TIME ZONE", "keep-alive"),
    "odf_tui/gateway/protocol.py": ("whole: whether",),  # the name of an attribute
    "odf_engine/verify/report.py": ("proof-elsewhere",),
    "odf_engine/ingest/fetch/files_glob.py": ("EXISTS taken", "FROM taken", "INTO taken"),
    "odf_engine/coordinator/results.py": ("``kept``",),
}


def strings_of(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield line, text and whether it is a docstring, of every text of a module that a person may read.

    Of other strings, those without a space are names and are left out. Fields of an f-string are ``{}``.
    """
    tree = ast.parse(path.read_text())
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented)
        and ast.get_docstring(node) is not None
        and isinstance(node.body[0], ast.Expr)
    }
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
            if " " in text.strip():
                yield node.lineno, text, False
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in parts
            and (id(node) in docstrings or " " in node.value.strip())
        ):
            yield node.lineno, node.value, id(node) in docstrings


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of all that a person reads in a file."""
    if path.suffix == ".py":
        yield from ((line, text) for line, text, _ in strings_of(path))
    else:
        yield from enumerate(path.read_text().splitlines(), 1)


def problems(path: Path) -> Iterator[str]:
    """Yield the places of a file where a word of the dialect is used."""
    name = path.relative_to(ROOT).as_posix()
    allowed = EXCEPTIONS["*"] + EXCEPTIONS.get(name, ())
    for line, text in texts_of(path):
        plain = " ".join(text.split())
        for each in allowed:
            plain = plain.replace(each, "")
        for found in PATTERN.finditer(plain):
            around = plain[max(found.start() - 50, 0) : found.end() + 50]
            better = next(v for k, v in DIALECT.items() if re.fullmatch(k, found[0], re.IGNORECASE))
            yield f"{name}:{line}: “{found[0]}” ({better}): …{around}…"


def readable_files() -> list[Path]:
    """Return the files whose text a person reads."""
    found = [path for name in ("odf_engine", "odf_tui") for path in sorted((ROOT / name).rglob("*.py"))]
    found += sorted((ROOT / "odf_tui").rglob("*.md")) + sorted((ROOT / "themes").glob("*.toml"))
    return [*found, ROOT / "README.md"]


def test_no_text_uses_a_word_of_the_dialect() -> None:
    found = [each for path in readable_files() for each in problems(path)]
    assert not found, "\n".join(found)


if __name__ == "__main__":
    roots = [Path(each).resolve() for each in sys.argv[1:] if each != "--list"]
    for file in [
        file for root in roots for file in ([root] if root.is_file() else sorted(root.rglob("*.py")))
    ]:
        if "--list" in sys.argv:
            for at, shown in texts_of(file):
                print(f"{file.relative_to(ROOT)}:{at}: {shown!r}")
        else:
            print(*problems(file), sep="\n")
