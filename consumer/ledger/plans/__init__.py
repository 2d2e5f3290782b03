"""Replay plans in the ledger: which pairs fit a filter, what was planned, and what a worker took of it."""
