"""Pane 2: the metadata chain of a dataset."""
