"""Values of the model as builtins and as YAML that a person likes to read."""

from __future__ import annotations

import base64
import re
from enum import Enum
from typing import Any, Final

import yaml

from odf_engine.metadata._nodes import plain_value
from odf_engine.metadata.model import Model
from odf_engine.metadata.wire import layout_of

# What may stand in YAML as it is; everything else is escaped (some readers even end lines at U+0085), or
# quoted, so that it can be escaped on its way to a terminal (bidirectional controls).
_ORDINARY: Final = re.compile(
    r"[\t\n\x20-\x7e\xa0-\u061b\u061d-\u200d\u2010-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe"
    r"\U00010000-\U0010ffff]*"
)
# Text that readers of YAML 1.1 take for a day.
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}")


def to_plain(value: Model) -> dict[str, Any]:
    """``value`` as builtins: camelCase keys, ``kind`` first, absent fields left out.

    A table that uses a field of a newer specification goes by that specification's names.
    """
    layout = layout_of(type(value))
    fields = (*layout.fields, *layout.text_fields)
    present = {field.name: getattr(value, field.name) for field in fields}
    newer = any(field.is_newer and present[field.name] is not None for field in fields)
    plain: dict[str, Any] = {} if layout.tag is None else {"kind": layout.tag}
    for field in fields:
        if present[field.name] is not None:
            plain[field.newer_key if newer else field.key] = _plain(present[field.name])
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Model):
        return to_plain(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, str | int | float | dict):
        return value
    return str(value)  # hashes, ids and times


def to_yaml(value: Any) -> str:
    """``value``, of the model or of builtins, as one YAML document in block style."""
    plain = to_plain(value) if isinstance(value, Model) else value
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)


class _Dumper(yaml.SafeDumper):
    """Lists indented under their key, no aliases, and quotes wherever a reader could be misled."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    style = None
    if not _ORDINARY.fullmatch(text):
        style = '"'
    elif "\n" in text:
        style = "|"  # the dumper itself falls back to quotes where a literal block would lose spaces
    elif not isinstance(plain_value(text), str) or _DAY.fullmatch(text):
        style = "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
# Times are text to readers of YAML 1.2; quotes around them would only be noise.
_Dumper.yaml_implicit_resolvers = {
    first: [rule for rule in rules if rule[0] != "tag:yaml.org,2002:timestamp"]
    for first, rules in yaml.SafeDumper.yaml_implicit_resolvers.items()
}
