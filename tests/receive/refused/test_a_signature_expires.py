"""A signature is good for a few minutes around its time, and no longer."""

from __future__ import annotations

import pytest

from tests.receive.rig import BODY, Rig, signature


@pytest.mark.parametrize("age_s", [301, 86_400, -302, -86_400])
async def test_a_signature_too_old_or_too_new_is_401(rig: Rig, age_s: int) -> None:
    # case: I20
    reply = await rig.signed(age_s=age_s)
    assert (reply.status, reply.code) == (401, "bad_signature")
    assert await rig.records("events") == []


@pytest.mark.parametrize("age_s", [0, 299, -299])
async def test_a_signature_within_its_time_is_taken(rig: Rig, age_s: int) -> None:
    assert (await rig.signed(age_s=age_s)).status == 200


@pytest.mark.parametrize("stamp", ["", "yesterday", "nan", "inf", "-inf", "1e400", "0x10", "99999999999999999999"])
async def test_a_malformed_time_is_401(rig: Rig, stamp: str) -> None:
    # case: I20
    reply = await rig.send(headers={**signature(BODY, rig.clock), "webhook-timestamp": stamp})
    assert reply.status == 401
