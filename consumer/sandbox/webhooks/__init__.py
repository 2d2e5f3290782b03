"""Webhooks: what a delivery looks like, how it is signed, and sending it."""
