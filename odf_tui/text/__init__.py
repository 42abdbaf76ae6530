"""Formatting shared by the command line and the workstation; no Textual."""
