"""Provenance of rows and values: the trace screen. Imports no other feature."""
