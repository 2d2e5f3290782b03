"""Dispatch: due runs are claimed, worked on, and what became of them is stored."""
