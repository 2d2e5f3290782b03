"""Health: how the reading of the service stands, for `status` and the metrics."""
