"""The four panes: a view and a controller each, and their layout."""
