"""Pane 3: the rows of a dataset."""
