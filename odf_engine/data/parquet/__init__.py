"""Slices as Parquet files: writing with the same bytes for the same rows, reading with limits.

It imports nothing above ``odf_engine.data``.
"""
