"""Runs ``python -m odf_tui`` as the ``odf`` command."""

from odf_tui.main import main

main()
