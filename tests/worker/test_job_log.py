"""The journal: what a worker writes and everybody reads."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from odf_engine.errors import NotFound, OdfError, UsageError
from odf_engine.jobs.ingest import Ingest
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.verify import Verify
from odf_engine.worker.job_log import INTERRUPTED, MAX_LINE, JobLog, JobLogReader
from odf_engine.worker.protocol import (
    Committed,
    Failure,
    JobChanged,
    JobState,
    LogLine,
    Progress,
    Submit,
    encode_line,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.sqlite"


def test_job_log_records_the_life_of_a_job(path: Path):
    told = []
    journal = JobLog(path, told.append)
    job = journal.create(Pull("did:odf:x"), "ports")
    assert (job.kind, job.target, job.dataset, job.state) == ("pull", "ports", "did:odf:x", JobState.queued)
    journal.transition(job.id, JobState.running)
    journal.append_lines(job.id, "reading")
    journal.append_commit(job.id, "did:odf:x", "abc", "AddData", 7)
    journal.set_progress(job.id, Progress("write", rows=7))
    done = journal.transition(job.id, JobState.done, result="{}")
    assert done.progress == Progress("write", rows=7)
    assert done.started is not None and done.ended is not None and done.created <= done.started <= done.ended

    reader = JobLogReader(path)
    assert reader.jobs() == [done] == [reader.job(job.id)]
    assert reader.events() == told
    assert [event.seq for event in told] == [1, 2, 3, 4, 5]
    assert [type(event) for event in told] == [JobChanged, JobChanged, LogLine, Committed, JobChanged]
    assert reader.events(3) == told[3:] and reader.events(3, limit=1) == told[3:4]
    assert reader.tail(2) == told[3:] and reader.last_seq() == 5
    assert reader.open_jobs() == []


def test_events_can_be_filtered_by_job(path: Path):
    journal = JobLog(path)
    first, second = journal.create(Pull("a"), "a"), journal.create(Verify("b"), "b")
    journal.append_lines(first.id, "one")
    journal.append_lines(second.id, "two", "warning")
    reader = JobLogReader(path)
    assert [event.seq for event in reader.events(job=second.id)] == [2, 4]
    assert [event.seq for event in reader.events(2, job=first.id)] == [3]
    assert [event.seq for event in reader.tail(1, job=first.id)] == [3]
    assert [job.id for job in reader.jobs()] == [second.id, first.id]
    assert [job.id for job in reader.jobs(limit=1)] == [second.id]
    assert reader.events(job="not a job") == []


@pytest.mark.parametrize("job_id", ["7", "", "x", "-1", "9" * 40])
def test_unknown_job_raises_not_found(path: Path, job_id: str):
    JobLog(path).create(Pull("a"), "a")
    with pytest.raises(NotFound):
        JobLogReader(path).job(job_id)


def test_states_go_one_way(path: Path):
    journal = JobLog(path)
    job = journal.create(Pull("a"), "a")
    with pytest.raises(ValueError, match="from queued to done"):
        journal.transition(job.id, JobState.done)
    journal.transition(job.id, JobState.running)
    journal.transition(job.id, JobState.failed, error=Failure("no"))
    with pytest.raises(NotFound):
        journal.transition(job.id, JobState.running)
    assert JobLogReader(path).last_seq() == 3


def test_an_absent_journal_is_empty(path: Path):
    reader = JobLogReader(path)
    assert (reader.jobs(), reader.events(), reader.tail(5), reader.last_seq()) == ([], [], [], 0)
    with pytest.raises(NotFound):
        reader.job("1")
    assert not path.exists()


def test_without_a_worker_open_jobs_read_as_interrupted(path: Path):
    journal = JobLog(path)
    first, second = journal.create(Pull("a"), "a"), journal.create(Pull("b"), "b")
    journal.transition(first.id, JobState.running)
    assert [job.state for job in JobLogReader(path).open_jobs()] == [JobState.running, JobState.queued]
    reader = JobLogReader(path, worker_alive=lambda: False)
    assert {job.state for job in reader.jobs()} == {JobState.interrupted}
    assert reader.job(second.id).error == INTERRUPTED
    assert reader.open_jobs() == []


def test_next_worker_marks_open_jobs_as_interrupted(path: Path):
    journal = JobLog(path)
    first, second = journal.create(Pull("a"), "a"), journal.create(Pull("b"), "b")
    journal.transition(first.id, JobState.running)
    journal.close()
    later = JobLog(path)
    assert [job.id for job in later.interrupt_open_jobs()] == [first.id, second.id]
    assert [job.state for job in later.jobs()] == [JobState.interrupted] * 2
    assert later.events()[-1] == JobChanged(5, later.job(second.id))
    assert later.interrupt_open_jobs() == []


def test_job_that_was_stopped_has_the_rows_that_it_committed(path: Path):
    journal = JobLog(path)
    stopped, killed, done = (journal.create(Pull(name), name).id for name in "abc")
    for job in (stopped, killed, done):
        journal.transition(job, JobState.running)
        for number in range(2):
            journal.append_commit(job, "did:odf:x", f"hash{number}", "AddData", 1065)
        journal.set_progress(job, Progress("read", rows=10))
    assert journal.transition(stopped, JobState.cancelled).committed_rows == 2130
    assert journal.transition(done, JobState.done, result="{}").committed_rows == 0  # its result has them
    reader = JobLogReader(path, worker_alive=lambda: False)
    assert reader.job(killed).committed_rows == 2130
    journal.close()
    assert [job.committed_rows for job in JobLog(path).interrupt_open_jobs()] == [2130]
    assert [reader.job(job).committed_rows for job in (stopped, killed)] == [2130, 2130]


def test_requests_and_commits_of_a_job_can_be_read(path: Path):
    journal = JobLog(path)
    pull = Pull("did:odf:x", after=["did:odf:y"], force=True)
    first, second = journal.create(pull, "a"), journal.create(Verify("b"), "b")
    for number in range(3):
        journal.append_lines(first.id, '"type":"committed" is only a text here')
        journal.append_commit(first.id, "did:odf:x", f"hash{number}", "AddData", number)
    reader = JobLogReader(path)
    assert reader.request(first.id) == pull and reader.request(second.id) == Verify("b")
    assert reader.request("99") is None
    assert [event.block for event in reader.commits(first.id)] == ["hash2", "hash1", "hash0"]
    assert [event.block for event in reader.commits(first.id, 1)] == ["hash2"]
    assert reader.commits(second.id) == []
    seqs = [event.seq for event in reader.events(job=first.id)]
    assert [event.seq for event in reader.tail(3, job=first.id, before=seqs[-1])] == seqs[-4:-1]
    journal.prune(keep_jobs=0)
    assert reader.request(first.id) == pull  # it has not ended
    journal.transition(second.id, JobState.cancelled)
    journal.prune(keep_jobs=0)
    assert reader.request(second.id) is None


def test_job_log_without_requests_table_is_upgraded(path: Path):
    JobLog(path).create(Pull("a"), "a")
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE requests")
    assert JobLogReader(path).request("1") is None
    journal = JobLog(path)
    assert journal.request("1") is None
    assert journal.request(journal.create(Pull("b"), "b").id) == Pull("b")


def test_progress_is_written_now_and_then(path: Path):
    journal = JobLog(path)
    job = journal.create(Pull("a"), "a")
    journal.transition(job.id, JobState.running)
    for rows in range(1, 100):
        journal.set_progress(job.id, Progress("read", rows=rows))
    assert JobLogReader(path).job(job.id).progress.rows == 1
    journal.transition(job.id, JobState.done)
    assert JobLogReader(path).job(job.id).progress.rows == 99
    journal.set_progress(job.id, Progress("late"))
    assert JobLogReader(path).job(job.id).progress.rows == 99


def test_pruning_keeps_the_newest_and_never_reuses_numbers(path: Path):
    journal = JobLog(path)
    waiting = journal.create(Pull("open"), "open")
    for _ in range(10):
        job = journal.create(Pull("a"), "a")
        journal.transition(job.id, JobState.running)
        journal.append_lines(job.id, "line")
        journal.transition(job.id, JobState.done)
    journal.prune(keep_jobs=3, keep_events=10)
    assert [job.id for job in journal.jobs()] == ["11", "10", "9", waiting.id]
    assert [event.seq for event in journal.events()] == list(range(32, 42))
    journal.prune(keep_jobs=0, keep_events=0)
    journal.close()
    later = JobLog(path)
    assert later.last_seq() == 41
    assert later.create(Pull("a"), "a").id == "12"
    assert later.last_seq() == 42


def test_long_lines_are_cut(path: Path):
    journal = JobLog(path)
    job = journal.create(Pull("a"), "a")
    journal.append_lines(job.id, "x" * 1_000_000)
    line = journal.events()[-1]
    assert isinstance(line, LogLine) and len(line.text) == MAX_LINE + 2


def test_multi_line_text_is_split_into_log_lines(path: Path):
    told = []
    journal = JobLog(path, told.append)
    job = journal.create(Pull("a"), "a")
    journal.append_lines(job.id, "one\r\n\ntwo\n", "debug")
    journal.append_lines(job.id, "")
    journal.append_lines(job.id, "x\n" * 100_000)
    lines = [event.text for event in journal.events() if isinstance(event, LogLine)]
    assert lines[:5] == ["one", "", "two", "", "x"]
    assert len(lines) < 1000
    assert told == journal.events()


@pytest.mark.parametrize("content", [b"this is no database, but some other file " * 50, None])
def test_a_damaged_journal_is_moved_aside(path: Path, content: bytes | None):
    if content is None:
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA user_version = 99")
    else:
        path.write_bytes(content)
        with pytest.raises(OdfError, match="cannot be read"):
            JobLogReader(path).jobs()
    before = path.read_bytes()
    journal = JobLog(path)
    assert journal.create(Pull("a"), "a").id == "1"
    assert path.with_name("jobs.sqlite.damaged").read_bytes() == before
    assert len(JobLogReader(path).jobs()) == 1


def test_a_reader_changes_nothing_and_works_in_a_read_only_folder(path: Path):
    journal = JobLog(path)
    journal.create(Pull("a"), "a")
    journal.close()
    before = path.read_bytes()
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        assert len(JobLogReader(path).jobs()) == 1
    finally:
        path.parent.chmod(0o700)
    assert path.read_bytes() == before


def test_concurrent_readers_see_every_event_in_order(path: Path):
    script = f"""
from pathlib import Path
from odf_engine.worker.job_log import JobLogReader
reader, seen = JobLogReader(Path({str(path)!r})), 0
while seen < 804:
    for event in reader.events(seen, limit=50):
        assert event.seq == seen + 1, (event.seq, seen)
        seen = event.seq
    reader.jobs()
"""
    readers = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2)]
    journal = JobLog(path)
    jobs = [journal.create(Pull(str(number)), "t") for number in range(4)]

    def write(job_id: str) -> None:
        for number in range(200):
            journal.append_lines(job_id, f"line {number}")
            journal.set_progress(job_id, Progress(rows=number))

    threads = [threading.Thread(target=write, args=(job.id,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event.seq for event in journal.events()] == list(range(1, 805))
    for job in jobs:
        texts = [event.text for event in journal.events(job=job.id) if isinstance(event, LogLine)]
        assert texts == [f"line {number}" for number in range(200)]
    assert [reader.wait(60) for reader in readers] == [0, 0]


def test_text_that_is_not_unicode_is_escaped(path: Path):
    journal = JobLog(path)
    job = journal.create(Pull("a"), "a")
    journal.transition(job.id, JobState.running)
    journal.append_lines(job.id, "reads caf\udce9.csv")
    error = OdfError("caf\udce9.csv is damaged", where="/tmp/\udcff", hint="rename \ud800")
    failure = Failure(error.message, error.hint, error.where)
    assert journal.transition(job.id, JobState.failed, error=failure).error == failure
    assert (failure.message, failure.where, failure.hint) == (
        "caf\\udce9.csv is damaged", "/tmp/\\udcff", "rename \\ud800",
    )  # fmt: skip
    (line,) = [event for event in JobLogReader(path).events() if isinstance(event, LogLine)]
    assert line.text == "reads caf\\udce9.csv"


def test_request_with_invalid_unicode_is_rejected():
    with pytest.raises(UsageError, match=r"'/data/caf\\udce9.csv' cannot be sent to the worker") as caught:
        encode_line(Submit(Ingest("did:odf:x", ["/data/caf\udce9.csv"]), "x", "tag"))
    assert caught.value.hint is not None and "rename" in caught.value.hint


def test_long_error_messages_are_truncated():
    error = OdfError("x" * 20_000, hint="y" * 20_000)
    assert len(error.message) == len(error.hint or "") == 2000 and error.message.endswith("…")
