"""Runs a filter: ``python -m odf_engine.filters NAME OPTIONS``."""

from odf_engine.filters.command_line import main

main()
