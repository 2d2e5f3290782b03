"""Everything that reads the service: confirm, refresh, backfill, reconcile, canary. All of it only publishes."""
