"""Rebuilding: what a plugin's tables are derived again from."""
