"""Reads of a workspace by topic: datasets, blocks, rows, jobs.

:class:`odf_engine.api.workspace.Workspace` inherits all of them.
"""
