"""Webhooks that are all refused for their signature are named where the list proves them real; forged ones are not."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from consumer.app.heartbeat import REMEMBERED_BEATS, Heartbeat
from consumer.cli.looking.status_finding import Finding, Grade
from consumer.cli.looking.verdict import judge
from consumer.clock import DrivenClock
from consumer.ledger import Database
from consumer.ledger.processes import FLOODED, SIGNATURES, Process, listed
from consumer.sync.canary.sightings import Missed
from consumer.sync.health.status import ApplicationStatus
from consumer.telemetry.internal import Readiness
from consumer.telemetry.metrics import Metrics
from tests.cli.looking.evidence.test_roles_that_are_gone_are_named import ALL, living
from tests.cli.looking.test_what_is_healthy_degraded_or_stuck import LONG_AGO, NOW, WELL

READ = ApplicationStatus(application="shop", walked_at=NOW)


def serve(name: str = "front", **tally: Any) -> Process:
    told = {"refused": 5, "signed": 5, "last_s": 20.0, "verified_s": None, **tally}
    return living("serve", process=name, said={SIGNATURES: json.dumps({"shop": told})})


def found(*processes: Process, reading: ApplicationStatus | None = None) -> list[Finding]:
    others = [one for one in ALL if one.role != "serve"]
    statuses = () if reading is None else (reading,)
    return judge(WELL, processes=[*others, *processes], application_statuses=statuses)


# case: O1
def test_events_in_the_list_prove_that_the_secret_is_wrong() -> None:
    silent = replace(READ, silent_since=NOW - timedelta(minutes=2))
    [finding] = found(serve(signed=0), reading=silent)
    assert (finding.code, finding.grade) == ("signatures_refused", Grade.DEGRADED)
    assert "CONSUMER_WEBHOOK_SECRETS" in finding.text
    [finding] = found(serve(last_s=4000.0), reading=silent)
    assert finding.code == "webhooks_silent", "nothing was refused lately: they do not come at all"


# case: O1
def test_the_cause_is_named_beside_what_is_missed_before_two_walks_prove_silence() -> None:
    """`paid_there_but_not_here` alone stood there for a minute, and says nothing of a secret."""
    missed = replace(READ, missing=Missed(orders=1, events=2, ids=("order:A1",), age_s=40.0))
    assert [one.code for one in found(serve(), reading=missed)] == ["signatures_refused", "paid_there_but_not_here"]
    for strangers in (serve(signed=2), serve(last_s=4000.0)):
        assert [one.code for one in found(strangers, reading=missed)] == ["paid_there_but_not_here"]


# case: O1
def test_webhooks_that_come_and_are_answered_503_are_no_silence() -> None:
    """Beside the true cause one read that none came, and looked at the endpoint."""
    silent = replace(READ, silent_since=NOW - timedelta(minutes=2))
    [finding] = found(living("serve", answered=100, refused=0), reading=silent)
    assert finding.code == "webhooks_silent"
    [finding] = found(living("serve", answered=100, refused=90), reading=silent)
    assert finding.code == "webhooks_refused"


# case: O1
def test_a_few_that_are_answered_503_hide_nobodys_silence() -> None:
    """They may be another application's: whose endpoint was disabled was told nothing."""
    silent = replace(READ, silent_since=NOW - timedelta(minutes=2))
    told = found(living("serve", answered=10_000, refused=3), reading=silent)
    assert {one.code for one in told} == {"webhooks_refused", "webhooks_silent"}


# case: O1, I22, G8
def test_the_flood_of_one_application_hides_no_others_silence() -> None:
    """What there is no room for at one address says nothing of another's, of which none was counted."""
    silent = replace(READ, silent_since=NOW - timedelta(minutes=2))
    flooded = living("serve", answered=100, refused=95, said={FLOODED: '{"far": 93}'})
    assert {one.code for one in found(flooded, reading=silent)} == {"webhooks_refused", "webhooks_silent"}
    [finding] = found(flooded, reading=replace(silent, application="far"))
    assert finding.code == "webhooks_refused", "whose own are refused is not silent"
    both = living("serve", answered=1050, refused=1001, said={FLOODED: '{"far": 1000, "shop": 1}'})
    [finding] = found(both, reading=silent)
    assert finding.code == "webhooks_refused", "its only one came, and was told to come again"
    away = living("serve", answered=100, refused=95, said={FLOODED: '{"far": 90}'})
    [finding] = found(away, reading=silent)
    assert finding.code == "webhooks_refused", "nothing can be stored, whoever it is of"


# case: I22, G8
async def test_what_there_was_no_room_for_is_told_by_application_for_two_minutes(
    sqlite_ledger: Database, tmp_path: Path
) -> None:
    url, metrics, clock = f"sqlite+aiosqlite:///{tmp_path}/ledger.db", Metrics(), DrivenClock()
    heart = Heartbeat(url, readiness=Readiness(clock), metrics=metrics, clock=clock, process="front")
    heart.roles |= {"serve", "work"}

    async def told() -> dict[str, tuple[int, int, str | None]]:
        await heart.beat()
        async with sqlite_ledger.reading() as session:
            return {one.role: (one.answered, one.refused, one.said.get(FLOODED)) for one in await listed(session)}

    metrics.receive_requests.inc(("far", "unproved_full"), 90)
    metrics.receive_requests.inc(("far", "busy"), 3)
    metrics.receive_requests.inc(("far", "not_durable"), 2)
    metrics.receive_requests.inc(("shop", "accepted"), 5)
    assert await told() == {"serve": (100, 95, '{"far":93}'), "work": (0, 0, None)}
    for _ in range(REMEMBERED_BEATS):
        after = await told()
    assert after["serve"] == (0, 0, None)
    await heart.stop()


# case: I20
def test_a_flood_of_forgeries_is_no_finding_where_the_list_shows_nothing_new() -> None:
    assert found(serve(refused=9999, signed=9999), reading=READ) == []
    assert found(serve(refused=9999, signed=9999, verified_s=15.0), reading=READ) == []


def test_where_nobody_reads_a_list_several_signed_ones_and_no_good_one_degrade() -> None:
    [finding] = found(serve())
    assert (finding.code, finding.grade) == ("signatures_refused", Grade.DEGRADED)
    assert found(serve(signed=2, refused=50)) == [], "visitors who sign nothing"
    assert found(serve(verified_s=60.0)) == [], "forged, beside good ones"
    assert found(serve(), serve("other", refused=0, signed=0, last_s=None, verified_s=60.0)) == [], "of another process"
    assert [one.code for one in found(serve(last_s=6 * 3600.0))] == ["signatures_refused"], "a shop that sells little"
    assert found(serve(last_s=25 * 3600.0)) == [], "long ago"
    stopped = replace(serve("old", refused=0, signed=0, last_s=None, verified_s=5.0), stopped_at=NOW, seen_at=LONG_AGO)
    assert [one.code for one in found(serve(), stopped)] == ["signatures_refused"]
