"""Rows as at a block or as of an event time, and latest states by key."""
