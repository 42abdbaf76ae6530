"""The list of help topics and their pages. Picture: ``tests/golden/help-80x24-page.txt``."""

from __future__ import annotations

import os

import pytest

from odf_engine.base.config import UiConfig
from odf_tui.features.help_topics import HelpPage, HelpPageDialog, HelpTopicsController
from odf_tui.help.markdown import render_page
from odf_tui.help.pages import TOPICS, read_page
from odf_tui.theming.ascii_fallback import ASCII
from tests.tui.conftest import Driven, driven
from tests.tui.context import Fakes
from tests.tui.scripted_worker import Scenario
from tests.tui.test_golden_screens import GOLDEN
from tests.tui.test_themes import hard_to_read


def compare(drive: Driven, name: str) -> None:
    """Compare the screen with its golden text."""
    path, text = GOLDEN / f"help-{name}.txt", drive.text()
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def page_of(drive: Driven) -> HelpPage:
    """Return the page that is shown."""
    assert isinstance(drive.app.screen, HelpPageDialog)
    return drive.app.screen.query_one(HelpPage)


@pytest.mark.app
async def test_help_topics_open_from_key_list_and_palette(source: Scenario) -> None:
    async with driven(source, (80, 24)) as drive:
        await drive.press("question_mark", "0")
        assert "Help topics" in drive.text()
        assert TOPICS["getting-started"] in drive.text()
        await drive.press("=watermark", "enter")
        assert "Help: event-time" in drive.text()
        compare(drive, "80x24-page")
        page = page_of(drive)
        assert page.virtual_size.width <= page.scrollable_content_region.width
        await drive.press("G")
        assert page.scroll_offset.y > 20
        await drive.press("right_square_bracket")
        assert "Help: verification" in drive.text()
        assert page.scroll_offset.y == 0
        # Escape returns to the list, with the cursor on the last topic; the next one closes it.
        await drive.press("escape", "enter")
        assert "Help: verification" in drive.text()
        await drive.press("escape", "escape")
        assert drive.app.screen is drive.bench
        # The palette has the action and the pages; q closes a page.
        await drive.press("colon", "=trace rows and values", "enter")
        assert "Help: provenance" in drive.text()
        await drive.press("q")
        await drive.press("colon", "=help topics", "enter", "enter")
        assert "Help: getting-started" in drive.text()
        await drive.press("q")
        assert drive.app.screen is drive.bench


@pytest.mark.app
@pytest.mark.complete
async def test_pages_fit_small_terminals_few_colours_and_ascii(source: Scenario) -> None:
    source.ui = UiConfig(ascii="always")
    async with driven(source, (60, 14)) as drive:
        await drive.press("0", "=glossary", "enter")
        for _ in TOPICS:
            await drive.press("right_square_bracket")
            assert drive.text().isascii(), drive.text()
            assert max(map(len, drive.text().splitlines())) <= 60
            page = page_of(drive)
            assert page.virtual_size.width <= page.scrollable_content_region.width
        before = drive.text()
        await drive.resize(100, 30)
        assert page_of(drive).virtual_size.width > 60
        await drive.resize(60, 14)
        assert drive.text() == before
        drive.app._few_colours = True
        assert drive.app.use_theme("tide")
        await drive.settle()
        assert hard_to_read(drive, 16) == []


def test_a_page_is_copied_as_markdown(source: Scenario) -> None:
    copied: list[str] = []

    def choose(dialog: HelpPageDialog) -> None:
        dialog._copy = copied.append
        dialog.action_copy()

    fakes = Fakes(source, "harbour.tides", answers=["sql", choose])
    HelpTopicsController(fakes.context).show_topics()
    assert copied == [read_page("sql")]


def test_escape_in_a_page_shows_the_list_again(source: Scenario) -> None:
    fakes = Fakes(source, "harbour.tides", answers=["sql", "list", None])
    HelpTopicsController(fakes.context).show_topics()
    assert [type(dialog).__name__ for dialog in fakes.host.dialogs] == [
        "PickerDialog",
        "HelpPageDialog",
        "PickerDialog",
    ]
    assert fakes.host.dialogs[-1].cursor == list(TOPICS).index("sql")


def test_characters_of_pages_have_an_ascii_replacement() -> None:
    for topic in TOPICS:
        drawn = {letter for line in render_page(read_page(topic), 80) for text, _ in line for letter in text}
        assert {letter for letter in drawn if not letter.isascii()} <= set(ASCII), topic
