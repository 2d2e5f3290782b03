"""Sightings: what the service shows as its newest and the ledger lacks, and since when. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from consumer.ledger.reading.sync_state import KeptState
from consumer.lists.bookmark import Place

WALK: Final = "canary"
"""Under which name the ledger keeps them."""
MISSING: Final = "paid_there_but_not_here"
MISSED: Final = timedelta(seconds=20)
"""Longer than any healthy path takes."""
LATE: Final = timedelta(minutes=3)
"""Longer than the paths take that heal by themselves: a lost webhook's event is walked before."""
EVENTS_FORGOTTEN_AFTER: Final = timedelta(days=7)
MISSING_MAX: Final = 500
HISTORY_MAX: Final = 1000
SHOWN: Final = 3

ORDER: Final = "order:"


@dataclass(frozen=True, kw_only=True)
class Sightings(KeptState, walk=WALK):
    """Things are named `event:ID` and `order:ID`, an order by the merchant's id.

    `missing`: since when each has been seen there and not here, by our own clock: the service need not show times.
    `looked_at`: the last look; whatever came since is not known to be missing.
    `history`: what shows no time and stood at the end of a list when that was read first: it happened before we came.
    `places`: how far each list is known.
    """

    missing: Mapping[str, datetime] = field(default_factory=dict)
    looked_at: datetime | None = None
    history: frozenset[str] = frozenset()
    places: Mapping[str, Place] = field(default_factory=dict)

    def missed(self) -> Missed | None:
        """What had been missing for MISSED at the last look; None where nothing had."""
        if self.looked_at is None or not (names := self._lacking(MISSED)):
            return None
        orders = [id_of(name) for name in names if name.startswith(ORDER)]
        events = [id_of(name) for name in names if not name.startswith(ORDER)]
        age_s = (self.looked_at - self.missing[names[0]]).total_seconds()
        return Missed(len(orders), len(events), age_s, (*orders, *events)[:SHOWN])

    @property
    def late_events(self) -> Sequence[str]:
        """The ids of the events that had been missing for LATE, oldest first."""
        return [id_of(name) for name in self._lacking(LATE) if not name.startswith(ORDER)]

    def is_late(self, name: str) -> bool:
        """Whether it had been missing for LATE at the last look."""
        return self._lacks(name, LATE)

    def _lacking(self, age: timedelta) -> Sequence[str]:
        """What had been missing for so long, oldest first."""
        return sorted((name for name in self.missing if self._lacks(name, age)), key=self.missing.__getitem__)

    def _lacks(self, name: str, age: timedelta) -> bool:
        return self.looked_at is not None and name in self.missing and self.looked_at - self.missing[name] >= age


@dataclass(frozen=True)
class Missed:
    """So many paid orders and events; `age_s`: for how long the oldest had been missing at the last look, since nobody
    knows of later; a few of them by their ids, oldest first."""

    orders: int
    events: int
    age_s: float
    ids: tuple[str, ...]

    @property
    def is_late(self) -> bool:
        """Whether the oldest had been missing for LATE."""
        return self.age_s >= LATE.total_seconds()


@dataclass(kw_only=True)
class Shown:
    """What one look showed, by name. `news`: what we should have; `undated`: what shows no time, where an end of a list
    was read for the first time."""

    news: list[str] = field(default_factory=list)
    undated: list[str] = field(default_factory=list)

    def add(self, name: str, at: datetime | None, *, floor: datetime, is_first: bool) -> None:
        """`at`: when it happened, as far as that is shown; what happened before `floor` is history (case B30)."""
        if at is None and is_first:
            self.undated.append(name)
        elif at is None or at >= floor:
            self.news.append(name)

    @property
    def names(self) -> Sequence[str]:
        """All of them."""
        return (*self.news, *self.undated)


def after(before: Sightings, shown: Shown, here: Container[str], now: datetime, *, expects: bool) -> Sightings:
    """What is known after a look that showed these. What was missing is asked for until it is here, also when newer
    ones have pushed it off the page: an order for ever, an event for a week. `expects`: the first walk is over, so that
    what is new should be here. Where nobody looked for as long, nothing becomes late: most likely nobody walked."""
    history = [name for name in dict.fromkeys((*before.history, *shown.undated)) if name not in here]
    news = [name for name in shown.news if name not in before.history] if expects else []
    absent = [name for name in dict.fromkeys((*before.missing, *news)) if name not in here]
    has_paused = before.looked_at is not None and now - before.looked_at > LATE
    known = {name: min(at, now) for name, at in before.missing.items()}  # later than now: our clock was set back
    since = {name: now if has_paused and not before.is_late(name) else known.get(name, now) for name in absent}
    orders = [name for name in absent if name.startswith(ORDER)]
    events = [name for name in absent if not name.startswith(ORDER) and now - since[name] < EVENTS_FORGOTTEN_AFTER]
    return Sightings(
        missing={name: since[name] for name in (*orders, *events)[:MISSING_MAX]},
        looked_at=now,
        history=frozenset(history[:HISTORY_MAX]),
        places=before.places,
    )


def id_of(name: str) -> str:
    """The id in a name."""
    return name.partition(":")[2]
