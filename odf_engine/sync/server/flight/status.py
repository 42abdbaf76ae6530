"""Errors with the status codes that clients of Flight get."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import flight

from odf_engine.errors import BadData, Cancelled, InvalidQuery, NotFound, OdfError, UsageError


class StatusError(Exception):
    """An error with a status code that ``pyarrow.flight`` has no class for.

    Arrow derives the code from the class, and adds the traceback to the message. The traceback of this class
    cannot be formatted, so that Arrow omits it.
    """

    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]
        raise AttributeError("the traceback of the error is not for clients")


class InvalidArgument(StatusError, pa.ArrowInvalid):
    """The query is invalid, or a dataset does not exist: INVALID_ARGUMENT."""


class NotSupported(StatusError, pa.ArrowNotImplementedError):
    """The server does not have the function: UNIMPLEMENTED."""


def flight_error(error: OdfError) -> flight.FlightError | StatusError:
    """Return an error for a client. A location is included only if it is a position in the query."""
    where = f"{error.where}: " if (error.where or "").startswith("query") else ""
    hint = f" (hint: {error.hint})" if error.hint else ""
    if isinstance(error, Cancelled):
        return flight.FlightCancelledError("the query was cancelled")
    if isinstance(error, InvalidQuery | UsageError | BadData | NotFound):
        return InvalidArgument(f"{where}{error.message}{hint}")
    return flight.FlightInternalError(f"{error.message.partition(':')[0]}{hint}")  # details may have paths
