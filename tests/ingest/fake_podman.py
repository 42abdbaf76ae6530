"""A stand-in for podman: takes the same command line, and runs a script instead of a container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

STAND_IN = r"""#!/bin/sh
home=$(dirname "$0")
{ printf '%s\037' "$@"; echo; } >> "$home/calls"
verb=$1; shift
fail() { echo "$1" >&2; exit 125; }
[ -e "$home/no-service" ] && fail "Cannot connect to the Podman socket. Is the daemon running?"
case $verb in
image)
    [ -e "$home/image" ] || fail "Error: image not known"
    echo sha256:feed ;;
pull)
    echo "Trying to pull $2..." >&2
    [ -e "$home/no-registry" ] && fail "Error: dial tcp 127.0.0.1:1: connection refused"
    touch "$home/image" ;;
kill)
    kill -9 "-$(cat "$home/$1")" ;;
run)
    while [ "$1" != -- ]; do
        case $1 in
        --name=*) name=${1#*=} ;;
        --volume=*) out=${1#*=}; out=${out%%:*} ;;
        --env-file=*) variables=${1#*=} ;;
        --entrypoint=*) entry=${1#*=} ;;
        esac
        shift
    done
    shift 2
    set -- sh "$home/script" ${entry:+"$entry"} "$@"
    sed "s|/opt/odf/out|$out|" "$variables" > "$home/variables"
    while IFS= read -r line; do set -- "$line" "$@"; done < "$home/variables"
    setsid env -i "PATH=$PATH" "$@" &
    echo $! > "$home/$name"
    wait $! ;;
esac
"""


class StandIn:
    """A program named podman on the PATH, whose only image runs ``script``."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        program = folder / "podman"
        program.write_text(STAND_IN)
        program.chmod(0o755)
        self.has("image")
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def script(self, text: str) -> None:
        (self.folder / "script").write_text(text)

    def has(self, *names: str) -> None:
        for name in names:
            (self.folder / name).touch()

    def calls(self, verb: str) -> list[list[str]]:
        calls = [line.split("\x1f")[:-1] for line in (self.folder / "calls").read_text().splitlines()]
        return [call[1:] for call in calls if call[0] == verb]
