"""Reads and changes of a workspace for screens and verbs. Every call may block: call it in a thread."""
