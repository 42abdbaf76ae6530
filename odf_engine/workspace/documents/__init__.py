"""Documents of a workspace that users write in YAML: flows, checks, alerts."""
