"""Event signatures, the data of logs with examples of the specification of the ABI, and filters."""

from __future__ import annotations

import json

import pytest

from odf_engine.data.ethereum.abi import (
    DecodeError,
    SignatureError,
    eth_decode_event,
    eth_event_selector,
    eth_try_decode_event,
    keccak256,
    parse_event,
)
from odf_engine.data.ethereum.log_filter import parse_filter
from odf_engine.errors import InvalidManifest


def words(*parts: int | str) -> bytes:
    """Words of 32 bytes: numbers, and hexadecimal text padded right."""
    return b"".join(
        (part % 2**256).to_bytes(32) if isinstance(part, int) else bytes.fromhex(part).ljust(32, b"\0")
        for part in parts
    )


@pytest.mark.parametrize(
    ("signature", "selector"),
    [
        (
            "SendRequest(uint64,address,bytes)",
            "41987d99f799d840cf38d453e305eb131a47bb34369b3a78d7177de3c2659af5",
        ),
        (
            "event Foo(address a, uint64 b);",
            "d9e93ef3ac030ca8925f1725575c96d8a49bd825c0843a168225c1bb686bba67",
        ),
        ("Bar(address indexed x,string)", "da343a831f3915a0c465305afdd6b0f1c8a3c85635bb14272bf16b6de3664a51"),
        (
            "TokensMinted(address indexed to, uint256 amount,\n uint ethAmount, uint256 time)",
            "6155cfd0fd028b0ca77e8495a60cbe563e8bce8611f0aad6fedbdaafc05d44a2",
        ),
        (
            "Transfer(address,address,uint256)",
            "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef",
        ),
    ],
)
def test_event_selectors_match_known_values(signature: str, selector: str) -> None:
    assert eth_event_selector(signature).hex() == selector


def test_type_aliases_become_canonical() -> None:
    event = parse_event(
        "E(int a, uint8[][3] b, (bytes x, (bool, fixed y)[]) c, tuple(address payable) d, function)"
    )
    assert event.canonical == "E(int256,uint8[][3],(bytes,(bool,fixed128x18)[]),(address),function)"
    assert [parameter.name for parameter in event.parameters] == ["a", "b", "c", "d", "_4"]


def test_event_decodes_to_json_and_wrong_data_is_rejected() -> None:
    signature = "SendRequest(uint64 indexed requestId, address indexed consumerAddr, bytes request)"
    address = "0123456789abcdef0123456789abcdef01234567"
    topics = [eth_event_selector(signature), words(123), words("00" * 12 + address)]
    data = words(32, 4, "ff00bbaa")
    text = eth_decode_event(signature, *topics, None, data)
    expected = {"consumerAddr": address, "name": "SendRequest", "request": "ff00bbaa", "requestId": 123}
    assert text == json.dumps(expected, separators=(",", ":"))
    for wrong in (data[:-32], words(33, 4, "ff"), words(32, 33, "ff"), words(2**255), b""):
        with pytest.raises(DecodeError):
            eth_decode_event(signature, *topics, None, wrong)
        assert eth_try_decode_event(signature, *topics, None, wrong) is None
    other = [words(1), *topics[1:]]
    with pytest.raises(DecodeError, match="topic0 is not the selector of SendRequest"):
        eth_decode_event(signature, *other, None, data)
    assert eth_try_decode_event(signature, topics[0], topics[1], None, None, data) is None
    assert eth_try_decode_event(signature, topics[0], None, topics[1], topics[2], data) is None


def decoded(signature: str, data: bytes, *topics: bytes) -> dict[str, object]:
    given = [eth_event_selector(signature), *topics] if "anonymous" not in signature else [*topics]
    return json.loads(eth_decode_event(signature, *[*given, None, None, None, None][:4], data))  # type: ignore[arg-type]


def test_every_abi_type_is_decoded() -> None:
    # The last example of the specification of the ABI: f(uint256,uint32[],bytes10,bytes).
    data = words(0x123, 0x80, "31323334353637383930", 0xE0, 2, 0x456, 0x789, 13, b"Hello, world!".hex())
    assert decoded("f(uint a, uint32[] b, bytes10 c, bytes d)", data) == {
        "name": "f", "a": "291", "b": [0x456, 0x789], "c": b"1234567890".hex(), "d": b"Hello, world!".hex(),
    }  # fmt: skip
    # g(uint256[][],string[]) of the same chapter.
    data = words(0x40, 0x140, 2, 0x40, 0xA0, 2, 1, 2, 1, 3, 3, 0x60, 0xA0, 0xE0,
                 3, b"one".hex(), 3, b"two".hex(), 5, b"three".hex())  # fmt: skip
    assert decoded("g(uint256[][] a, string[] b)", data) == {
        "name": "g", "a": [["1", "2"], ["3"]], "b": ["one", "two", "three"],
    }  # fmt: skip
    data = words(-1, -2, 255, 1, 2**64 - 1, -5 * 10**17, 7, 8)
    signature = "h(int8 a, int64 b, uint8 c, bool d, uint64 e, fixed f, uint16[2] g)"
    assert decoded(signature, data) == {
        "name": "h", "a": -1, "b": -2, "c": 255, "d": True, "e": 2**64 - 1, "f": "-0.500000000000000000",
        "g": [7, 8],
    }  # fmt: skip
    # Tuples, static and dynamic, and a string that is not UTF-8.
    signature = "t((uint8 x, uint8 y) s, (string n, (uint8 p, uint8 q)[] l) d)"
    data = words(1, 2, 0x60, 0x40, 0x80, 3, "61ff62", 1, 5, 6)
    assert decoded(signature, data) == {
        "name": "t", "s": {"x": 1, "y": 2}, "d": {"n": "a\ufffdb", "l": [{"p": 5, "q": 6}]},
    }  # fmt: skip


def test_indexed_parameters_are_decoded_from_topics() -> None:
    """Indexed values that do not fit a topic are hashes. Anonymous events have no selector."""
    hashed = keccak256(b"text")
    signature = "E(string indexed s, uint8[] indexed a, uint8 b)"
    found = decoded(signature, words(9), hashed, words(1))
    assert found == {"name": "E", "s": hashed.hex(), "a": words(1).hex(), "b": 9}
    signature = "E(uint8 indexed a, uint8 indexed b, uint8 indexed c, uint8 indexed d) anonymous"
    found = decoded(signature, b"", *map(words, range(4)))
    assert found == {"name": "E", "a": 0, "b": 1, "c": 2, "d": 3}
    assert decoded("E(string name)", words(32, 1, "61")) == {"name": "a"}


@pytest.mark.parametrize(
    ("signature", "problem"),
    [
        ("", "column 1: expected the name of an event, the signature ends"),
        ("E", "column 2: expected '(', the signature ends"),
        ("E(uint7 a)", "column 3: unknown type 'uint7'"),
        ("E(uint256 a, Token b)", "column 14: unknown type 'Token'"),
        ("E(bytes33)", "column 3: unknown type 'bytes33'"),
        ("E(uint8[0] a)", "column 9: '0' is not the size of an array"),
        ("E(uint8 a uint8 b)", "column 11: expected ',', found 'uint8'"),
        ("E(uint8 a, uint16 a)", "column 19: parameter 'a' exists twice"),
        ("E(uint8 a) x", "column 12: expected the end, found 'x'"),
        ("E(uint8 a", "column 10: expected ',', the signature ends"),
        ("E(uint8 {a})", "column 9: unexpected character '{'"),
        ("E(())", "column 3: a tuple without members"),
        ("E(" + ",".join(["bool indexed"] * 4) + ")", "column 1: 4 indexed parameters; at most 3"),
        ("E" + "(" * 50, "nested deeper than 32 levels"),
        ("E(uint8" + "[]" * 50 + ")", "nested deeper than 32 levels"),
        ("x" * 20_000, "longer than 10,000 characters"),
    ],
)
def test_invalid_signature_is_rejected_with_its_column(signature: str, problem: str) -> None:
    with pytest.raises(SignatureError) as caught:
        parse_event(signature)
    assert problem in str(caught.value)


def test_malicious_data_is_rejected() -> None:
    """Offsets that point to the same bytes describe more values than there is memory for."""
    signature = "E(uint8[][][][][] a)"
    level = words(40, *[40 * 32] * 40)
    data = words(32) + level * 5
    assert eth_try_decode_event(signature, eth_event_selector(signature), None, None, None, data) is None
    signature = "E(bool b, uint8 c, address d, int8 e)"
    selector = eth_event_selector(signature)
    for size in range(0, 256, 8):
        data = words(*[1 << size] * 4)
        assert (eth_try_decode_event(signature, selector, None, None, None, data) is None) == (size > 0)


ADDRESS = "ae78736cd615f374d3085123a210448e74fc6393"
TOPIC = "6155cfd0fd028b0ca77e8495a60cbe563e8bce8611f0aad6fedbdaafc05d44a2"


def test_filter_is_parsed_to_block_range_and_topics() -> None:
    text = f"""
      block_number > 13325304 AND 20000000 >= "block_number" AND (address = X'{ADDRESS}')
      AND (topic0 = eth_event_selector('TokensMinted(address to, uint256 a, uint b, uint c)')
           OR topic0 = x'{"00" * 32}')
      and topic2 in (X'{"01" * 32}')
    """
    found = parse_filter(text)
    assert (found.first, found.last, found.is_empty) == (13325305, 20000000, False)
    assert found.parameters == {
        "address": [f"0x{ADDRESS}"],
        "topics": [["0x" + "00" * 32, f"0x{TOPIC}"], None, ["0x" + "01" * 32]],
    }
    found = parse_filter("block_number between 5 and 10 and block_number = 7 and block_number < 9")
    assert (found.first, found.last, found.parameters) == (7, 7, {})
    assert found.with_value("topic0", bytes(32)).parameters == {"topics": [["0x" + "00" * 32]]}
    assert parse_filter(f"topic0 = X'{TOPIC}'").with_value("topic0", bytes(32)).is_empty


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not a condition"),
        ("block_number >", "not a condition in SQL"),
        ("block_number + 1 > 5", "too complex"),
        ("block_number > 1.5", "not a block number"),
        ("block_number = 1 OR block_number = 2", "too complex"),
        (f"address = X'{ADDRESS}' OR topic0 = X'{TOPIC}'", "too complex"),
        (f"NOT address = X'{ADDRESS}'", "too complex"),
        (f"address > X'{ADDRESS}'", "too complex"),
        (f"address = '{ADDRESS}'", "not a binary value"),
        ("address = X'ae'", "has 1 bytes; address has 20"),
        ("address = X'a'", "not hexadecimal"),
        ("topic0 = eth_event_selector('E(uint7)')", "column 3: unknown type 'uint7'"),
        ("topic0 = eth_event_selector(topic1)", "requires one text"),
        ("log_index = 1", "too complex"),
        ("topic1 IS NULL", "too complex"),
        ("block_number IN (SELECT 1)", "too complex"),
    ],
)
def test_invalid_filter_is_rejected(text: str, problem: str) -> None:
    with pytest.raises(InvalidManifest) as caught:
        parse_filter(text)
    assert problem in caught.value.message and caught.value.where == "fetch.filter"
