"""Messages of Spark as people read them."""

from __future__ import annotations

import pytest

from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData, Cancelled
from odf_engine.spark import errors
from odf_engine.spark.errors import (
    JavaThrowable,
    QueryFragment,
    clean_message,
    to_user_error,
    translate_errors,
)
from odf_engine.spark.runtime.jvm import SparkFailed


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        (
            "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0."
            ' If necessary set "spark.sql.ansi.enabled" to "false" to bypass this error. SQLSTATE: 22012\n'
            "== SQL (line 3, position 3) ==\n  1/0 as x from input\n  ^^^\n",
            "Division by zero. Use `try_divide` to tolerate divisor being 0",
        ),
        (
            "[FIELD_NOT_FOUND] No such struct field `d` in `c`. SQLSTATE: 42704; line 1 pos 7;\n'Project\n",
            "No such struct field `d` in `c`",
        ),
        (
            "System memory 3 must be at least 4. Please increase heap size using the --driver-memory option "
            'or "spark.driver.memory" in Spark configuration.',
            "System memory 3 must be at least 4",
        ),
        ("two\nlines", "two lines"),
        ("", ""),
    ],
)
def test_spark_messages_lose_codes_and_spark_advice(message: str, plain: str) -> None:
    assert clean_message(message) == plain


def with_causes(monkeypatch: pytest.MonkeyPatch, *causes: JavaThrowable) -> Exception:
    monkeypatch.setattr(errors, "throwable_chain", lambda error: list(causes))
    return to_user_error(EOFError())


@pytest.mark.complete
def test_exited_spark_process_is_reported() -> None:
    error = to_user_error(EOFError())
    assert "process has exited" in str(error)
    assert "restarts" in str(error.hint)


def test_out_of_memory_and_full_disk_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    aborted = JavaThrowable(
        "org.apache.spark.SparkException", "Job aborted due to stage failure: Task 0 in stage 3.0"
    )
    memory = JavaThrowable("java.lang.OutOfMemoryError", "Java heap space")
    error = with_causes(monkeypatch, aborted, memory)
    assert isinstance(error, SparkFailed)
    assert error.message == "Spark ran out of memory"
    assert "driverMemory" in str(error.hint)
    killed = "Lost task 0.3 (TID 3) (host executor 4): ExecutorLostFailure (executor 4 exited caused by one "
    killed += "of the running tasks) Reason: Command exited with code 52"
    error = with_causes(monkeypatch, JavaThrowable("org.apache.spark.SparkException", killed))
    assert "an executor of the cluster ran out of memory" in str(error)
    full = with_causes(monkeypatch, aborted, JavaThrowable("java.io.IOException", "No space left on device"))
    assert isinstance(full, SparkFailed)
    assert full.message == "the disk is full"


def test_the_deepest_known_cause_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = JavaThrowable(
        "org.apache.spark.SparkException", "…", "FAILED_READ_FILE.NO_HINT", "KD001", {"path": "file:/x"}
    )
    record = JavaThrowable(
        "org.apache.spark.SparkException", "…", "MALFORMED_CSV_RECORD", "KD000", {"badRecord": "1,2,3"}
    )
    error = with_causes(monkeypatch, reading, record)
    assert isinstance(error, BadData)
    assert "1,2,3" in error.message


@pytest.mark.complete
def test_unknown_errors_keep_their_cleaned_message(monkeypatch: pytest.MonkeyPatch) -> None:
    error = with_causes(
        monkeypatch, JavaThrowable("com.example.Odd", "[ODD] something odd. SQLSTATE: XX000\nat com.example")
    )
    assert isinstance(error, SparkFailed)
    assert error.message == "Spark failed: something odd"
    assert with_causes(monkeypatch, JavaThrowable("com.example.Odd", "")).args == ("Spark failed: Odd",)
    assert "has exited" in str(with_causes(monkeypatch))


def test_long_values_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    cause = JavaThrowable(
        "org.apache.spark.SparkNumberFormatException", "…", "CAST_INVALID_INPUT", "22018",
        {"expression": "'" + "x" * 1000 + "'", "targetType": '"INT"'}, QueryFragment("CAST(a AS INT)", 1, 8),
    )  # fmt: skip
    error = with_causes(monkeypatch, cause)
    assert isinstance(error, BadData)
    assert len(error.message) < 400


def test_errors_after_a_cancellation_become_cancelled() -> None:
    reporter = Reporter()
    reporter.cancel()
    with pytest.raises(Cancelled), translate_errors(reporter):
        raise EOFError
    with pytest.raises(SparkFailed), translate_errors(Reporter()):
        raise EOFError
