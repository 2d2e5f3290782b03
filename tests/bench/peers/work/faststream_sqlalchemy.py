"""FastStream and SQLAlchemy, as their guides show them: a subscriber with the default acknowledgement, a session for
each message, the webhook kept under its id, so that a duplicate has no effect. What FastStream logs of each message is
off. `python -m tests.bench.peers.work.faststream_sqlalchemy KAFKA TOPIC DATABASE COUNT`"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import Any

import uvloop
from faststream.kafka import KafkaBroker
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tests.bench.peers.work.told import Clock, effect


class Base(DeclarativeBase):
    """Its tables."""


class Webhook(Base):
    """A webhook that came."""

    __tablename__ = "webhook"

    id: Mapped[str] = mapped_column(primary_key=True)
    type: Mapped[str]
    order_id: Mapped[str]
    body: Mapped[dict[str, Any]] = mapped_column(JSONB)
    received_at: Mapped[datetime]


async def main(kafka: str, topic: str, database: str, count: int) -> None:
    """Work off the topic."""
    engine = create_async_engine(database)
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    broker, done, all_done = KafkaBroker(kafka, logger=None), 0, asyncio.Event()
    clock: Clock | None = None

    async def handle(body: dict[str, Any]) -> None:
        nonlocal done, clock
        clock = clock or Clock()  # its group is joined
        row = {
            "id": body["id"],
            "type": body["type"],
            "order_id": body["data"]["object"]["order_id"],
            "body": body,
            "received_at": datetime.now(UTC).replace(tzinfo=None),
        }
        async with sessions.begin() as session:
            new = await session.scalar(insert(Webhook).values(row).on_conflict_do_nothing().returning(Webhook.id))
            if new is not None:
                await effect()
        done += 1
        if done == count:
            all_done.set()

    broker.subscriber(topic, group_id="faststream", auto_offset_reset="earliest")(handle)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await broker.start()
    await all_done.wait()
    assert clock is not None
    clock.tell()
    await broker.stop()
    await engine.dispose()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
