"""The commands of ``odf``: a module for each command or group, with the command as ``command``.

The docstring of a module is the help of its command. ``ORDER`` is its position in ``odf --help``,
``MEANINGS`` are words of other tools that mean the command, and ``ALIASES`` are other names of it. Text that
the workstation shows too is rendered by :mod:`odf_tui.text`. Nothing here imports Textual.
"""
