"""Rounds: what a worker does again and again: take what the log has, and keep house."""
