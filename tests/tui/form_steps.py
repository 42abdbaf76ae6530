"""Answers of forms, for tests of controllers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from odf_tui.widgets.form import FormDialog, FormValues


def fill(problem: str = "", **changes: str | bool) -> Callable[[Any], FormValues | None]:
    """Return an answer that completes a form with these values; the others keep their defaults.

    Args:
        problem: a part of the error message that the form shows; then it is closed.
    """

    def answer(dialog: FormDialog) -> FormValues | None:
        values = {field.id: field.value for field in dialog.fields}
        for field in dialog.fields:
            if field.choices:
                assert changes.get(field.id, field.value) in dict(field.choices), field.id
        assert values.keys() >= changes.keys()
        values |= changes
        form = FormValues(values)
        shown = [each.check(form.text(each.id)) for each in dialog.fields if each.check is not None]
        shown.append(dialog.check(form))
        error = next(filter(None, shown), "")
        assert problem in error and bool(problem) == bool(error), error
        return None if problem else form

    return answer
