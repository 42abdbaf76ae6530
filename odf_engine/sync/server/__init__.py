"""``odf serve``: serves the datasets of a workspace by the simple and the smart transfer protocol."""
