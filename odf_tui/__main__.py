"""``python -m odf_tui`` is the ``odf`` command."""

from odf_tui.cli.main import main

main()
