"""Variables of the environment: allowed ones are filled in, and what they stand for stays hidden."""

from __future__ import annotations

import traceback
from urllib.parse import quote

import pytest

from odf_engine.errors import BadData, InvalidManifest, OdfError, SourceUnavailable
from odf_engine.workspace.environment import (
    RedactingReporter,
    collect_secrets,
    find_variables,
    redacted_errors,
    substitute_variables,
)
from tests.ingest.recorder import Recorder

SECRET = "s3cr3t/ päss\"wörd'&"


def test_allowed_names_are_filled_in_once() -> None:
    values = {"KEY": "a${{ env.OTHER }}b", "OTHER": "x"}
    text = "https://host/?k=${{ env.KEY }}&again=${{env.KEY}}&o=${{  env.OTHER  }}"
    assert substitute_variables(text, values, {"KEY", "OTHER"}) == (
        "https://host/?k=a${{ env.OTHER }}b&again=a${{ env.OTHER }}b&o=x"
    )
    assert (
        substitute_variables("no $VARIABLE, {{ env.KEY }}", values, {"KEY"}) == "no $VARIABLE, {{ env.KEY }}"
    )
    assert find_variables(text) == ["KEY", "OTHER"]


def test_request_variables_precede_the_process_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODF_TEST_KEY", "own")
    text = "${{ env.ODF_TEST_KEY }}"
    assert substitute_variables(text, {}, {"ODF_TEST_KEY"}) == "own"
    assert substitute_variables(text, {"ODF_TEST_KEY": "given"}, {"ODF_TEST_KEY"}) == "given"
    assert collect_secrets({"ODF_TEST_KEY": "given"}, {"ODF_TEST_KEY", "ODF_TEST_ABSENT"}) == ["given"]


def test_a_name_that_is_not_allowed_is_not_looked_up() -> None:
    with pytest.raises(SourceUnavailable) as caught:
        substitute_variables("${{ env.HOME }}", {"HOME": "/secret"}, {"TOKEN", "KEY"}, "com.example")
    assert "com.example is not allowed to read the environment variable HOME" in caught.value.message
    assert "odf config set allowedEnv.com.example KEY,TOKEN,HOME" in (caught.value.hint or "")
    assert "/secret" not in f"{caught.value} {caught.value.hint}"


def test_unset_variable_is_reported() -> None:
    with pytest.raises(SourceUnavailable, match="ODF_TEST_ABSENT is not set"):
        substitute_variables("${{ env.ODF_TEST_ABSENT }}", {}, {"ODF_TEST_ABSENT"})


@pytest.mark.parametrize(
    "text", ["${{ TOKEN }}", "${{ env.A || 'b' }}", "${{ env.A", "${{ env.1A }}", "${{ }}", "${{ env.A.B }}"]
)
def test_other_templates_are_refused(text: str) -> None:
    with pytest.raises(InvalidManifest, match="unsupported template"):
        substitute_variables(f"http://host/{text}", {"A": "1", "TOKEN": "2"}, {"A", "TOKEN"})


def test_secrets_are_hidden_however_they_are_written() -> None:
    reporter = Recorder()
    redacting = RedactingReporter(reporter, [SECRET, "line one\nline two\n", "", "42"])
    for text in (
        f"GET {SECRET}!",
        f"GET {quote(SECRET, safe='')}!",
        f"GET {quote(SECRET, safe='').lower()}!",
        f"GET {SECRET!r}!",
        f"GET {SECRET.encode()!r}!",
        "line two of it, and 42 of 1429",
    ):
        redacting.log(text, "warning")
    texts = [text for _, text in reporter.lines]
    assert texts[:4] == ["GET ***!", "GET ***!", "GET ***!", "GET '***'!"]
    assert texts[4] == "GET b'***'!"
    assert texts[5] == "*** of it, and *** of 1429"
    redacting.phase("fetch")
    redacting.set_amounts(bytes=3)
    assert (reporter.phases, reporter.amounts, reporter.warnings[0]) == (["fetch"], {"bytes": 3}, "GET ***!")
    reporter.cancel()
    assert redacting.cancelled
    RedactingReporter(reporter, ["abc", "abcd"]).log("abcd abc")
    assert reporter.lines[-1][1] == "*** ***"


def test_errors_and_their_causes_contain_no_secret() -> None:
    with pytest.raises(OdfError) as caught, redacted_errors([SECRET]):
        try:
            raise ValueError(f"bad url {SECRET}")
        except ValueError as error:
            raise BadData(f"no {SECRET}", where=f"at {SECRET}", hint=f"not {SECRET}") from error
    error = caught.value
    assert isinstance(error, BadData)
    assert (error.message, error.where, error.hint) == ("no ***", "at ***", "not ***")
    assert "s3cr3t" not in "".join(traceback.format_exception(error))

    with pytest.raises(OdfError, match=r"ValueError: bad \*\*\*") as caught, redacted_errors([SECRET]):
        raise ValueError(f"bad {SECRET}")
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))


def test_errors_without_a_secret_keep_their_cause() -> None:
    with pytest.raises(BadData) as caught, redacted_errors([SECRET]):
        raise BadData("no") from ValueError("because")
    assert isinstance(caught.value.__cause__, ValueError)
