"""The 20 endpoints of the v1 API over HTTP."""
