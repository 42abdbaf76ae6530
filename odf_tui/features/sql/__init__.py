"""The SQL editor."""
