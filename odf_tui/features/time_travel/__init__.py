"""Rows as at a block or as of an event time, and states by key."""
