"""A Kafka client that does not stop in time is given up: whoever looks at the log gets an answer, never its end."""

from __future__ import annotations

import asyncio

from consumer.broker.kafka import connection


class Network:
    """What aiokafka does: it awaits tasks of its own that somebody has cancelled."""

    async def close(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        waiter.cancel()
        await waiter


class Client:
    def __init__(self) -> None:
        self.client = Network()

    async def stop(self) -> None:
        await asyncio.Event().wait()


# case: I22
async def test_who_waits_for_its_end_is_not_cancelled_with_it() -> None:
    await connection.end(Client(), 0.01)
    current = asyncio.current_task()
    assert current is not None
    assert not current.cancelling()
