"""Themes, colours and terminal capabilities."""
