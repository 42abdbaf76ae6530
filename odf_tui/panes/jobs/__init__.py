"""Pane 4: jobs and the worker."""
