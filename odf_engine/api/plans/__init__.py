"""Plans of pulls and pushes: the datasets, where each comes from or goes to, and their order."""
