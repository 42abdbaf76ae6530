"""Input of the terminal: keys, replies, pastes, and bytes that are neither."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual import events
from textual.message import Message

from odf_tui.services.terminal_input import BackgroundColour, TerminalInput

REPLIES = [
    "\x1bP>|tmux 3.3a\x1b\\",  # XTVERSION
    "\x1b]11;rgb:0000/0000/0000\x1b\\",
    "\x1b]11;rgb:0000/0000/0000\x07",
    "\x1b[?62;1;4;6c",  # DA1
    "\x1b[>41;354;0c",  # DA2
    "\x1bP1$r0m\x1b\\",  # DECRQSS
    "\x1b[?1;2;3S",
    "\x1b[97;;1114112u",  # a key whose text is no character
    "\x1b[99999999999;5u",
    "\x1b_Gi=1;OK\x1b\\",
    "\x1b[I",
]
SEQUENCES = ["a", "\x1b[A", "\x1b[1;5C", "\x1bOP", "\x1b[200~pasted\rtext\x1b[201~", "\x1b[<0;3;4M", *REPLIES]


def read(parts: Sequence[str], pause: float = 0.0) -> list[Message]:
    """Return the messages of parts of the input, with pauses between them, and a long one at the end."""
    reader, now = TerminalInput(), 0.0
    messages: list[Message] = []
    for part in parts:
        messages += reader.tick(now)
        messages += reader.feed(part, now)
        now += pause
    return [*messages, *reader.tick(now + 10)]


def keys(messages: Sequence[Message]) -> list[str]:
    return [message.key for message in messages if isinstance(message, events.Key)]


def described(messages: Sequence[Message]) -> list[tuple[object, ...]]:
    names = ("key", "text", "x", "y")
    return [(type(message), *(getattr(message, name, None) for name in names)) for message in messages]


@pytest.mark.parametrize("reply", REPLIES)
def test_replies_of_the_terminal_are_not_keys(reply: str) -> None:
    assert keys(read([reply])) == []
    assert keys(read(["a", reply, "b"])) == ["a", "b"]
    # Over a slow line, the parts of a reply arrive one after the other.
    for at in range(2, len(reply)):
        assert keys(read([reply[:at], reply[at:]], pause=0.5)) == []


@pytest.mark.parametrize("reply", ["\x1b[?62;1;4;6c", "\x1b]11;rgb:0/0/0\x07", "\x1bP>|tmux 3.3a\x1b\\"])
def test_the_rest_of_a_reply_after_its_escape_character_is_not_a_key(reply: str) -> None:
    assert keys(read([reply[:1], reply[1:]], pause=0.5)) == ["escape"]


@pytest.mark.parametrize(
    ("reply", "is_light"),
    [("rgb:0000/0000/0000", False), ("rgb:ffff/ffff/ffff", True), ("rgba:f7f7/f4f4/ecec/ffff", True)],
)
def test_the_background_colour_is_read(reply: str, is_light: bool) -> None:
    (message,) = read([f"\x1b]11;{reply}\x07"])
    assert isinstance(message, BackgroundColour)
    assert message.is_light is is_light


def test_an_incomplete_sequence_is_dropped_after_a_second() -> None:
    assert keys(read(["\x1b[?62;1", "p"], pause=2.0)) == ["p"]
    assert keys(read(["\x1b]11;rgb:", "p"], pause=2.0)) == ["p"]
    assert keys(read(["\x1b[12\x01p"])) == ["ctrl+a", "p"]


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        ("\x1b", ["escape"]),
        ("\x1b\x1b", ["escape", "escape"]),
        ("\x1bx", ["alt+x"]),
        ("\x1b[", ["alt+left_square_bracket"]),
        ("\x1b[A", ["up"]),
        ("\x1bOA", ["up"]),
        ("\x1b[[A", ["f1"]),
        ("\x1b[15~", ["f5"]),
        ("\x1b[1;5C", ["ctrl+right"]),
        ("\x1b[97;5u", ["ctrl+a"]),
        ("\x1b[Z", ["shift+tab"]),
        ("\x03\r\t\x7f", ["ctrl+c", "enter", "tab", "backspace"]),
        ("ü\ufffdx", ["ü", "replacement_character", "x"]),
        ("j" * 500, ["j"] * 500),
    ],
)
def test_keys(sequence: str, expected: list[str]) -> None:
    assert keys(read([sequence])) == expected


def test_an_escape_key_is_read_without_the_next_character() -> None:
    reader = TerminalInput()
    assert list(reader.feed("\x1b", 0.0)) == []
    assert reader.is_waiting
    assert keys(list(reader.tick(0.2))) == ["escape"]
    assert not reader.is_waiting
    assert keys(list(reader.feed("[", 0.3))) == ["left_square_bracket"]


@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 20])
def test_a_paste_is_one_message_with_its_line_ends(size: int) -> None:
    text = "SELECT 1\r\nFROM x\rWHERE \x1b[31m é\r" * 2000
    data = f"a\x1b[200~{text}\x1b[201~b"
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    messages = read(parts)
    pastes = [message.text for message in messages if isinstance(message, events.Paste)]
    assert pastes == ["SELECT 1\nFROM x\nWHERE \x1b[31m é\n" * 2000]
    assert keys(messages) == ["a", "b"]


def test_much_text_in_one_read_is_a_paste() -> None:
    text = "SELECT offset, op FROM x\r" * 10
    (paste,) = read([text])
    assert isinstance(paste, events.Paste)
    assert paste.text == text.replace("\r", "\n")


@given(st.lists(st.sampled_from(SEQUENCES), max_size=8), st.data())
def test_any_division_of_the_input_gives_the_same_messages(sequences: list[str], data: st.DataObject) -> None:
    text = "".join(sequences)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert described(read(parts)) == described(read([text]))


@given(st.lists(st.text(st.sampled_from("\x1b[]OP\\?;0129amuRMt~<>\x07\x9b\ufffd\x00é"), max_size=12)))
def test_no_input_raises(parts: list[str]) -> None:
    read(parts)
    assert keys(read([*parts, "\x1b\\\x1b[201~", "q"], pause=2.0))[-1:] == ["q"]
