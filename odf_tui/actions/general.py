"""What is the same in every pane: finding, going, moving, leaving."""

from __future__ import annotations

from typing import Final

from odf_tui.actions.base import Action, need


def _move(name: str, keys: str, title: str) -> Action:
    return Action(name, tuple(keys.split()), title, listed=False)


ACTIONS: Final = (
    Action("filter", ("slash",), "filter this pane", hint="filter"),
    Action("copy", ("y",), "copy what is selected: id, hash, cell or log"),
    Action("zoom", ("z",), "zoom this pane, and back", hint="zoom"),
    Action(
        "palette", ("colon", "ctrl+p"), "find any action, dataset, block, column, job or theme", hint="find"
    ),
    Action("help", ("question_mark", "f1"), "show the keys that are valid now, and run them", hint="keys"),
    Action("up", ("escape",), "one level up: filter, zoom, pane", guard=need("up", "this is the top")),
    Action("pane_1", ("1",), "go to the datasets"),
    Action("pane_2", ("2",), "go to the blocks"),
    Action("pane_3", ("3",), "go to the rows"),
    Action("pane_4", ("4",), "go to the jobs"),
    Action("next_pane", ("tab",), "next pane"),
    Action("previous_pane", ("shift+tab",), "previous pane"),
    Action("refresh", ("r", "ctrl+r"), "read everything again"),
    Action("themes", ("T",), "show the colour themes, and take one"),
    Action("grow", ("plus",), "more room for this pane"),
    Action("shrink", ("minus",), "less room for this pane"),
    Action("usual_sizes", ("equals_sign",), "all panes as large as usual"),
    Action("quit", ("q", "ctrl+q", "ctrl+c"), "leave; running jobs go on", hint="quit"),
    _move("down", "j down", "down"),
    _move("above", "k up", "up"),
    _move("left", "h left", "left; in the graph: to an input"),
    _move("right", "l right", "right; in the graph: to what is made of it"),
    _move("first", "g home", "first"),
    _move("last", "G end", "last"),
    _move("page_down", "pagedown ctrl+d ctrl+f", "page down"),
    _move("page_up", "pageup ctrl+u ctrl+b", "page up"),
)
