"""Pausing: when a handler stops itself, and how it is stopped."""
