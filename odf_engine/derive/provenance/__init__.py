"""Row-level provenance: one step back, the tree down to the root sources, and the check of a trace."""
