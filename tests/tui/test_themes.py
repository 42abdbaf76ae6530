"""Themes: complete, and readable after the terminal has made of their colours what it can."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich._palettes import EIGHT_BIT_PALETTE, STANDARD_PALETTE, WINDOWS_PALETTE
from rich.color import Color as RichColor
from rich.color import ColorSystem, ColorType
from rich.color_triplet import ColorTriplet
from rich.segment import Segment
from rich.style import Style
from textual.color import Color

from odf_engine.errors import InvalidManifest, NotFound
from odf_tui import themes
from odf_tui.colours import NearestColours, nearest
from odf_tui.screens.workbench import Workbench
from odf_tui.workstation import Workstation
from tests.tui.conftest import driven
from tests.tui.fake import FakeSource

TEXT = ("", "muted", "name", "title", "good", "warn", "busy", "bad", "head", "key", "lineage", "strong")
BLOCKS = ("bar", "cursor", "idle")


def luminance(colour: ColorTriplet) -> float:
    """WCAG's relative luminance."""
    parts = [part / 255 for part in colour]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: ColorTriplet, other: ColorTriplet) -> float:
    """WCAG's contrast, 1 to 21."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def as_drawn(colour: RichColor, colours: int) -> ColorTriplet:
    """What a terminal with so many colours shows."""
    if colour.type is ColorType.STANDARD:
        assert colour.number is not None
        return STANDARD_PALETTE[colour.number]
    if colours == 256:
        number = nearest(colour).number
        assert number is not None
        return EIGHT_BIT_PALETTE[number]
    if colours == 16:
        number = colour.downgrade(ColorSystem.STANDARD).number
        assert number is not None
        return STANDARD_PALETTE[number]
    return colour.get_truecolor()


def pairs(name: str) -> dict[str, tuple[RichColor, RichColor]]:
    """Foreground and background of everything that is drawn."""
    palette = themes.palette(themes.load(name))
    found: dict[str, tuple[RichColor, RichColor]] = {}
    for style in TEXT:
        for ground in ("base", "idle"):
            drawn = palette["base"] + palette[ground] + palette[style]
            found[f"{style} on {ground}"] = (drawn.color, drawn.bgcolor)  # type: ignore[assignment]
    for block in BLOCKS:
        drawn = palette["base"] + palette[block]
        found[block] = (drawn.color, drawn.bgcolor)  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("colours", [2**24, 256])
@pytest.mark.parametrize("name", themes.names())
def test_everything_is_readable(name: str, colours: int) -> None:
    for what, (ink, ground) in pairs(name).items():
        found = contrast(as_drawn(ink, colours), as_drawn(ground, colours))
        assert found >= 4.5, f"{what}: {found:.2f}"


def test_the_theme_for_16_colours_is_readable_on_every_usual_palette() -> None:
    linux = [(0, 0, 0), (170, 0, 0), (0, 170, 0), (170, 85, 0), (0, 0, 170), (170, 0, 170), (0, 170, 170)]
    linux += [(170, 170, 170), (85, 85, 85), (255, 85, 85), (85, 255, 85), (255, 255, 85), (85, 85, 255)]
    linux += [(255, 85, 255), (85, 255, 255), (255, 255, 255)]
    for palette in (STANDARD_PALETTE._colors, WINDOWS_PALETTE._colors, linux):
        for what, (ink, ground) in pairs(themes.FEW_COLOURS).items():
            assert ink.type is ground.type is ColorType.STANDARD, what
            assert ground.number < 8, "the Linux console has eight backgrounds"  # type: ignore[operator]
            found = contrast(ColorTriplet(*palette[ink.number]), ColorTriplet(*palette[ground.number]))
            assert found >= 4.5, f"{what}: {found:.2f}"


@pytest.mark.parametrize("name", themes.names())
def test_what_matters_can_be_told_apart_without_colour(name: str) -> None:
    palette = themes.palette(themes.load(name))
    assert palette["cursor"].bold or palette["cursor"].reverse
    if name == themes.FEW_COLOURS:
        assert palette["cursor"].reverse
        assert palette["bar"].reverse
        assert palette["idle"].underline


def test_grounds_keep_apart_on_256_colours() -> None:
    for name in themes.names():
        if name == themes.FEW_COLOURS:
            continue
        palette = themes.palette(themes.load(name))
        grounds = {nearest(palette[each].bgcolor).number for each in ("base", "bar", "cursor")}  # type: ignore[arg-type]
        assert len(grounds) == 3, name


def test_dark_shades_do_not_collapse() -> None:
    line = [Segment("x", Style(color="#d5dde6", bgcolor="#10161d")), Segment("y", None)]
    mapped = NearestColours().apply(line, Color(0, 0, 0))
    style = mapped[0].style
    assert style is not None
    assert style.bgcolor is not None
    assert style.bgcolor.number == 233
    assert mapped[1].style is None


def test_files_that_are_wrong_name_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = (themes.folder() / "tide.toml").read_text()
    monkeypatch.setattr(themes, "folder", lambda: tmp_path)
    (tmp_path / "tide.toml").write_text(good)
    (tmp_path / "colour.toml").write_text(good.replace('"#8f9fb0"', '"greyish"'))
    (tmp_path / "name.toml").write_text(good.replace("muted =", "mutde ="))
    (tmp_path / "syntax.toml").write_text("dark = yes")
    assert themes.load("tide").dark
    with pytest.raises(InvalidManifest, match="'greyish' is not a colour") as wrong:
        themes.load("colour")
    assert "colours.muted" in str(wrong.value.where)
    with pytest.raises(InvalidManifest) as wrong:
        themes.load("name")
    assert "mutde, muted" in str(wrong.value.where)
    with pytest.raises(InvalidManifest, match="not TOML"):
        themes.load("syntax")
    with pytest.raises(NotFound) as missing:
        themes.load("elsewhere")
    assert "tide" in str(missing.value.hint)


def test_there_are_three_themes() -> None:
    assert themes.names() == ["tide", "paper", "sixteen"]
    assert not themes.load("paper").dark


async def test_the_key_takes_the_next_theme_and_it_is_remembered(source: FakeSource) -> None:
    async with driven(source) as drive:
        for name in ("paper", "sixteen", "tide"):
            await drive.press("T")
            assert drive.app.theme == name
            assert drive.app.palette == themes.palette(themes.load(name))
        assert source.saved == ["paper", "sixteen", "tide"]


async def test_a_theme_that_cannot_be_read_falls_back_and_says_so(
    source: FakeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tide.toml").write_text((themes.folder() / "tide.toml").read_text())
    (tmp_path / "mine.toml").write_text("dark = true\n[colours]\n")
    monkeypatch.setattr(themes, "folder", lambda: tmp_path)
    source.theme = "mine"  # type: ignore[misc]
    async with driven(source) as drive:
        assert drive.app.theme == "tide"
        assert "mine.toml" in drive.hint()


async def test_the_themes_of_textual_do_not_crash_us(source: FakeSource) -> None:
    app = Workstation(source)
    async with app.run_test(size=(80, 24)) as pilot:
        for name in ("textual-dark", "textual-light", "ansi-dark", "nord"):
            app.theme = name
            await pilot.pause()
        assert isinstance(app.screen, Workbench)
