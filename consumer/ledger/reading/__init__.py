"""Reading: what is remembered of the reading of the service."""
