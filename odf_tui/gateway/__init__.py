"""Reads and changes of a workspace for screens and commands. Every call may block: call it in a thread."""
