"""The hosted checkout page."""

from __future__ import annotations

from aiohttp import web

from consumer.sandbox.simulator import Simulator


def add_checkout_routes(application: web.Application, sandbox: Simulator) -> None:
    """The page and its actions."""
