"""The Arrow Flight SQL server of ``odf serve --flight``.

Only these modules import ``pyarrow.flight``. All errors of their methods are its ``FlightError`` or
our ``StatusError``: for others, it sends the client a traceback.
"""
