"""Provenance of rows and values."""
