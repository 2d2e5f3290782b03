"""Backfill: walks the list of events and publishes what the ledger lacks."""
