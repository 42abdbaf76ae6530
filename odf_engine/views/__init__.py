"""Reads committed data without Spark: scans, row windows, AS AT and AS OF states, diff, statistics, export.

:mod:`.scan` is the way to read rows; the other modules build on it. Must not import Spark or the packages
that write (``ingest``, ``transform``, ``sync``).
"""
