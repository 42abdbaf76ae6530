"""Two machines commit to one dataset in a store at the same time, many times: none is lost.

    python tests/bench/check_store_race.py [ROUNDS]

In each round, both have a new block on the same head. Exactly one commit must succeed.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.s3_server import s3_server
from tests.workspace.store_race import run_store_race


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    failed = 0
    with tempfile.TemporaryDirectory() as folder, s3_server() as server:
        (Path(folder) / "store").mkdir()
        stores = {"S3": f"s3+{server.endpoint}/bucket/store", "file": (Path(folder) / "store").as_uri()}
        for name, url in stores.items():
            server.forget()
            right, wrong = run_store_race(Path(folder) / name, url, rounds)
            swaps = sum(
                each.command == "PUT" and each.path.endswith("/refs/head") for each in server.requests
            )
            decided = f"; {swaps - right - 1} conflicts decided by the conditional write" if swaps else ""
            print(f"{name}: {rounds} rounds: {right} with one winner, {wrong} others{decided}", flush=True)
            failed += wrong
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
