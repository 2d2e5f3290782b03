"""What is asked once is asked of the world that the sync stages read."""

from __future__ import annotations

from tests.sync.conftest import api, broker, clock, service, service_side, world

__all__ = ["api", "broker", "clock", "service", "service_side", "world"]
