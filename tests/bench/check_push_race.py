"""Two processes push to one dataset in a bucket at the same time, many times: none is lost.

    python tests/bench/check_push_race.py [ROUNDS]

In each round, both have a new block on the same head. Exactly one push must succeed, and its chain must be
the remote one; the other one must end with a conflict.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from odf_engine.workspace.workspace import Workspace
from tests.s3_server import s3_server
from tests.sync.push_race import run_push_race


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, s3_server() as server:
        here, there = (Workspace.init(Path(folder, name)) for name in ("here", "there"))
        right, wrong = run_push_race(here, there, f"s3+{server.endpoint}/bucket/numbers/", rounds)
        refused = sum(each.command == "PUT" and each.path.endswith("/refs/head") for each in server.requests)
    print(
        f"{rounds} rounds: {right} with one winner, {wrong} others;"
        f" {refused - right - 1} conflicts decided by the conditional write"
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
