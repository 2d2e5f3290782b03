"""Standing: what the ledger's figures say is wrong and no metric of its own tells: one answer for `status` and for the
alerts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import orjson

from consumer.console.alarms.late_decisions import LateDecision
from consumer.console.alarms.lives import apart, blind, is_living, left_behind, loops, mixed, slow
from consumer.ledger.health import Figures
from consumer.ledger.processes import LOG, MISADDRESSED, PREFIX, UNPROVED, Process

DENIED_MANY: Final = 20
MISADDRESSED_MIN: Final = 3
"""One may be a visitor's; the service sends what was refused again."""
CODES: Final = frozenset(
    {
        "hints_denied",
        "records_refused",
        "handlers_gone",
        "decisions_late",
        "plan_half_applied",
        "objects_unreadable",
        "unproved_fills",
        "webhooks_misaddressed",
        "role_restarts",
        "role_slow",
        "unaccounted",
        "workers_differ",
        "versions_differ",
        "prefixes_differ",
        "logs_differ",
    }
)


@dataclass(frozen=True, kw_only=True)
class Astray:
    """Webhooks that were posted to an address which no application has; `names`: the newest that could be one's."""

    count: int
    names: tuple[str, ...]
    last_at: datetime


def wrong(
    figures: Figures, unproved_max_bytes: int, processes: Sequence[Process] = (), late: Sequence[LateDecision] = ()
) -> frozenset[str]:
    """Those of CODES that hold. `unproved_max_bytes`: the room for what nobody proved, of one application; 0: any."""
    found = {
        "hints_denied": figures.denied >= DENIED_MANY,
        "records_refused": figures.refused > 0,
        "handlers_gone": bool(figures.gone_handlers),
        "decisions_late": bool(late),
        "plan_half_applied": figures.half_applied is not None,
        "objects_unreadable": figures.unreadable > 0,
        "unproved_fills": bool(filling(figures, unproved_max_bytes) or stored(processes, figures.at)),
        "webhooks_misaddressed": misaddressed(processes, figures.at) is not None,
        "role_restarts": bool(loops(processes, figures.at)),
        "role_slow": bool(slow(processes, figures.at)),
        "unaccounted": blind(processes, figures.at) is not None,
        "workers_differ": mixed(processes, figures.at) is not None,
        "versions_differ": left_behind(processes, figures.at) is not None,
        "prefixes_differ": bool(apart(processes, figures.at, PREFIX)),
        "logs_differ": bool(apart(processes, figures.at, LOG)),
    }
    return frozenset(code for code, holds in found.items() if holds)


def filling(figures: Figures, unproved_max_bytes: int) -> dict[str, int]:
    """The bytes of each application that uses more than half of the room."""
    return {name: size for name, size in figures.unproved_bytes.items() if size > unproved_max_bytes / 2 > 0}


def stored(processes: Sequence[Process], now: datetime) -> dict[str, int]:
    """The unproved bytes of an hour of each application of which some living `serve` stored much: the log keeps them
    for a day, and nothing else tells how large it is."""
    found: Counter[str] = Counter()
    for one in processes:
        if UNPROVED in one.said and is_living(one, now):
            found.update(orjson.loads(one.said[UNPROVED]))
    return dict(found)


def misaddressed(processes: Sequence[Process], now: datetime) -> Astray | None:
    """Those of the last day, while some living `serve` says that they go on; None where they are few."""
    told = [
        (one.seen_at, orjson.loads(one.said[MISADDRESSED]))
        for one in processes
        if MISADDRESSED in one.said and is_living(one, now)
    ]
    count = sum(int(said["count"]) for _, said in told)
    if count < MISADDRESSED_MIN:
        return None
    last_at = max(seen_at - timedelta(seconds=float(said["last_s"])) for seen_at, said in told)
    names = sorted({name for _, said in told for name in said["names"]})
    return Astray(count=count, names=tuple(names), last_at=last_at)
