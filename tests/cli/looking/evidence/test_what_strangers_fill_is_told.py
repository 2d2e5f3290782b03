"""What nobody proved and is kept all the same is told, with how much of what, and with what ends it."""

from __future__ import annotations

from dataclasses import replace

from consumer.cli.looking.status_finding import Finding, Grade
from consumer.cli.looking.verdict import judge
from consumer.ledger.health import Figures
from consumer.ledger.processes import UNPROVED, Process
from tests.cli.looking.evidence.test_roles_that_are_gone_are_named import ALL, living
from tests.cli.looking.test_what_is_healthy_degraded_or_stuck import WELL

MIB = 2**20
ROOM = 256 * MIB


def fills(figures: Figures, *processes: Process) -> list[Finding]:
    found = judge(figures, processes=[*ALL, *processes], unproved_max_bytes=ROOM)
    assert {one.code for one in found} <= {"unproved_fills"}
    return found


# case: O2, I22
def test_in_the_database_from_half_of_the_room() -> None:
    [one] = fills(replace(WELL, unproved_bytes={"shop": 129 * MIB, "club": 128 * MIB}))
    assert one.grade is Grade.DEGRADED
    assert one.text.startswith("shop: 129 MiB of what nobody proved, of 256 (CONSUMER_UNPROVED_MAX_BYTES): `consumer")


# case: O2, I22
def test_in_the_log_as_every_living_serve_says() -> None:
    front = living("serve", process="front", said={UNPROVED: f'{{"club":{300 * MIB}}}'})
    gone = replace(front, process="gone", stopped_at=front.seen_at)
    [one] = fills(WELL, front, replace(front, process="other"), gone)
    assert one.text.startswith("club: 600 MiB of what nobody proved went into the log within an hour")
    assert fills(WELL, gone) == []
