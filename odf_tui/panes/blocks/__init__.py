"""Pane 2: the metadata chain of a dataset.

The view and dialogs show blocks; the controller reads them. Features may call the pane; it imports none.
"""
