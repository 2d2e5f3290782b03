"""Webhooks refused for their signature since the last good one are counted by application, for the heartbeat."""

from __future__ import annotations

import json

from consumer.receive.refusals import Refusals
from tests.receive.rig import BODY, Rig, signature


# case: I20
async def test_they_are_counted_until_one_verifies(rig: Rig) -> None:
    refusals = rig.receiver.refusals
    assert refusals.told() is None
    wrong = signature(BODY, rig.clock, secret="whsec_c29tZWJvZHkgZWxzZSdzIHNlY3JldA==")
    for headers in (wrong, wrong, {}):
        assert (await rig.send(headers=headers)).status == 401
    [(application, tally)] = json.loads(refusals.told() or "").items()
    assert (tally["refused"], tally["signed"], tally["verified_s"]) == (3, 2, None)
    assert (await rig.signed()).status == 200
    after = json.loads(refusals.told() or "")[application]
    assert (after["refused"], after["last_s"]) == (0, None)


def test_ages_are_told() -> None:
    time = [100.0]
    refusals = Refusals(lambda: time[0])
    refusals.verified("shop")
    time[0] = 130.0
    refusals.refused("shop", is_signed=True)
    time[0] = 140.0
    assert json.loads(refusals.told() or "") == {
        "shop": {"refused": 1, "signed": 1, "last_s": 10.0, "verified_s": 40.0}
    }
