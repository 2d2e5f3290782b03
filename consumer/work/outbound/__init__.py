"""Outbound: what leaves the ledger for the log: derived events and dead letters."""
