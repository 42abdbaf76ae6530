"""``odf serve``: serves the datasets of a workspace over the simple and the smart transfer protocol."""
