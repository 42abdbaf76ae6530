"""Features of the workbench. Each is imported when its first action is used."""
