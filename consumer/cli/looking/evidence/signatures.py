"""Signatures: webhooks that every `serve` refuses, and none verifies: a wrong secret, or somebody who forges. Pure.

What tells them apart is the service's list: events that it shows, and no webhook of which verified, were sent with
another secret than ours. Where the list shows no such event, the refused ones were a stranger's, and nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import orjson

from consumer.document import shown
from consumer.ledger.processes import SIGNATURES, Process

REFUSED_MIN: Final = 3
LATELY: Final = timedelta(minutes=10)
REMEMBERED: Final = timedelta(hours=1)
UNLISTED_FOR: Final = timedelta(days=1)
"""A shop that sells a few times a day is told until a good one comes: no list brings what was refused."""
ADVICE: Final = "is CONSUMER_WEBHOOK_SECRETS, the scheme, or the clock of `serve` wrong?"


@dataclass(frozen=True, kw_only=True)
class Refused:
    """Webhooks of one application refused since its last good one, `signed` of them with a signature."""

    refused: int
    signed: int
    last_at: datetime
    verified_at: datetime | None

    @property
    def text(self) -> str:
        """For the finding."""
        return f"{self.refused} webhook(s) were refused for their signature, the last at {shown(self.last_at)}"


def refused_signatures(processes: Sequence[Process]) -> Mapping[str, Refused]:
    """What the `serve` processes say, by application; those stopped or lost as well: a restart forgets nothing."""
    said: dict[str, list[tuple[datetime, Mapping[str, Any]]]] = {}
    for one in processes:
        if one.role == "serve" and SIGNATURES in one.said:
            for application, tally in orjson.loads(one.said[SIGNATURES]).items():
                said.setdefault(application, []).append((one.seen_at, tally))
    found = {}
    for application, tallies in said.items():
        verified_at = max((at for one in tallies if (at := _at(*one, "verified_s")) is not None), default=None)
        times = [(at, tally) for seen_at, tally in tallies if (at := _at(seen_at, tally, "last_s")) is not None]
        since = [(at, tally) for at, tally in times if verified_at is None or at > verified_at]
        if since:
            found[application] = Refused(
                refused=sum(int(tally["refused"]) for _, tally in since),
                signed=sum(int(tally["signed"]) for _, tally in since),
                last_at=max(at for at, _ in since),
                verified_at=verified_at,
            )
    return found


def are_ours(one: Refused, silent_since: datetime | None, now: datetime, *, is_missed: bool) -> bool:
    """Whether the list proves that they were the service's: it shows events, and nothing verified brought them.
    `is_missed`: it shows some now that are not here, which is no proof yet where few were signed."""
    is_shown = silent_since is not None or (is_missed and one.signed >= REFUSED_MIN)
    return is_shown and now - one.last_at <= REMEMBERED


def look_ours(one: Refused, now: datetime) -> bool:
    """Whether they seem to be the service's, where no list can tell: several carried a signature, and no good one came
    beside them, or since."""
    is_alone = one.verified_at is None or one.last_at - one.verified_at > LATELY
    return one.signed >= REFUSED_MIN and is_alone and now - one.last_at <= UNLISTED_FOR


def _at(seen_at: datetime, tally: Mapping[str, Any], word: str) -> datetime | None:
    ago = tally.get(word)
    return None if ago is None else seen_at - timedelta(seconds=float(ago))
