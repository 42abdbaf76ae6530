"""Checks that a workspace made by an earlier commit still works.

    python -m tests.workspace.check_earlier_workspace [REVISION]

The earlier commit (HEAD~1 by default) makes the demo workspace in a temporary folder. The present code then
opens it, verifies it by replay, pulls with new source rows, and reads the journal of jobs. Exits with 1 if a
check fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def run_odf(code: Path, workspace: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``odf`` from a checkout of the code."""
    return subprocess.run(
        [sys.executable, "-m", "odf_tui", *arguments],
        cwd=workspace,
        env={**os.environ, "PYTHONPATH": str(code)},
        capture_output=True,
        text=True,
        check=False,
    )


def read_json(code: Path, workspace: Path, *arguments: str) -> object:
    done = run_odf(code, workspace, *arguments, "--json")
    if done.returncode != 0:
        raise SystemExit(f"odf {' '.join(arguments)}: exit code {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def check(label: str, holds: bool) -> bool:
    print(f"{'ok    ' if holds else 'FAILED'} {label}", flush=True)
    return holds


def main(revision: str) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        code, home = Path(scratch) / "code", Path(scratch) / "home"
        subprocess.run(
            ["git", "worktree", "add", "-q", "--detach", code, revision], cwd=REPOSITORY, check=True
        )
        try:
            home.mkdir()
            made = run_odf(code, home, "demo", "demo", "--no-tui")
            workspace = home / "demo"
            results = [check(f"the demo is made by {revision}", made.returncode == 0)]
            before = read_json(code, workspace, "list")
            jobs = read_json(code, workspace, "jobs")
            run_odf(code, workspace, "worker", "stop")
            listed = read_json(REPOSITORY, workspace, "list")
            known = [{key: now[key] for key in old} for old, now in zip(before, listed, strict=True)]
            results.append(
                check("the datasets are listed as before", known == before)  # fields may be added
            )
            results.append(
                check("the journal has the same jobs", read_json(REPOSITORY, workspace, "jobs") == jobs)
            )
            verified = read_json(REPOSITORY, workspace, "verify", "--all")
            results.append(check("all datasets are valid after replay", verified["valid"] is True))  # type: ignore[index]
            run_odf(REPOSITORY, workspace, "trust", "--own", "--yes")  # earlier workspaces have no seals
            source = next((workspace / "sources").glob("air*.csv"))
            lines = source.read_text().splitlines()
            source.write_text(
                "\n".join([*lines, *(line.replace("2024", "2025") for line in lines[1:3])]) + "\n"
            )
            pulled = read_json(REPOSITORY, workspace, "pull", "--all")
            updated = [result["name"] for result in pulled if result["status"] == "updated"]  # type: ignore[attr-defined]
            # Earlier demos had no derivatives.
            derived = {dataset["name"] for dataset in before if dataset["kind"] == "Derivative"}  # type: ignore[attr-defined]
            expected = {"port-haven.air-readings", *derived}
            results.append(check(f"new rows are pulled: {', '.join(updated)}", expected == set(updated)))
            verified = read_json(REPOSITORY, workspace, "verify", "--all")
            results.append(check("all datasets are valid after the pull", verified["valid"] is True))  # type: ignore[index]
            run_odf(REPOSITORY, workspace, "worker", "stop")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", code], cwd=REPOSITORY, check=True)
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "HEAD~1"))
