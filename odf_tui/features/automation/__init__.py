"""Checks, flows and alerts: their lists, and the editor of their definitions with its templates."""
