"""Templates in the text of an event: ``${{ env.NAME }}`` stands for a variable of the environment."""

from __future__ import annotations

import re
from typing import Final

from odf_engine.errors import InvalidManifest

TEMPLATE: Final = re.compile(r"\$\{\{(.*?)(\}\}|\Z)", re.DOTALL)
_NAME: Final = re.compile(r"\s*env\.([A-Za-z_][A-Za-z0-9_]*)\s*")


def variable_of(found: re.Match[str]) -> str:
    """The name of the variable that a template, a match of :data:`TEMPLATE`, stands for.

    Raises:
        InvalidManifest: a template of another kind, or one without an end.
    """
    name = _NAME.fullmatch(found[1])
    if name is None or not found[2]:
        raise InvalidManifest(
            f"'{found[0]}' cannot be filled in", hint="what can be: ${{ env.NAME }}, a variable by its name"
        )
    return name[1]


def names_in(text: str) -> list[str]:
    """The names of the variables that a text asks for, in their order, each once.

    Raises:
        InvalidManifest: a template of another kind, or one without an end.
    """
    return list(dict.fromkeys(map(variable_of, TEMPLATE.finditer(text))))
