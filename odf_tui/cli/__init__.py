"""The commands of ``odf``: a module for each group of commands, and shared options and output.

Text that the workstation shows too is rendered by :mod:`odf_tui.text`. Nothing here imports Textual.
"""
