"""An unknown application is 404: counted under one label, and nothing of it is stored."""

from __future__ import annotations

import pytest

from tests.receive.rig import Rig


@pytest.mark.parametrize(
    "path", ["/webhooks/nobody", "/webhooks/", "/", "/webhook", "/webhooks/default/x", "/webhooks/%00", "/healthz"]
)
@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_an_unknown_application_is_404(rig: Rig, path: str, method: str) -> None:
    # case: I14
    reply = await rig.send(path=path, method=method)
    assert (reply.status, reply.code) == (404, "unknown_application")
    assert rig.count("unknown_application", "unknown") == 1
    assert await rig.records("deliveries") == await rig.records("events") == []


async def test_made_up_names_make_no_new_labels(rig: Rig) -> None:
    # case: I14
    for number in range(20):
        await rig.send(path=f"/webhooks/made-up-{number}")
    assert b"made-up" not in rig.metrics.render()
    assert rig.count("unknown_application", "unknown") == 20
