"""The SQL editor above the rows of the data pane. Imports no other feature."""
