"""What the workstation knows; no Textual, so that the command line can use it."""
