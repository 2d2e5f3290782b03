"""Readers: which applications somebody reads, so that how they are read can be judged: by the word of the `sync` that
lives, by what one kept, and by the settings of who looks. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from consumer.cli.looking.evidence.alive import SEEN_WITHIN, was_there
from consumer.cli.looking.status_finding import Finding, Grade
from consumer.console.alarms.lives import is_living
from consumer.events import Authenticity
from consumer.ledger.processes import GAVE_WAY, READS, Process
from consumer.settings import ApplicationSettings


def kept_now(
    processes: Sequence[Process],
    now: datetime,
    *,
    ever: Collection[str],
    lately: Collection[str],
    within: timedelta = SEEN_WITHIN,
) -> frozenset[str]:
    """Of the applications for which a `sync` kept something `ever`, those that are read still. One that lives says
    which it reads; else those kept `lately` are, as long as a `sync` is missed at all (`within`): who stopped it for
    good, or moved away, is told of no late walk."""
    played = [one for one in processes if one.role == "sync"]
    telling = [one for one in played if READS in one.said and is_living(one, now)]
    if telling:
        return frozenset(ever) & {name for one in telling for name in one.said[READS].split()}
    return frozenset(lately) if not played or was_there(played, now, within) else frozenset()


def reader_since(processes: Sequence[Process], now: datetime, application: str) -> datetime | None:
    """Since when a `sync` lives that says it reads this; None where none does."""
    telling = [one for one in processes if one.role == "sync" and is_living(one, now)]
    return min((one.started_at for one in telling if application in one.said.get(READS, "").split()), default=None)


def judge_gave_way(processes: Sequence[Process], now: datetime) -> list[Finding]:
    """Those that stand by and could not read: if the one that leads ends, nobody reads."""
    return [
        Finding(
            Grade.DEGRADED,
            "credentials_refused",
            f"{name}: a `sync` that stands by (pid {one.pid} on {one.host}) is refused, and gave the lead back: "
            "`consumer doctor`, there, says why; mended, restart it",
        )
        for one in processes
        if one.role == "sync" and is_living(one, now)
        for name in one.said.get(GAVE_WAY, "").split()
    ]


def to_judge(
    applications: Sequence[ApplicationSettings],
    *,
    ever: Collection[str],
    kept: Collection[str],
    waiting: Collection[str] = (),
) -> list[tuple[str, str | None]]:
    """The applications to judge, as (name, app id or None): this shell need not have what `sync` was given, nor name
    all that it reads. Where none has credentials and nothing is kept, nobody meant to read: signed webhooks are all
    there is. One that lives on them and was read once is read no more, unless its credentials are here and a `sync`
    reads others: that one was not given them. One that left all settings is missed while its deliveries are
    `waiting`."""
    has_any = any(one.has_credentials for one in applications)
    found: list[tuple[str, str | None]] = []
    for one in applications:
        needs_reads = one.has_credentials and one.authenticity is Authenticity.API
        is_unread = one.name in ever and one.name not in kept and one.authenticity is not Authenticity.API
        is_left = is_unread and not (one.has_credentials and kept)
        if needs_reads or one.name in kept or (has_any and not is_left):
            found.append((one.name, one.app_id if one.has_credentials else None))
    others = {*kept, *waiting} - {one.name for one in applications}
    return [*found, *((name, None) for name in sorted(others))]
