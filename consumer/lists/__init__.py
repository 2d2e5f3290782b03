"""Lists: how a list of the service is read that nobody documents the order of."""
