"""Groups: how far a group of readers is in a topic, as the log itself says it, for whoever asks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class GroupReport:
    """A group at one topic. `topic_id`: what tells this topic from another of the same name; None where the log has no
    such thing. `members`: how many read now; `clients`: the names they go by, on a log that strangers can reach.
    `records` were not committed; `oldest_at`: when the oldest of them was stored.
    `beyond`: the group has committed what the topic no longer, or not yet, holds: it is another topic than it was.
    `lost`: records that were deleted before the group read them. `ends`: the next offset of each partition."""

    group: str
    topic: str
    topic_id: str | None = None
    members: int = 0
    clients: tuple[str, ...] = ()
    records: int = 0
    oldest_at: datetime | None = None
    beyond: bool = False
    lost: int = 0
    ends: tuple[int, ...] = ()
