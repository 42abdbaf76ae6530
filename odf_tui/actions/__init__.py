"""Actions of the workstation, and their keys."""
