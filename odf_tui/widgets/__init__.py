"""Generic Textual widgets."""
