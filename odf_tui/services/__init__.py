"""What controllers are and share: base class, jobs, navigation."""
