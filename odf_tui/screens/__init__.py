"""The workbench: the screen with the four panes, in parts by topic."""
