"""Features, each loaded by the first of its actions."""
