"""Terminals with few characters: every drawn character has a replacement of the same width."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.color import Color

import odf_tui
from odf_engine.worker.protocol import JobState
from odf_tui.state.model import Health
from odf_tui.theming import ascii_fallback, terminal

BLACK = Color(0, 0, 0)


def drawn_glyphs() -> dict[str, str]:
    """Return every character beyond ASCII in texts of the screen, with its position in the code."""
    found: dict[str, str] = {}
    top = Path(odf_tui.__file__).parent
    for path in sorted(top.rglob("*.py")):
        if path.name == "ascii_fallback.py":
            continue  # the map of the Linux console
        tree = ast.parse(path.read_text(encoding="utf-8"))
        remarks = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in remarks:
                for letter in node.value:
                    if not letter.isascii():
                        found[letter] = f"{path.relative_to(top)}:{node.lineno}"
    return found


def test_every_drawn_glyph_is_in_the_map() -> None:
    glyphs = drawn_glyphs()
    assert len(glyphs) > 20
    assert {letter: place for letter, place in glyphs.items() if letter not in ascii_fallback.ASCII} == {}


def test_replacements_have_the_same_width() -> None:
    for letter, shown in ascii_fallback.ASCII.items():
        assert cell_len(letter) == cell_len(shown) == 1, letter
        assert shown.isascii()
        assert shown.isprintable()
    for letter in "◇◆✓▸╭▅…":
        assert cell_len(ascii_fallback.with_ascii(letter, "console")) == 1


@pytest.mark.parametrize("characters", ["ascii", "console"])
def test_different_meanings_have_different_characters(characters: str) -> None:
    for glyphs in (
        {health.glyph for health in Health},
        {"◇", "◆"},
        {"─", "━"},  # lineage that is lit
        {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"} if characters == "ascii" else set(),
        {"∅", "…", "·", "0", "?"},  # in cells of a table
    ):
        assert len({ascii_fallback.with_ascii(glyph, characters) for glyph in glyphs}) == len(glyphs)
    assert all(ascii_fallback.with_ascii(state.value) == state.value for state in JobState)


def test_foreign_text_keeps_its_width() -> None:
    assert ascii_fallback.with_ascii("naïve Łódź") == "naive ?odz"
    assert ascii_fallback.with_ascii("東京 x") == "???? x"
    assert ascii_fallback.with_ascii("e\u0301") == "e"  # an accent of its own has no cell
    assert ascii_fallback.with_ascii("\u2589\u254b") == "#+"
    for text in ("naïve", "東京", "e\u0301", "🚢 in"):
        assert cell_len(ascii_fallback.with_ascii(text)) == cell_len(text)


def test_the_console_keeps_the_characters_of_its_font() -> None:
    assert ascii_fallback.with_ascii("╭─┬┤ é ✓ ◆ 東", "console") == "┌─┬┤ é √ ◆ ??"


def texts(*parts: str) -> list[str]:
    """Return the texts of a line after the filter."""
    segments = [Segment(part, Style.null()) for part in parts]
    return [text for text, _, _ in ascii_fallback.CharacterFallback("ascii").apply(segments, BLACK)]


def test_enter_is_a_word_if_there_is_room() -> None:
    assert texts("╰─", "─" * 14, " ⏎ runs it ", "─╯") == ["+-", "-" * 10, " enter runs it ", "-+"]
    assert texts(" ", "⏎", " opens  ", "p", " " * 12) == [" ", "enter", " opens  ", "p", " " * 8]
    assert texts("⏎", " opens  ", "   ") == ["enter", " opens ", ""]
    assert texts("⏎", " opens") == ["<", " opens"]


@pytest.mark.parametrize(
    ("environ", "characters"),
    [
        ({}, "all"),
        ({"LANG": "C"}, "ascii"),
        ({"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}, "ascii"),
        ({"LC_CTYPE": "de_DE.utf8@euro", "LANG": "C"}, "all"),
        ({"LANG": "de_DE"}, "ascii"),
        ({"LANG": "ru_RU.KOI8-R"}, "ascii"),
        ({"LC_CTYPE": "UTF-8"}, "all"),
        ({"LANG": "C.UTF-8", "TERM": "linux"}, "console"),
    ],
)
def test_the_locale_determines_the_characters(environ: dict[str, str], characters: str) -> None:
    assert terminal.supported_characters("auto", environ) == characters
    assert terminal.supported_characters("always", environ) == "ascii"
    assert terminal.supported_characters("never", environ) == "all"


@pytest.mark.parametrize(
    ("locale", "characters"),
    [({"LANG": "C"}, "ascii"), ({"LC_ALL": "C"}, "ascii"), ({"LANG": "C.UTF-8"}, "all"), ({}, "all")],
)
def test_the_locale_of_the_process_start_is_used(locale: dict[str, str], characters: str) -> None:
    program = (
        "import os; from odf_tui.theming.terminal import supported_characters; "
        "print(supported_characters('auto', os.environ))"
    )
    kept = {
        name: value for name, value in os.environ.items() if name != "LANG" and not name.startswith("LC_")
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=kept | {"TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)} | locale,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == characters
