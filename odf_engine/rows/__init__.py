"""Reads committed data: scans, row windows, AS AT and AS OF states, diff, statistics, export, ad-hoc SQL.

:mod:`.scan` is the way to read rows; the other modules build on it. Only :mod:`.execution` uses Spark.
Must not import the packages that write (``ingest``, ``derive``, ``sync``).
"""
