"""Print the log of a job.

With -v, debug messages are included.
"""

from __future__ import annotations

import sys
import time

import click

from odf_engine.api import JobChanged, LogLine
from odf_tui.cli.shared.options import define_command, options_of
from odf_tui.cli.shared.output import print_note
from odf_tui.cli.shared.workspace import open_workspace, use_timezone
from odf_tui.text.job_log_text import log_failure_lines, log_line_text

ORDER = 400


@define_command("logs", help=__doc__, example="odf logs 12 -f")
@click.argument("job")
@click.option("-f", "--follow", "following", is_flag=True, help="Print new lines until the job ends.")
def command(job: str, following: bool) -> None:
    workspace = open_workspace()
    journal = workspace.journal
    job_id = journal.job(job).id
    print_note(f"times: {use_timezone(workspace)}")
    seq = 0
    while True:
        final = journal.job(job_id).state.final
        for event in journal.events(seq, job=job_id):
            seq = event.seq
            if isinstance(event, LogLine) and (event.level != "debug" or options_of().verbose):
                sys.stdout.write(log_line_text(event) + "\n")
            elif isinstance(event, JobChanged) and event.job.error is not None:
                for line in log_failure_lines(event.job):
                    sys.stdout.write(line + "\n")
        sys.stdout.flush()
        if final or not following:
            return
        time.sleep(0.25)
