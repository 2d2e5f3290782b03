"""A wrong or missing signature is 401; nothing is enqueued, and it is counted."""

from __future__ import annotations

import pytest

from tests.receive.rig import BODY, Rig, signature

OTHER = "whsec_" + "YW5vdGhlci1zZWNyZXQ="


async def refused(rig: Rig, headers: dict[str, str], body: bytes = BODY) -> None:
    reply = await rig.send(body, headers=headers)
    assert (reply.status, reply.code) == (401, "bad_signature")
    assert rig.count("bad_signature") == 1
    assert await rig.records("deliveries") == await rig.records("events") == []


async def test_another_secret_is_401(rig: Rig) -> None:
    # case: I20
    await refused(rig, signature(BODY, rig.clock, secret=OTHER))


async def test_another_body_is_401(rig: Rig) -> None:
    # case: I20, I27
    await refused(rig, signature(BODY, rig.clock), BODY + b" ")


@pytest.mark.parametrize("missing", ["webhook-id", "webhook-timestamp", "webhook-signature"])
async def test_a_missing_header_is_401(rig: Rig, missing: str) -> None:
    # case: I20
    await refused(rig, {name: value for name, value in signature(BODY, rig.clock).items() if name != missing})


@pytest.mark.parametrize("value", ["v1,", "v1", "v1,hush", "v2,hush", ",", " ", "v1,\xe9", "v1," + "A" * 5000])
async def test_a_malformed_signature_is_401(rig: Rig, value: str) -> None:
    # case: I20
    await refused(rig, {**signature(BODY, rig.clock), "webhook-signature": value})
