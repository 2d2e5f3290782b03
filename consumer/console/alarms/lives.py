"""Lives: what processes tell by how they live, and the workers by what they run: one answer for `status` and for the
alerts. A role that dies and is started again and again; workers that run different handlers; roles of different
versions; roles whose log or topics are others. Pure.

While a deploy rolls, roles of two versions live side by side, and that is no finding: each step of it begins a process.
Where none has begun for a while, whoever is of another version than the one that began last was left behind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from consumer.errors import LogReplaced, RoleSlow, SchemaOutdated
from consumer.ledger.processes import DIED, HANDLERS, UNACCOUNTED, Process

GONE_AFTER: Final = timedelta(seconds=30)
UNHEARD_AFTER: Final = timedelta(seconds=12)
"""Who was not heard for two beats, while another began after it, is replaced."""
LOOP_WITHIN: Final = timedelta(minutes=15)
DEATHS_MIN: Final = 2
STEADY_MIN: Final = timedelta(minutes=1)
STEADY_MAX: Final = timedelta(minutes=10)
APART_FOR: Final = timedelta(seconds=10)
MIXED_FOR: Final = timedelta(seconds=40)
"""A deploy takes no longer from one step to the next, as a rule; the alerts wait five minutes more."""
MIGRATES_FOR: Final = timedelta(minutes=5)
"""So long a new version may wait for its migration, while the old ones go on."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A role that died `deaths` times, each time soon after it had been started anew; `last`: the one that did last.
    `alone`: no other process of that role goes on meanwhile."""

    role: str
    deaths: int
    last: Process
    alone: bool


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """Of `workers` workers, some do not run `handlers`; `lacking`: one that does not."""

    workers: int
    handlers: tuple[str, ...]
    lacking: Process


@dataclass(frozen=True, kw_only=True)
class LeftBehind:
    """`older`: those that live of another version than `newest`, the one that began last."""

    newest: Process
    older: tuple[Process, ...]


def is_living(one: Process, now: datetime) -> bool:
    """Whether it was neither stopped nor lost; one that said that it dies is dead."""
    return one.stopped_at is None and DIED not in one.said and is_of_now(one.seen_at, now)


def is_of_now(at: datetime, now: datetime, within: timedelta = GONE_AFTER) -> bool:
    """Whether that is about now. A time that is far to come is none: a clock that was ahead has written it."""
    return abs(now - at) <= within


def slow(processes: Sequence[Process], now: datetime) -> list[Process]:
    """Those that live and tell that their loop is late each time."""
    return [
        one
        for one in processes
        if is_living(one, now) and any(proof.code == RoleSlow.code for proof in one.checks.values())
    ]


def blind(processes: Sequence[Process], now: datetime) -> Process | None:
    """A living `console` that cannot account for money and access, where no other can."""
    living = [one for one in processes if one.role == "console" and is_living(one, now)]
    failing = [one for one in living if UNACCOUNTED in one.said]
    return failing[0] if failing and len(failing) == len(living) else None


def loops(processes: Sequence[Process], now: datetime) -> list[Loop]:
    """The roles in a crash loop. A stop is no death, however often (a deploy, rolling or not); neither is the end of
    one that had lived for long. Over, when one that was started after the last death has lived twice as long as those
    that died, also where a deploy has replaced it since."""
    return [
        found
        for role in sorted({one.role for one in processes})
        if (found := _loop([one for one in processes if one.role == role], now)) is not None
    ]


def _loop(played: Sequence[Process], now: datetime) -> Loop | None:
    newest = max(played, key=lambda one: one.started_at)
    died = [one for one in played if now - one.started_at <= LOOP_WITHIN and _has_died(one, played, now)]
    chain = _one_after_the_other(died)
    if len(chain) < DEATHS_MIN or newest.stopped_at is not None:
        return None
    longest = max(one.seen_at - one.started_at for one in chain)
    steady = min(max(2 * longest, STEADY_MIN), STEADY_MAX)
    since = [one for one in played if one not in died and one.started_at >= chain[-1].seen_at]
    if any(one.seen_at - one.started_at >= steady for one in since):
        return None
    going_on = [one for one in played if is_living(one, now) and one.started_at < chain[0].started_at]
    if going_on and all(_waits_for_migration(one) for one in chain) and now - chain[0].started_at < MIGRATES_FOR:
        return None
    return Loop(role=newest.role, deaths=len(chain), last=chain[-1], alone=not going_on)


def _waits_for_migration(one: Process) -> bool:
    """A new version that comes before its migration ends until that was run, and the old ones go on."""
    return one.said.get(DIED, "").startswith(SchemaOutdated.code)


def _has_died(one: Process, played: Sequence[Process], now: datetime) -> bool:
    if one.stopped_at is not None:
        return False
    is_replaced = any(other.host == one.host and other.started_at > one.seen_at for other in played)
    return DIED in one.said or not is_of_now(one.seen_at, now, UNHEARD_AFTER if is_replaced else GONE_AFTER)


def _one_after_the_other(died: Sequence[Process]) -> list[Process]:
    """The most of them that did not live at once: what takes several down at a time is one death."""
    chain: list[Process] = []
    for one in sorted(died, key=lambda one: one.seen_at):
        if not chain or one.started_at >= chain[-1].seen_at:
            chain.append(one)
    return chain


def apart(
    processes: Sequence[Process], now: datetime, word: str, lasting: timedelta = APART_FOR
) -> dict[str, list[Process]]:
    """What living processes say by `word` (PREFIX of the topics, LOG), each with those who do; empty where all say the
    same: those who use others neither hear the rest nor are heard. `lasting`: so long each lives. Who tells that its
    log was replaced beneath it has none, and is told to restart as it is; neither has one that fell silent, where
    another began in its stead."""
    found = defaultdict[str, list[Process]](list)
    for one in processes:
        is_settled = word in one.said and is_living(one, now) and now - one.started_at >= lasting
        played = [other for other in processes if other.role == one.role]
        if is_settled and not _has_died(one, played, now) and not _has_lost_its_log(one):
            found[one.said[word]].append(one)
    return dict(found) if len(found) > 1 else {}


def _has_lost_its_log(one: Process) -> bool:
    return any(proof.code == LogReplaced.code for proof in one.checks.values())


def left_behind(processes: Sequence[Process], now: datetime) -> LeftBehind | None:
    """Who is of another version than the one that began last, when no deploy is under way; None where all are alike."""
    living = [one for one in processes if is_living(one, now)]
    newest = max(living, key=lambda one: one.started_at, default=None)
    if newest is None or _is_deploying(living, now):
        return None
    older = tuple(one for one in living if one.version != newest.version)
    return LeftBehind(newest=newest, older=older) if older else None


def mixed(processes: Sequence[Process], now: datetime) -> Mixed | None:
    """Workers that run different handlers, for longer than a deploy takes; None where all run the same. Those of a
    version that says nothing of it are left out."""
    workers = [one for one in processes if one.role == "work" and HANDLERS in one.said and is_living(one, now)]
    sets = [frozenset(one.said[HANDLERS].split()) for one in workers]
    if all(one == other for one, other in pairwise(sets)) or _is_deploying(workers, now):
        return None
    every = frozenset[str]().union(*sets)
    lacking = min(zip(sets, workers, strict=True), key=lambda one: (len(one[0]), one[1].process))
    some = every - frozenset.intersection(*sets)
    return Mixed(workers=len(workers), handlers=tuple(sorted(some)), lacking=lacking[1])


def _is_deploying(living: Sequence[Process], now: datetime) -> bool:
    return any(now - one.started_at < MIXED_FOR for one in living)
