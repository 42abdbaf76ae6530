"""The verbs of the ``odf`` command: one module for each group."""
