"""Simulator of the payments service: all 20 endpoints, its states and rules, webhooks, faults, a checkout page.

It imports nothing else of `consumer`, and only the command line and tests import it.
"""

from consumer.sandbox.assumptions import SWITCHES, Assumptions
from consumer.sandbox.clock import SandboxClock
from consumer.sandbox.config import DEFAULT_APP_ID, DEFAULT_APP_SECRET, DEFAULT_WEBHOOK_SECRET, SandboxConfig
from consumer.sandbox.engine.engine import Engine
from consumer.sandbox.errors import PageRefusal, Refusal, SandboxError, SandboxMisconfigured, StorageBroken
from consumer.sandbox.server import Sandbox

__all__ = [
    "DEFAULT_APP_ID",
    "DEFAULT_APP_SECRET",
    "DEFAULT_WEBHOOK_SECRET",
    "SWITCHES",
    "Assumptions",
    "Engine",
    "PageRefusal",
    "Refusal",
    "Sandbox",
    "SandboxClock",
    "SandboxConfig",
    "SandboxError",
    "SandboxMisconfigured",
    "StorageBroken",
]
