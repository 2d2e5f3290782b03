"""Canary: the two ends compared: money taken at the service that the ledger does not know."""
