"""Log memory: what the ledger remembers of the log's topics, so that a log that was removed or made anew is noticed,
whoever made it and however healthy it looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.events import parse_time
from consumer.ledger import log_positions
from consumer.ledger.reading import key_values


@dataclass(frozen=True, kw_only=True)
class TopicMemory:
    """`topic_id`, where the log has one, and the ends of its partitions, as they were last seen. `replaced_at`: when a
    topic was found that cannot be the one remembered; `owes`: whether what that one lost is still to be published
    again."""

    topic: str
    topic_id: str | None = None
    ends: tuple[int, ...] = ()
    replaced_at: datetime | None = None
    owes: bool = False


def is_another(memory: TopicMemory, topic_id: str | None, ends: Sequence[int]) -> bool:
    """Whether a topic that looks like this cannot be the one remembered: it has another id, or, as a copy of before
    that was put back has, an end before the one seen. Pure."""
    if memory.topic_id is not None and topic_id is not None and memory.topic_id != topic_id:
        return True
    return any(now < before for before, now in zip(memory.ends, ends, strict=False))


def after(memory: TopicMemory, topic_id: str | None, ends: Sequence[int], now: datetime) -> TopicMemory:
    """What is remembered after this look. Pure."""
    seen = replace(memory, topic_id=topic_id or memory.topic_id, ends=tuple(ends))
    return replace(seen, replaced_at=now, owes=True) if is_another(memory, topic_id, ends) else seen


async def load(session: AsyncSession, topic: str) -> TopicMemory:
    """What is remembered; nothing of a topic never seen."""
    stored = await key_values.load(session, f"log/{topic}")
    if stored is None:
        return TopicMemory(topic=topic)
    state: dict[str, Any] = orjson.loads(stored)
    return TopicMemory(
        topic=topic,
        topic_id=state.get("topic_id"),
        ends=tuple(state.get("ends") or ()),
        replaced_at=parse_time(state.get("replaced_at")),
        owes=bool(state.get("owes")),
    )


async def note_replaced(session: AsyncSession, topic: str, now: datetime) -> None:
    """Who reads it found that it has lost its end, and may have grown again: what it is from now on is learned by the
    next look, and offsets mean other records."""
    memory = await load(session, topic)
    await keep(session, replace(memory, ends=(), replaced_at=now, owes=True))
    await log_positions.forget(session, topic)


async def keep(session: AsyncSession, memory: TopicMemory) -> None:
    """Remember it."""
    state = {name: value for name, value in asdict(memory).items() if name != "topic"}
    await key_values.keep(session, f"log/{memory.topic}", orjson.dumps(state).decode())
