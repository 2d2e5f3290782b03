"""Commands that walk the service's lists: backfill, its certificate, reconcile."""
