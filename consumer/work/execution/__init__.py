"""Execution: one handler on one event, kept apart from everything else."""
