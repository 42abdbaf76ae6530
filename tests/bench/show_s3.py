"""Shows an exchange through a real S3 server, command by command.

    pip install 'moto[server]' && moto_server -p 9000 &
    export AWS_ACCESS_KEY_ID=me AWS_SECRET_ACCESS_KEY=secret
    python tests/bench/show_s3.py http://127.0.0.1:9000 shelf

The bucket is made if it is not there. One workspace pushes a dataset, whose second slice is large enough to
go in several parts; another one finds it, pulls it and verifies it; then the first one goes on, and both
have the same head in the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from odf_engine.workspace.workspace import Workspace
from tests.bench.common import append_rows, make_empty

ROWS = 2_500_000


def odf(folder: Path, *arguments: str, typed: str | None = None) -> str:
    """Runs a command, and shows it with what it says; no credentials but those that it was told."""
    print(f"\n{folder.name}$ odf {' '.join(arguments)}", flush=True)
    known = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, "-m", "odf_tui", *arguments],
        cwd=folder, input=typed, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
        env={**known, "AWS_EC2_METADATA_DISABLED": "true"},
    )  # fmt: skip
    print(done.stdout.rstrip(), f"\n[{done.returncode}]", flush=True)
    return done.stdout


def make_bucket(endpoint: str, bucket: str) -> None:
    """Makes the bucket."""
    from pyarrow.fs import S3FileSystem

    parts = urlsplit(endpoint)
    service = S3FileSystem(
        region="us-east-1", scheme=parts.scheme, endpoint_override=parts.netloc, allow_bucket_creation=True
    )
    service.create_dir(bucket)


def main() -> None:
    endpoint, bucket = sys.argv[1], sys.argv[2]
    make_bucket(endpoint, bucket)
    root = Path(tempfile.mkdtemp(prefix="odf-s3-"))
    here, there = root / "here", root / "there"
    url = f"s3+{endpoint}/{bucket}/"
    user, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    try:
        entry = make_empty(Workspace.init(here), "readings")
        append_rows(entry, 1000)
        append_rows(entry, ROWS)
        Workspace.init(there)
        for folder in (here, there):
            odf(folder, "repo", "add", "shelf", url)
            odf(folder, "repo", "login", "shelf", "--user", user, "--stdin", typed=f"{secret}\n")
        odf(here, "push", "readings", "--to", "shelf")
        odf(here, "push", "readings")
        odf(there, "search", "read")
        odf(there, "pull", "shelf/readings")
        odf(there, "verify", "readings")
        append_rows(entry, 10)
        odf(here, "push", "readings")
        odf(there, "pull", "readings")
        odf(there, "repo", "status", "readings")
        heads = [Workspace(folder).resolve("readings").dataset.head() for folder in (here, there)]
        print(f"\nhere  {heads[0]}\nthere {heads[1]}")
        assert heads[0] == heads[1]
        append_rows(entry, 1)
        append_rows(Workspace(there).resolve("readings"), 2)
        odf(there, "push", "readings", "--to", "shelf")
        odf(here, "push", "readings")
        odf(here, "push", "readings", "--force")
        odf(there, "pull", "readings")
        odf(there, "repo", "logout", "shelf")
        odf(there, "pull", "readings")
    finally:
        for folder in (here, there):
            odf(folder, "worker", "stop")
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
