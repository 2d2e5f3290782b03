"""The composition root: what a role is made of, and the order in which it starts and stops."""

from consumer.app.root import App

__all__ = ["App"]
