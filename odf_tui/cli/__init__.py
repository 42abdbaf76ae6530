"""The verbs of the ``odf`` command: a module for each group of verbs, and what they share.

Text that the workstation shows too is rendered by :mod:`odf_tui.text`. Nothing here imports Textual.
"""
