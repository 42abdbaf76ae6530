"""What a user can do, and the keys that do it."""
