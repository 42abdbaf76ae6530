"""Ad-hoc SQL over the datasets of a workspace, and proofs of its results."""
