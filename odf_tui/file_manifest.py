"""A manifest for a data file or a URL, which a person sees and corrects before it is added."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from odf_tui.datafiles import FORMATS, endings, is_url
from odf_tui.guessing import Guess, guess, unpacking

_NO_TEXT: Final = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")


def manifest_for(place: str, folder: Path, name: str) -> str:
    """A manifest for a file, by its path from a folder, or for a URL, of which only the name is known."""
    if is_url(place):
        return _text(place, name, _example(place), "The columns are examples: write those of the file.")
    try:
        return _text(place, name, guess(folder / Path(place).expanduser()), "")
    except Exception as error:  # a damaged file makes its decoder raise anything, and examples do as well
        why = " ".join(str(error).split())
        return _text(place, name, _example(place), f"The columns are examples, for want of a look: {why}")


def _example(place: str) -> Guess:
    """What to start from where nothing can be looked at."""
    ending, packed = endings(place)
    kind = FORMATS.get(ending, "Csv")
    reader = (f"kind: {kind}", "header: true") if kind == "Csv" else (f"kind: {kind}",)
    columns = None if kind == "Parquet" else ("id BIGINT NOT NULL", "name STRING")
    return Guess(reader, unpacking(packed), columns)


def _text(place: str, name: str, found: Guess, problem: str) -> str:
    return "\n".join(_lines(place, name, found, problem)) + "\n"


def _lines(place: str, name: str, found: Guess, problem: str) -> list[str]:
    lines = [
        "kind: DatasetSnapshot",
        "version: 1",
        "content:",
        f"  name: {name}",
        "  kind: Root",
        "  metadata:",
    ]
    url = place if is_url(place) else f"file:{place}"
    lines += [
        "    - kind: SetPollingSource",
        "      # Every pull looks whether it has changed. A path begins at the workspace's folder.",
        "      fetch:", "        kind: Url", f"        url: {_scalar(url)}",
    ]  # fmt: skip
    if found.prepare:
        lines += ["      prepare:", *(f"        {line}" for line in found.prepare)]
    lines += [f"      # {problem}"] if problem else []
    if found.columns is not None and not problem:
        lines.append("      # The columns as the first rows look: correct what is wrong.")
    lines += ["      read:", *(f"        {line}" for line in found.reader)]
    if found.columns is not None:
        lines += ["        schema:", *(f"          - {_scalar(column)}" for column in found.columns)]
    lines += [*_times(found), *_merge(found)]
    return [
        *lines,
        "    - kind: SetInfo",
        f"      description: {_scalar('What ' + name + ' holds, in a sentence')}",
    ]


def _times(found: Guess) -> list[str]:
    name, day = found.time
    if not name or name == "event_time":
        return []
    quoted = "`" + name.replace("`", "``") + "`"  # it may be a word of SQL
    rest = f"CAST({quoted} AS TIMESTAMP) AS event_time, *"
    what = rest if day else f"{quoted} AS event_time, * EXCEPT ({quoted})"
    return [
        "      # When each row was true.",
        "      preprocess:", "        kind: Sql", "        engine: spark",
        f"        query: {_scalar(f'SELECT {what} FROM input')}",
    ]  # fmt: skip


def _merge(found: Guess) -> list[str]:
    lines = [
        "      # How new data meets old:",
        "      #   Append    every row is new",
        "      #   Ledger    rows with a key that was not seen before are new",
        "      #   Snapshot  the whole list each time; what changed becomes retractions and corrections",
        "      merge:",
    ]
    if not found.key or found.key == found.time[0]:
        return [*lines, "        kind: Append"]
    kind = "Ledger" if found.time[0] else "Snapshot"
    return [*lines, f"        kind: {kind}", f"        primaryKey: [{_scalar(found.key)}]"]


def _scalar(text: str) -> str:
    """A text as YAML: plain where that is safe."""
    plain = (
        text.lower() not in _NO_TEXT
        and re.fullmatch(r"[A-Za-z_][\w ./:()<>*-]*", text, re.ASCII)
        and ": " not in text
        and text[-1] not in ": "
    )
    return text if plain else json.dumps(text, ensure_ascii=False)
