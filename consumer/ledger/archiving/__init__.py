"""Archiving: bodies of settled events leave the ledger, and come back; what decides idempotency stays."""
