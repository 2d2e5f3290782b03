"""An empty body is not understood, and nothing of it is kept."""

from __future__ import annotations

import pytest

from tests.receive.rig import Rig


@pytest.mark.parametrize("path", ["/webhooks/default", "/webhooks", "/webhooks/hints", "/webhooks/sandbox"])
async def test_an_empty_body_is_400_and_nothing_is_kept(rig: Rig, path: str) -> None:
    # case: I10
    reply = await rig.send(b"", path=path)
    assert (reply.status, reply.code) == (400, "empty")
    assert await rig.records("deliveries") == await rig.records("events") == []
