"""Alive: which roles are there, whether each can do its work, and what it cannot. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

import orjson

from consumer.causes import cure_of
from consumer.cli.looking.status_finding import Finding, Grade
from consumer.console.alarms.lives import Loop, apart, blind, is_living, is_of_now, left_behind, loops
from consumer.document import printable, shown
from consumer.errors import CollationChanged, RoleSlow, SchemaIncompatible, SchemaOutdated
from consumer.ledger.processes import DIED, FLOODED, FORGOTTEN_AFTER, LOG, PREFIX, UNACCOUNTED, Process

SEEN_WITHIN: Final = FORGOTTEN_AFTER
STOPPED_WITHIN: Final = timedelta(days=1)
UNREADY_AFTER: Final = timedelta(seconds=20)
REFUSED_MIN: Final = 3
REFUSED_SHARE_STUCK: Final = 0.5
REASON_CHARS: Final = 200
WEBHOOKS_REFUSED: Final = "webhooks_refused"
NAMED_MAX: Final = 5
ID_CHARS: Final = 8
GOES_ON: Final = (RoleSlow.code, CollationChanged.code)
"""With these nothing stands still: who is slow is late."""

OR_SEE: Final = "see in its log why it does not reach this ledger"

# A role that nobody plays: how bad that is, and what stands still.
MISSED: Final = {
    "serve": (Grade.DEGRADED, "no webhook is taken"),
    "work": (Grade.STUCK, "no handler runs"),
    "sync": (Grade.STUCK, "no delivery is confirmed, and what webhooks lose stays lost"),
    "console": (Grade.DEGRADED, "the query API does not answer"),
}


def alive(
    processes: Sequence[Process],
    now: datetime,
    *,
    expected: Collection[str] | None,
    within: timedelta = SEEN_WITHIN,
    worker_seen_at: datetime | None = None,
) -> list[Finding]:
    """What is wrong with the processes. `expected`: the roles that must be there; None: those seen `within` that time,
    or a day where the last one was stopped, and always `work`. `worker_seen_at`: when a worker, of an older version
    too, was last seen in the list of handlers."""
    found: list[Finding] = []
    for role, (grade, harm) in MISSED.items():
        played = [one for one in processes if one.role == role]
        living = [one for one in played if is_living(one, now)]
        if living:
            found += _unready(role, living, now, grade) + _told(role, living, grade)
            continue
        if role == "work" and _is_older_version(worker_seen_at, played, now):
            continue
        last = max((one.seen_at for one in played), default=worker_seen_at if role == "work" else None)
        is_missed = role in expected if expected is not None else was_there(played, now, within)
        if is_missed or role == "work":
            cure = f"start `consumer {role}`{_or_see(played)}"
            found.append(Finding(grade, f"no_{role}", f"{_gone(role, played, last)}: {harm}; {cure}"))
    found += [_looping(loop) for loop in loops(processes, now) if loop.role in MISSED]
    found += _apart(processes, now) + _left_behind(processes, now)
    return found + _blind(processes, now) + _refusing(processes, now)


def _is_older_version(seen_at: datetime | None, played: Sequence[Process], now: datetime) -> bool:
    """A worker without a heartbeat lives: it was seen a moment ago, and after the last one with a heartbeat ended."""
    ended = max((one.stopped_at or one.seen_at for one in played), default=None)
    return seen_at is not None and is_of_now(seen_at, now) and (ended is None or seen_at > ended)


def _apart(processes: Sequence[Process], now: datetime) -> list[Finding]:
    """Roles that use different logs, or topics of different prefixes on one."""
    found = []
    if uses := apart(processes, now, LOG):
        logs = "; ".join(f"{_short(log)}: {_named(those)}" for log, those in uses.items())
        text = f"CONSUMER_BROKER_URL differs, the roles use different logs: {logs}. They do not hear each other"
        found.append(Finding(Grade.STUCK, "logs_differ", text))
    if uses := apart(processes, now, PREFIX):
        prefixes = "; ".join(f"{prefix}: {_named(those)}" for prefix, those in uses.items())
        text = f"CONSUMER_TOPIC_PREFIX differs: {prefixes}. They do not hear each other"
        found.append(Finding(Grade.STUCK, "prefixes_differ", text))
    return found


def _short(log: str) -> str:
    """Its kind, and the end of its id: the begin may be the same for all of a maker."""
    kind, _, name = log.partition(" ")
    return printable(f"{kind} …{name[-ID_CHARS:]}")


def _named(those: Sequence[Process]) -> str:
    named = ", ".join(f"`{one.role}` (pid {one.pid} on {one.host})" for one in those[:NAMED_MAX])
    return named + (f" and {len(those) - NAMED_MAX} more" if len(those) > NAMED_MAX else "")


def _left_behind(processes: Sequence[Process], now: datetime) -> list[Finding]:
    """Roles of another version than the one that was deployed last."""
    found = left_behind(processes, now)
    if found is None:
        return []
    named = [f"`{one.role}` {one.version} (pid {one.pid} on {one.host})" for one in found.older[:NAMED_MAX]]
    more = f" and {len(found.older) - NAMED_MAX} more" if len(found.older) > NAMED_MAX else ""
    newest, ago = found.newest, (now - found.newest.started_at).total_seconds() / 60
    text = (
        f"left behind: {', '.join(named)}{more}; the last one to begin, `{newest.role}` {ago:.0f} min ago, is of "
        f"version {newest.version}: replace what was left, or roll back the others"
    )
    return [Finding(Grade.DEGRADED, "versions_differ", text)]


def _blind(processes: Sequence[Process], now: datetime) -> list[Finding]:
    """Nobody can say whether money and access are as they should be."""
    if (one := blind(processes, now)) is None:
        return []
    text = (
        f"`console` (pid {one.pid} on {one.host}) cannot account for money and access ({one.said[UNACCOUNTED]}): "
        "`consumer invariants` shows why"
    )
    return [Finding(Grade.DEGRADED, "unaccounted", text)]


def _looping(loop: Loop) -> Finding:
    """A role that dies, is started anew, and dies: what it has in hand is done late, if at all."""
    one, (grade, harm) = loop.last, MISSED[loop.role]
    why = one.said.get(DIED, "it did not say why: see how its supervisor says that it ended")
    text = (
        f"`{loop.role}` died {loop.deaths} times soon after its start, the last time at {shown(one.seen_at)} after "
        f"{(one.seen_at - one.started_at).total_seconds():.0f} s (pid {one.pid} on {one.host}): {why}"
    )
    if loop.alone:
        return Finding(grade, "role_restarts", f"{text}; {harm} in between")
    return Finding(Grade.DEGRADED, "role_restarts", text)


def was_there(played: Sequence[Process], now: datetime, within: timedelta) -> bool:
    """A death is told for as long as it is known, over a weekend too; who was stopped was meant to go
    (decision 27)."""
    newest = max(played, key=lambda one: one.seen_at, default=None)
    if newest is None:
        return False
    return now - newest.seen_at <= (within if newest.stopped_at is None else min(within, STOPPED_WITHIN))


def _gone(role: str, played: Sequence[Process], last: datetime | None) -> str:
    if last is None:
        return f"no `{role}` process was ever seen"
    newest = max(played, key=lambda one: one.seen_at, default=None)
    where = f", pid {newest.pid} on {newest.host}, version {newest.version}" if newest is not None else ""
    return f"no `{role}` process lives; the last one was seen at {shown(last)}{where}, {_end(newest)}"


def _or_see(played: Sequence[Process]) -> str:
    """Who only fell silent may run: a password that was changed ends no process."""
    newest = max(played, key=lambda one: one.seen_at, default=None)
    return f", or, if it runs, {OR_SEE}" if newest is not None and _fell_silent(newest) else ""


def _fell_silent(one: Process) -> bool:
    return one.stopped_at is None and DIED not in one.said


def _end(one: Process | None) -> str:
    if one is None or _fell_silent(one):
        return "it said nothing since"
    return f"it died: {one.said[DIED]}" if DIED in one.said else "it was stopped"


def _unready(role: str, living: Sequence[Process], now: datetime, grade: Grade) -> list[Finding]:
    """Those that live and cannot work, told once by what is wrong; stuck only when none of the role can."""
    waiting = [one for one in living if not one.ready and now - one.since >= UNREADY_AFTER]
    if not waiting:
        return []
    whole = grade if len(waiting) == len(living) else Grade.DEGRADED
    why: dict[str, str] = {}
    for one in waiting:
        for check, proof in one.checks.items():
            if proof.code is not None:
                why.setdefault(proof.code, f"{check}: {(proof.reason or proof.code)[:REASON_CHARS]}")
    since = min(one.since for one in waiting)
    lead = f"{len(waiting)} of {len(living)} `{role}` cannot work since {shown(since)}"
    if not why:
        return [Finding(whole, f"{role}_not_ready", f"{lead}: it is still starting")]
    return [Finding(whole, code, f"{lead}: {text}") for code, text in why.items() if code != "not_ready"] or [
        Finding(whole, f"{role}_not_ready", f"{lead}: {'; '.join(why.values())}")
    ]


def _told(role: str, living: Sequence[Process], grade: Grade) -> list[Finding]:
    """What those that are ready tell all the same: the log answers, and takes no record; they are of a version whose
    tables are gone; they are slow."""
    why: dict[str, dict[str, Process]] = {}
    text: dict[str, str] = {}
    for one in living:
        for proof in one.checks.values() if one.ready else ():
            if proof.code is not None:
                why.setdefault(proof.code, {})[one.process] = one
                text.setdefault(proof.code, (proof.reason or proof.code)[:REASON_CHARS])
    found = []
    for code, told in why.items():
        is_whole = len(told) == len(living) and code not in GOES_ON
        lead = f"{len(told)} of {len(living)} `{role}` cannot {_what(code, list(told.values()))}"
        cure = f" ({cure_of(code)})" if code == CollationChanged.code else ""
        found.append(Finding(grade if is_whole else Grade.DEGRADED, code, f"{lead}: {text[code]}{cure}"))
    return found


def _what(code: str, told: Sequence[Process]) -> str:
    if code == RoleSlow.code:
        return "keep up"
    if code == CollationChanged.code:
        return "trust the ledger's indexes"
    if code not in (SchemaIncompatible.code, SchemaOutdated.code):
        return "write"
    versions = ", ".join(sorted({one.version for one in told}))
    if code == SchemaOutdated.code:
        return f"go on before the migration of their version ({versions}) was run"
    return f"go on with these tables, which suit another version than theirs ({versions})"


def refuses(processes: Sequence[Process], now: datetime, application: str) -> bool:
    """Whether `serve` answers most webhooks 503: of this application then nobody knows whether any come. Those that
    there was no room for count only where some of its own are among them: what comes is counted."""
    living = [one for one in processes if is_living(one, now)]
    told = [orjson.loads(one.said[FLOODED]) for one in living if FLOODED in one.said]
    flooded = sum((Counter[str](one) for one in told), Counter[str]())
    others = 0 if application in flooded else flooded.total()
    answered, refused = sum(one.answered for one in living), sum(one.refused for one in living)
    return _grade_of(answered - others, refused - others) is Grade.STUCK


def _grade_of(answered: int, refused: int) -> Grade | None:
    if refused < REFUSED_MIN:
        return None
    return Grade.STUCK if refused >= REFUSED_SHARE_STUCK * answered else Grade.DEGRADED


def _refusing(processes: Sequence[Process], now: datetime) -> list[Finding]:
    """Webhooks that were answered 503 in the last two minutes."""
    living = [one for one in processes if is_living(one, now)]
    answered, refused = sum(one.answered for one in living), sum(one.refused for one in living)
    grade = _grade_of(answered, refused)
    if grade is None:
        return []
    text = f"{refused} of {answered} webhooks of the last two minutes were answered 503: they were not stored"
    return [Finding(grade, WEBHOOKS_REFUSED, text)]
