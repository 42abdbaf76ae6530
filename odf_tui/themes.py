"""Colour themes: one small TOML file each, checked when it is read.

A file has ``dark``, a table ``colours`` with every name of :data:`COLOURS`, and a table ``styles`` with
every name of :data:`STYLES`. The style sheet knows the colours as ``$rule``, ``$cursor-background`` …,
and the styles as ``$cursor-style`` ….
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rich.color import Color as RichColor
from rich.style import Style
from textual.color import Color, ColorParseError
from textual.theme import Theme

from odf_engine.errors import InvalidManifest, NotFound

COLOURS: Final = (
    "background", "foreground", "muted", "rule", "primary", "accent", "success", "warning", "error",
    "bar-background", "bar-foreground", "cursor-background", "cursor-foreground",
    "idle-background", "idle-foreground",
)  # fmt: skip
STYLES: Final = ("cursor", "idle", "bar")
DEFAULT: Final = "tide"
FEW_COLOURS: Final = "sixteen"

_OWN: Final = COLOURS[2:4] + COLOURS[9:]  # those that Textual does not know by these names


def folder() -> Path:
    """Where the theme files are: in the installed package, or beside it in a source checkout."""
    here = Path(__file__).parent
    installed = here / "themes"
    return installed if installed.is_dir() else here.parent / "themes"


def names() -> list[str]:
    """The themes there are, the default first."""
    found = sorted(path.stem for path in folder().glob("*.toml"))
    return sorted(found, key=lambda name: name != DEFAULT)


def load(name: str) -> Theme:
    """Reads a theme.

    Raises:
        NotFound: there is none of this name.
        InvalidManifest: a name is missing or unknown, or a colour is none; ``where`` names the file.
    """
    path = folder() / f"{name}.toml"
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except FileNotFoundError:
        raise NotFound(f"there is no theme '{name}'", hint="themes: " + ", ".join(names())) from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidManifest(f"not TOML: {error}", where=str(path)) from None
    return _theme(name, content, path)


def _theme(name: str, content: Mapping[str, object], path: Path) -> Theme:
    colours = _table(content, "colours", COLOURS, path)
    styles = _table(content, "styles", STYLES, path)
    for key, value in colours.items():
        try:
            Color.parse(value)
        except ColorParseError:
            raise InvalidManifest(f"'{value}' is not a colour", where=f"{path}: colours.{key}") from None
    ansi = all(value.startswith("ansi_") for value in colours.values())
    variables = {key: colours[key] for key in _OWN}
    variables |= {f"{key}-style": value for key, value in styles.items()}
    variables |= {
        "block-cursor-background": colours["cursor-background"],
        "block-cursor-foreground": colours["cursor-foreground"],
        "ansi-background": colours["background"],
        "ansi-foreground": colours["foreground"],
        "input-cursor-background": colours["foreground"],
        "input-cursor-foreground": colours["background"],
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


def _table(content: Mapping[str, object], key: str, wanted: tuple[str, ...], path: Path) -> dict[str, str]:
    table = content.get(key)
    found = {str(name): str(value) for name, value in table.items()} if isinstance(table, dict) else {}
    if wrong := [*(set(wanted) - found.keys()), *(found.keys() - set(wanted))]:
        raise InvalidManifest(
            f"the table '{key}' needs these names: " + ", ".join(wanted),
            where=f"{path}: {', '.join(sorted(wrong))}",
        )
    return found


class Palette(dict[str, Style]):
    """Styles by name, and what they are on top of each other."""

    def __init__(self, styles: Mapping[str, Style]) -> None:
        super().__init__(styles)
        self._mixed: dict[tuple[str, str, str], Style] = {}

    def mix(self, ground: str, whole: str, name: str) -> Style:
        """The style ``name`` in a line of the style ``whole`` on a ground."""
        key = (ground, whole, name)
        if (style := self._mixed.get(key)) is None:
            style = self._mixed[key] = self[ground] + self[whole] + self[name]
        return style


def palette(theme: Theme) -> Palette:
    """The styles that lines are drawn with; ``base`` has the background."""
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
        "bar": block("bar"),
        "cursor": block("cursor"),
        "idle": block("idle"),
    }
    return Palette(styles)
