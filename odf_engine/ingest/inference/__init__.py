"""Inference: the format, the columns and the manifest of a data file, from its first rows."""
