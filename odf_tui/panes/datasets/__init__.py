"""Pane 1: datasets as a lineage graph or a list."""
