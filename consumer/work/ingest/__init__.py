"""Ingest: a batch of records becomes events, runs and derived events, in one transaction."""
