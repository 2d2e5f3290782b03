"""Fixtures of the client's tests: a scripted service, and a client on it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.payments.support import Bench, ScriptedService, bench, scripted_service


@pytest.fixture
async def service() -> AsyncIterator[ScriptedService]:
    async with scripted_service() as running:
        yield running


@pytest.fixture
async def b(service: ScriptedService) -> AsyncIterator[Bench]:
    """A client on the scripted service; its waits take no time."""
    async with bench(service.base_url) as started:
        yield started
