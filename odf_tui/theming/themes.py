"""Colour themes from TOML files, the palette of styles, and reduction to 256 colours."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol, cast

from rich.color import Color as RichColor
from rich.color import ColorType
from rich.palette import Palette as ColourTable
from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.color import Color, ColorParseError
from textual.filter import LineFilter
from textual.theme import Theme

from odf_engine.api import read_small_file, user_folder
from odf_engine.errors import InvalidManifest, NotFound, OdfError, has_surrogates

COLOURS: Final = (
    "background", "foreground", "muted", "rule", "primary", "accent", "success", "warning", "error",
    "bar-background", "bar-foreground", "cursor-background", "cursor-foreground",
    "idle-background", "idle-foreground",
)  # fmt: skip
STYLES: Final = ("cursor", "idle", "bar")
DEFAULT: Final = "tide"
LIGHT: Final = "paper"
FEW_COLOURS: Final = "sixteen"
_EXTRA_COLOURS: Final = COLOURS[2:4] + COLOURS[9:]  # variables that Textual lacks
_STYLE_WORDS: Final = frozenset({"none", "bold", "italic", "underline", "reverse"})


def folder() -> Path:
    """Return the folder of the built-in themes: in the package, or next to it in a source checkout."""
    package = Path(__file__).parents[1]
    installed = package / "themes"
    return installed if installed.is_dir() else package.parent / "themes"


def own_folder() -> Path:
    """Return the folder of the user's themes, which may not exist."""
    return user_folder() / "themes"


def names() -> list[str]:
    """Return the names of all themes, the default first. Their files are not checked."""
    stems = {path.stem for folder_path in (folder(), own_folder()) for path in folder_path.glob("*.toml")}
    shown = [name for name in stems if not has_surrogates(name)]
    return sorted(shown, key=lambda name: (name != DEFAULT, name))


def load(name: str, *, few: bool = False, own: bool = True) -> Theme:
    """Load a theme.

    Args:
        name: the name of the theme.
        few: whether the terminal has at most 16 colours. Themes with more colours then get the
            colours of ``sixteen``: the terminal's approximations would not be readable.
        own: whether themes of the user are included; they override built-in ones.

    Raises:
        NotFound: there is no theme of this name.
        InvalidManifest: the file is unreadable, a name is missing or unknown, or a colour or style is
            invalid; ``where`` names file and line.
    """
    folders = [own_folder(), folder()] if own else [folder()]
    path = next((path for theme_folder in folders if (path := theme_folder / f"{name}.toml").is_file()), None)
    if path is None:
        raise NotFound(f"unknown theme '{name}'", hint="themes: " + ", ".join(names()))
    theme = _read(name, path)
    return theme if theme.ansi or not few else _read(name, folder() / f"{FEW_COLOURS}.toml")


def problems() -> dict[str, OdfError]:
    """Return the errors in the user's themes, by name of the theme."""
    errors: dict[str, OdfError] = {}
    for path in sorted(own_folder().glob("*.toml")):
        try:
            _read(path.stem, path)
        except OdfError as error:
            errors[path.stem] = error
    return errors


def _read(name: str, path: Path) -> Theme:
    try:
        text = read_small_file(path).decode("utf-8")
    except OSError as error:
        raise InvalidManifest(f"the theme cannot be read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise InvalidManifest("the theme is not UTF-8 text", where=str(path)) from None
    try:
        content = tomllib.loads(text)
    except RecursionError:
        raise InvalidManifest("invalid TOML: nested too deeply", where=str(path)) from None
    except tomllib.TOMLDecodeError as error:
        message, _, place = str(error).partition(" (at ")
        line = place.removeprefix("line ").partition(",")[0]
        if not line.isdigit():
            line = str(len(text.splitlines()))  # the error is at the end of the document
        raise InvalidManifest(
            f"invalid TOML: {message[:1].lower()}{message[1:]}", where=f"{path}:{line}"
        ) from None
    return _build_theme(name, content, _File(path, text))


class _File:
    """The file of a theme, for positions in error messages."""

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._lines = path, text.splitlines()

    def line_of(self, table: str, key: str = "") -> str:
        """Return ``path:line`` of a key in a table, else of the table, else the path alone."""
        inside = False
        for number, line in enumerate(self._lines, start=1):
            if re.match(r"\s*\[", line):
                inside = re.match(rf"\s*\[\s*[\"']?{re.escape(table)}[\"']?\s*\]", line) is not None
            if inside and (not key or re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line)):
                return f"{self._path}:{number}"
        return str(self._path)


def _build_theme(name: str, content: Mapping[str, object], file: _File) -> Theme:
    colours = _read_table(content, "colours", COLOURS, file)
    styles = _read_table(content, "styles", STYLES, file)
    for key, value in colours.items():
        try:
            # Transparent colours would mix with the background.
            if Color.parse(value).a < 1 and not value.startswith("ansi_"):
                raise ColorParseError(value)
        except ColorParseError:
            raise InvalidManifest(
                f"invalid colour '{value}'",
                where=file.line_of("colours", key),
                hint=f'use {key} = "#rrggbb", or a name such as "ansi_bright_red"',
            ) from None
    for key, value in styles.items():
        if not _STYLE_WORDS.issuperset(value.split()):
            raise InvalidManifest(
                f"invalid style '{value}'",
                where=file.line_of("styles", key),
                hint="use none, or any of bold, italic, underline and reverse, separated by spaces",
            )
    ansi = all(value.startswith("ansi_") for value in colours.values())
    variables = {key: colours[key] for key in _EXTRA_COLOURS}
    variables |= {f"{key}-style": value for key, value in styles.items()}
    variables |= {
        "block-cursor-background": colours["cursor-background"],
        "block-cursor-foreground": colours["cursor-foreground"],
        "ansi-background": colours["background"],
        "ansi-foreground": colours["foreground"],
        "input-cursor-background": colours["foreground"],
        "input-cursor-foreground": colours["background"],
        "input-selection-background": colours["cursor-background"],
        "input-selection-foreground": colours["cursor-foreground"],
        "border": colours["primary"],
        "border-blurred": colours["rule"],
        "scrollbar": colours["rule"],
        "scrollbar-hover": colours["muted"],
        "scrollbar-active": colours["primary"],
        "scrollbar-background": colours["background"],
        "scrollbar-background-hover": colours["background"],
        "scrollbar-background-active": colours["background"],
        "scrollbar-corner-color": colours["background"],
    }
    return Theme(
        name=name,
        dark=bool(content.get("dark", True)),
        ansi=ansi,
        primary=colours["primary"],
        secondary=colours["muted"],
        accent=colours["accent"],
        success=colours["success"],
        warning=colours["warning"],
        error=colours["error"],
        foreground=colours["foreground"],
        background=colours["background"],
        surface=colours["background"],
        panel=colours["bar-background"],
        variables=variables,
    )


def _read_table(
    content: Mapping[str, object], key: str, expected: tuple[str, ...], file: _File
) -> dict[str, str]:
    table = content.get(key)
    texts = {str(name): str(value) for name, value in table.items()} if isinstance(table, dict) else {}
    unknown, missing = texts.keys() - set(expected), set(expected) - texts.keys()
    for name in sorted(unknown):
        raise InvalidManifest(
            f"unknown name '{name}' in table '{key}'",
            where=file.line_of(key, name),
            hint="use only " + ", ".join(expected),
        )
    if missing:
        raise InvalidManifest(
            f"table '{key}': missing " + ", ".join(name for name in expected if name in missing),
            where=file.line_of(key),
        )
    return texts


class Palette(dict[str, Style]):
    """Styles by name, and their combinations, which are cached."""

    def __init__(self, styles: Mapping[str, Style]) -> None:
        super().__init__(styles)
        self._mixed: dict[tuple[str, str, str], Style] = {}

    def mix(self, ground: str, line_style: str, name: str) -> Style:
        """Return the style ``name`` on a line of style ``line_style`` on the background ``ground``."""
        key = (ground, line_style, name)
        if (style := self._mixed.get(key)) is None:
            style = self._mixed[key] = self[ground] + self[line_style] + self[name]
        return style


class _HasPalette(Protocol):
    palette: Palette


def palette_of(app: App[Any]) -> Palette:
    """Return the styles of the current theme of the workstation."""
    return cast("_HasPalette", app).palette


def palette(theme: Theme) -> Palette:
    """Return the styles of a theme; ``base`` includes the background."""
    variables = theme.to_color_system().generate() | theme.variables

    def colour(name: str) -> RichColor:
        return Color.parse(variables[name]).rich_color

    def part(name: str, style: str = "none") -> Style:
        return Style.parse(style) + Style.from_color(colour(name))

    def block(name: str) -> Style:
        return part(f"{name}-foreground", variables[f"{name}-style"]) + Style.from_color(
            bgcolor=colour(f"{name}-background")
        )

    ground = Style.from_color(bgcolor=colour("background"))
    styles = {
        "base": part("foreground") + ground,
        "": Style.null(),
        "strong": Style(bold=True),
        "muted": part("muted"),
        "rule": part("rule"),
        "lineage": part("accent", "bold"),
        "key": part("primary", "bold"),
        "name": part("primary"),
        "title": part("accent"),
        "good": part("success"),
        "warn": part("warning"),
        "busy": part("accent", "bold"),
        "bad": part("error", "bold"),
        "head": part("muted", "bold"),
        "below": part("rule", "dim" if theme.ansi else "none") + ground,
        "mark": part("primary", "not reverse not underline") + ground,
        "idle-mark": part("muted", "not reverse not underline") + ground,
        "bar": block("bar"),
        "cursor": block("cursor"),
        "idle": block("idle"),
    }
    return Palette(styles)


@lru_cache(1)
def _fixed_colours() -> ColourTable:
    # The first 16 colours depend on the terminal.
    from rich._palettes import EIGHT_BIT_PALETTE

    colours = (EIGHT_BIT_PALETTE[number] for number in range(16, 256))
    return ColourTable([(colour.red, colour.green, colour.blue) for colour in colours])


@lru_cache(4096)
def nearest(color: RichColor) -> RichColor:
    """Return the closest fixed 8-bit colour of a 24-bit one; other colours are returned unchanged."""
    if color.type is not ColorType.TRUECOLOR or color.triplet is None:
        return color
    return RichColor.from_ansi(16 + _fixed_colours().match(color.triplet))


@lru_cache(4096)
def _reduce_style(style: Style) -> Style:
    colours = [None if colour is None else nearest(colour) for colour in (style.color, style.bgcolor)]
    return style + Style.from_color(*colours)


class EightBitColours(LineFilter):
    """Maps 24-bit colours to the nearest 8-bit ones."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Map the colours of a line."""
        return [
            Segment(text, None if style is None else _reduce_style(style), control)
            for text, style, control in segments
        ]
