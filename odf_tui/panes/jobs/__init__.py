"""Pane 4: the jobs, their logs and the worker. Imports no feature."""
