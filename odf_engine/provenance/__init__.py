"""Row-level provenance: one step back, the tree down to the sources, the check of an answer."""
