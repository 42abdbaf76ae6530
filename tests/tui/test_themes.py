"""Themes: complete, and readable in terminals with fewer colours."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from rich._palettes import EIGHT_BIT_PALETTE, STANDARD_PALETTE, WINDOWS_PALETTE
from rich.color import Color as RichColor
from rich.color import ColorType
from rich.color_triplet import ColorTriplet
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.theme import Theme

from odf_engine.errors import InvalidManifest, NotFound
from odf_tui.app import Workstation
from odf_tui.panes.pane_layout import PaneLayout
from odf_tui.theming import themes
from odf_tui.theming.themes import EightBitColours, nearest
from odf_tui.workbench import Workbench
from tests.tui.conftest import Driven, driven
from tests.tui.scripted_worker import Scenario


@cache
def luminance(colour: ColorTriplet) -> float:
    """Return the relative luminance of WCAG."""
    parts = [part / 255 for part in colour]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@cache
def contrast(one: ColorTriplet, other: ColorTriplet) -> float:
    """Return the contrast of WCAG, 1 to 21."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


LINUX = [(0, 0, 0), (170, 0, 0), (0, 170, 0), (170, 85, 0), (0, 0, 170), (170, 0, 170), (0, 170, 170)]
LINUX += [(170, 170, 170), (85, 85, 85), (255, 85, 85), (85, 255, 85), (255, 255, 85), (85, 85, 255)]
LINUX += [(255, 85, 255), (85, 255, 255), (255, 255, 255)]
XTERM = [(0, 0, 0), (205, 0, 0), (0, 205, 0), (205, 205, 0), (0, 0, 238), (205, 0, 205), (0, 205, 205)]
XTERM += [(229, 229, 229), (127, 127, 127), (255, 0, 0), (0, 255, 0), (255, 255, 0), (92, 92, 255)]
XTERM += [(255, 0, 255), (0, 255, 255), (255, 255, 255)]
SIXTEEN = {
    "linux": LINUX, "xterm": XTERM, "vga": STANDARD_PALETTE._colors, "windows": WINDOWS_PALETTE._colors
}  # fmt: skip

Pair = tuple[RichColor, RichColor]


@cache
def as_drawn(colour: RichColor, colours: int, sixteen: str = "xterm") -> ColorTriplet:
    """Return the colour that a terminal with so many colours shows."""
    if colour.type is ColorType.STANDARD:
        assert colour.number is not None
        return ColorTriplet(*SIXTEEN[sixteen][colour.number])
    assert colours > 16, "only the sixteen colours can be asked for there"
    if colours == 256:
        number = nearest(colour).number
        assert number is not None
        return EIGHT_BIT_PALETTE[number]
    return colour.get_truecolor()


def pairs(theme: Theme) -> dict[str, Pair]:
    """Return foreground and background of every text that lines and style sheet can draw."""
    palette = themes.palette(theme)
    found: dict[str, Pair] = {}
    for ground in ("base", "bar"):
        for whole in ("", "idle", "cursor"):
            for name in palette.keys() - {"rule", "below"} if whole != "cursor" else [""]:
                drawn = palette.mix(ground, whole, name)
                assert drawn.color is not None
                assert drawn.bgcolor is not None
                ink, under = (drawn.bgcolor, drawn.color) if drawn.reverse else (drawn.color, drawn.bgcolor)
                found[f"{name or 'text'} in {whole or 'a line'} on {ground}"] = (ink, under)
    variables = theme.to_color_system().generate() | theme.variables
    for ink, ground in (
        ("foreground", "background"),
        ("muted", "background"),  # titles, what stands in an empty line to type in
        ("primary", "background"),
        ("input-cursor-foreground", "input-cursor-background"),
        ("input-selection-foreground", "input-selection-background"),
    ):
        shades = Color.parse(variables[ink]), Color.parse(variables[ground])
        found[f"{ink} on {ground}"] = (shades[0].rich_color, shades[1].rich_color)
    return found


def too_close(theme: Theme, colours: int, sixteen: str = "xterm", least: float = 4.5) -> list[str]:
    """Return the pairs of colours with too little contrast."""
    found = {
        what: contrast(as_drawn(ink, colours, sixteen), as_drawn(ground, colours, sixteen))
        for what, (ink, ground) in pairs(theme).items()
    }
    palette = themes.palette(theme)
    rule = palette["base"] + palette["rule"]
    assert rule.color is not None
    assert rule.bgcolor is not None
    lines = contrast(as_drawn(rule.color, colours, sixteen), as_drawn(rule.bgcolor, colours, sixteen))
    wrong = [f"{what}: {value:.2f}" for what, value in found.items() if value < least]
    return wrong + [f"lines: {lines:.2f}"] * (lines < 3)


@pytest.mark.parametrize("colours", [2**24, 256])
@pytest.mark.parametrize("name", themes.names())
def test_every_theme_has_enough_contrast(name: str, colours: int) -> None:
    assert too_close(themes.load(name), colours) == []


@pytest.mark.parametrize("sixteen", SIXTEEN)
@pytest.mark.parametrize("name", themes.names())
def test_every_theme_has_enough_contrast_with_16_colours(name: str, sixteen: str) -> None:
    assert too_close(themes.load(name, few=True), 16, sixteen) == []


def test_the_contrast_theme_has_high_contrast() -> None:
    for colours in (2**24, 256):
        assert too_close(themes.load("contrast"), colours, least=7) == []


@pytest.mark.parametrize("colours", [2**24, 256])
@pytest.mark.parametrize("name", [name for name in themes.names() if name != themes.FEW_COLOURS])
def test_the_selection_differs_from_the_screen_and_from_other_panes(name: str, colours: int) -> None:
    palette = themes.palette(themes.load(name))

    def drawn(style: str) -> ColorTriplet:
        colour = palette[style].bgcolor
        assert colour is not None
        return as_drawn(colour, colours)

    assert contrast(drawn("cursor"), drawn("base")) >= 3
    assert contrast(drawn("cursor"), drawn("idle")) >= 2
    ink = palette["cursor"].color
    assert ink is not None
    assert contrast(as_drawn(ink, colours), drawn("cursor")) >= 4.5


@pytest.mark.parametrize("name", themes.names())
def test_the_mark_of_the_selection_shows_the_focus(name: str) -> None:
    palette = themes.palette(themes.load(name))
    marks = [palette.mix("base", line, mark) for line, mark in (("cursor", "mark"), ("idle", "idle-mark"))]
    assert not any(mark.reverse or mark.underline for mark in marks)
    assert marks[0].color != marks[1].color
    assert {mark.bgcolor for mark in marks} == {palette["base"].bgcolor}


@pytest.mark.parametrize("name", themes.names())
def test_themes_use_eight_backgrounds_with_16_colours(name: str) -> None:
    for what, (ink, ground) in pairs(themes.load(name, few=True)).items():
        assert ink.type is ground.type is ColorType.STANDARD, what
    for style in themes.palette(themes.load(name, few=True)).values():
        assert style.bgcolor is None or style.bgcolor.number < 8  # type: ignore[operator]


@pytest.mark.parametrize("name", themes.names())
def test_states_differ_without_colour(name: str) -> None:
    palette = themes.palette(themes.load(name, few=True))
    assert palette["cursor"].reverse
    assert palette["bar"].reverse
    assert palette["idle"].underline
    palette = themes.palette(themes.load(name))
    assert palette["cursor"].bold or palette["cursor"].reverse


def test_backgrounds_differ_with_256_colours() -> None:
    for name in themes.names():
        if name == themes.FEW_COLOURS:
            continue
        palette = themes.palette(themes.load(name))
        grounds = {nearest(palette[each].bgcolor).number for each in ("base", "bar", "cursor")}  # type: ignore[arg-type]
        assert len(grounds) == 3, name


def test_dark_shades_stay_distinct() -> None:
    line = [Segment("x", Style(color="#d5dde6", bgcolor="#10161d")), Segment("y", None)]
    mapped = EightBitColours().apply(line, Color(0, 0, 0))
    style = mapped[0].style
    assert style is not None
    assert style.bgcolor is not None
    assert style.bgcolor.number == 233
    assert mapped[1].style is None


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the user's themes, empty at first."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = themes.own_folder()
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def many_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal with 24-bit colours, independent of the one that runs the tests."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLORTERM", "truecolor")


TIDE = (themes.folder() / "tide.toml").read_text()


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (TIDE.replace('"#8f9fb0"', '"greyish"'), 'muted = "greyish"', "invalid colour 'greyish'"),
        (TIDE.replace('"#8f9fb0"', '"#8f9fb080"'), "muted =", "invalid colour"),
        (TIDE.replace("muted =", "mutde ="), "mutde =", "unknown name 'mutde' in table 'colours'"),
        (TIDE.replace('muted = "', '# "'), "[colours]", "table 'colours': missing muted"),
        (TIDE.replace('cursor = "bold"', 'cursor = "loud"'), 'cursor = "loud"', "invalid style 'loud'"),
        (TIDE.replace("dark = true", "dark = yes"), "dark = yes", "invalid TOML: invalid value"),
        ("dark = true\n", "", "table 'colours': missing background"),
        pytest.param("dark = " + "[" * 5000, "", "nested too deeply", id="deep"),
    ],
)
def test_errors_name_the_line_of_the_file(own: Path, text: str, line: str, message: str) -> None:
    (own / "mine.toml").write_text(text)
    with pytest.raises(InvalidManifest) as wrong:
        themes.load("mine")
    assert message in wrong.value.message
    numbers = [number for number, each in enumerate(text.splitlines(), 1) if line and each.startswith(line)]
    place = f":{numbers[0]}" if line else ""
    assert wrong.value.where == f"{own / 'mine.toml'}{place}"
    assert list(themes.problems()) == ["mine"]


def test_binary_and_missing_files_are_errors(own: Path) -> None:
    (own / "mine.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidManifest, match="not UTF-8"):
        themes.load("mine")
    with pytest.raises(NotFound) as missing:
        themes.load("elsewhere")
    assert "tide" in str(missing.value.hint)


def test_themes_of_the_user_override_built_in_ones(own: Path) -> None:
    assert themes.problems() == {}
    (own / "night.toml").write_text(TIDE.replace("#10161d", "#000011"))
    (own / "paper.toml").write_text(TIDE)
    assert themes.names() == ["tide", "contrast", "ember", "night", "paper", "sixteen"]
    assert themes.load("night").background == "#000011"
    assert themes.load("paper").dark
    assert not themes.load("paper", own=False).dark


def test_built_in_themes_are_listed() -> None:
    assert themes.names() == ["tide", "contrast", "ember", "paper", "sixteen"]
    assert not themes.load("paper").dark
    assert themes.load("sixteen").ansi


@pytest.mark.usefixtures("many_colours")
def test_a_theme_of_the_user_is_used(source: Scenario, own: Path) -> None:
    (own / "night.toml").write_text(TIDE.replace("#10161d", "#000011"))
    source.ui = replace(source.ui, theme="night")
    app = Workstation(source)
    assert app.theme == "night"
    assert app.palette["base"].bgcolor == RichColor.parse("#000011")
    assert "night" in app.theme_names


def notices_of(app: Workstation, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Check the settings as after the first paint. Returns the notices."""
    notices: list[str] = []
    bench = SimpleNamespace(post_message=lambda notice: notices.append(notice.text))
    monkeypatch.setattr(Workstation, "screen_stack", [bench])
    app._check_settings()
    return notices


@pytest.mark.usefixtures("many_colours")
@pytest.mark.parametrize("name", ["mine", "tide"])
def test_an_invalid_theme_falls_back_with_a_notice(
    source: Scenario, own: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own / f"{name}.toml").write_text("dark = true\n[colours]\n")
    source.ui = replace(source.ui, theme=name)
    app = Workstation(source)
    assert app.theme == "tide"
    assert "base" in app.palette
    (notice,) = notices_of(app, monkeypatch)
    assert f"{name}.toml:2" in notice
    assert "missing background" in notice
    assert name not in app.theme_names


def test_other_invalid_themes_are_one_notice(
    source: Scenario, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own / "one.toml").write_text("dark")
    (own / "two.toml").write_text("dark")
    app = Workstation(source)
    (notice,) = notices_of(app, monkeypatch)
    assert "one.toml:1" in notice
    assert "(and 1 more)" in notice
    assert "two" not in app.theme_names


def test_a_missing_theme_is_a_notice(source: Scenario, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source.ui = replace(source.ui, theme="mauve")
    (notice,) = notices_of(Workstation(source), monkeypatch)
    assert "unknown theme 'mauve'" in notice
    assert "paper" in notice


def test_problems_of_the_settings_come_first(
    source: Scenario, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source.odf / "config.yaml").write_text("ui: [")
    source.ui = replace(source.ui, theme="mauve")
    (notice,) = notices_of(Workstation(source), monkeypatch)
    assert "config.yaml:1" in notice and notice.endswith("(and 1 more)")


DRAWN = frozenset("▁▂▃▄▅▆▇█▐▌◇◆·┌└├│─╭╮╰╯━┃›‹") | frozenset(map(chr, range(0x2500, 0x2580)))


def hard_to_read(drive: Driven, colours: int) -> list[str]:
    """Return everything on the screen with too little contrast: text below 4.5, lines and bars below 3."""
    found: list[str] = []
    dimmed = drive.app.palette["below"] if drive.app.screen is not drive.bench else None
    for y, strip in enumerate(drive.app.screen._compositor.render_strips()):
        for text, style, _ in strip:
            if not text.strip() or style is None or style.color is None or style.bgcolor is None:
                continue
            if style == dimmed:
                continue
            value = contrast(as_drawn(style.color, colours), as_drawn(style.bgcolor, colours))
            if value < (3 if DRAWN.issuperset(text.replace(" ", "")) else 4.5):
                found.append(f"line {y}: {text.strip()!r} {value:.2f}")
    return found


@pytest.mark.app
@pytest.mark.usefixtures("many_colours")
@pytest.mark.complete
async def test_themes_are_readable_and_exchanged_while_running(
    source: Scenario, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is readable in some themes and depths of colour; themes are exchanged while it runs."""
    monkeypatch.setenv("TERM", "xterm-256color")
    (own / "broken.toml").write_text("dark")
    async with driven(source, (120, 36)) as drive:
        await drive.until(lambda: "broken.toml:1" in drive.hint())
        assert "broken" not in drive.app.theme_names
        # An invalid theme is refused with a notice, and the one in use stays.
        (own / "late.toml").write_text("dark")
        assert not drive.app.use_theme("late")
        await drive.until(lambda: "late.toml:1" in drive.hint())
        assert drive.app.theme == "tide"
        # Panes have the colours of the theme at once.
        for name in ("ember", "paper", "contrast"):
            assert drive.app.use_theme(name)
            drive.bench.controller(PaneLayout).apply_theme()
            theme = themes.load(name)
            primary = Color.parse(theme.to_color_system().generate()["primary"])
            front = drive.front.styles
            assert front.border_top[1] == primary
            assert front.border_title_color == primary
            assert drive.jobs_pane.styles.border_top[1] == Color.parse(theme.variables["rule"])
        # Everything on the screen has enough contrast.
        for name, colours in (("ember", 2**24), ("paper", 256), ("tide", 16)):
            drive.app._few_colours = colours == 16
            assert drive.app.use_theme(name)
            for keys in (
                ["1", "l"],
                ["2", "enter"],
                ["escape", "3", "j", "l"],
                ["question_mark"],
                ["escape", "slash", "=air"],
                ["escape", "escape", "colon", "=pul"],
                ["escape", "4", "enter"],
                ["escape", "s"],
            ):
                await drive.press(*keys)
                assert hard_to_read(drive, colours) == [], (name, colours, keys)
            await drive.press("escape", "escape", "1", "g")
        # Themes of Textual, which lack the workstation's own colours, do not fail.
        for name in ("textual-dark", "textual-light", "ansi-dark", "nord"):
            drive.app.theme = name
            await drive.pilot.pause()
        assert isinstance(drive.app.screen, Workbench)


@pytest.mark.app
@pytest.mark.usefixtures("many_colours")
@pytest.mark.parametrize("name", ["tide", themes.FEW_COLOURS])
async def test_the_screen_below_a_dialog_is_dimmed(source: Scenario, name: str) -> None:
    async with driven(source, (120, 36)) as drive:
        assert drive.app.use_theme(name)
        await drive.press("3")

        def status() -> list[Style | None]:
            strips = drive.app.screen._compositor.render_strips()
            return [style for text, style, _ in strips[-2] if text.strip()]

        bright = status()
        dimmed = drive.app.palette["below"]
        assert dimmed not in bright
        await drive.press("question_mark")
        assert set(status()) == {dimmed}
        assert dimmed.dim or dimmed.color == RichColor.parse("#5a6c7f")
        await drive.press("escape")
        assert status() == bright
