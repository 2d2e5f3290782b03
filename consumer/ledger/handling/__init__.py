"""Handling: events, and what handlers did about them."""
