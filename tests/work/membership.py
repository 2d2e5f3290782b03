"""Membership: who Kafka says is in a group, looked at for as long as a block lasts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiokafka.admin import AIOKafkaAdminClient

LOOK_EVERY_S = 0.25


@dataclass
class Membership:
    """What was seen: the group's states, and every set of members there was, in order."""

    looks: int = 0
    states: set[str] = field(default_factory=set)
    members: list[frozenset[str]] = field(default_factory=list)

    @property
    def never_changed(self) -> bool:
        """The same members all the time, and no rebalance."""
        return self.states == {"Stable"} and len(self.members) == 1

    def saw(self, state: str, members: frozenset[str]) -> None:
        """One look."""
        self.looks += 1
        self.states.add(state)
        if not self.members or self.members[-1] != members:
            self.members.append(members)


async def look(admin: AIOKafkaAdminClient, group: str) -> tuple[str, frozenset[str]]:
    """The group's state and the ids of its members, which Kafka gives anew to whoever was out."""
    (response,) = await admin.describe_consumer_groups([group])
    ((_, _, state, _, _, members, *_),) = response.groups
    return state, frozenset(member[0] for member in members)


@asynccontextmanager
async def watching(kafka_url: str, group: str) -> AsyncIterator[Membership]:
    """Look at the group all the time. It must be there and stable when this begins."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_url.removeprefix("kafka://"))
    await admin.start()
    found = Membership()

    async def keep_looking() -> None:
        while True:
            found.saw(*await look(admin, group))
            await asyncio.sleep(LOOK_EVERY_S)

    task = asyncio.create_task(keep_looking())
    try:
        yield found
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await admin.close()
