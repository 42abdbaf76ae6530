"""Creating and changing datasets."""
