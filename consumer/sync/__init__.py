"""Everything that reads the service: confirm, refresh, feed, backfill, reconcile. All of it only publishes."""
