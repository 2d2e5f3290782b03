"""Next batch: where the log has more than one, the next is read and understood while the database stores this one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

from consumer.broker.base import Partition, Record, Subscription


class NextBatch:
    """The records to be taken next, `size` at most; none is read before those that lead in its partition are being
    taken. `understand` is called with those that were read ahead."""

    def __init__(self, size: int, understand: Callable[[Sequence[Record]], Awaitable[None]]) -> None:
        self._size = size
        self._understand = understand
        self._ahead: asyncio.Task[Sequence[Record]] | None = None
        self._elsewhere: set[Partition] = set()
        self._limit: asyncio.Timeout | None = None

    @property
    def is_at_hand(self) -> bool:
        """Whether it is being read already, or was."""
        return self._ahead is not None

    async def poll(self, subscription: Subscription, timeout_s: float) -> Sequence[Record]:
        """What was read ahead, else what the log has; nothing where `wait_no_longer` ends it. Raises BrokerError."""
        ahead, self._ahead = self._ahead, None
        limit = self._limit = asyncio.timeout(None)
        try:
            async with limit:
                if ahead is None:
                    return await subscription.poll(self._size, timeout_s)
                return [record for record in await ahead if record.partition not in self._elsewhere]
        except TimeoutError:
            if not limit.expired():
                raise
            return ()
        finally:
            self._limit = None

    def wait_no_longer(self) -> None:
        """End the poll that is under way, before the subscription is left: what it had read comes again after that."""
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    def read_ahead(self, subscription: Subscription, timeout_s: float, *, behind: Sequence[Record]) -> None:
        """Begin to read what comes behind these: they are a whole batch, so there is more. Fewer are no backlog: what
        comes while they are taken is better taken at once."""
        if len(behind) >= self._size:
            self._ahead = asyncio.create_task(self._read(subscription, timeout_s), name="work:next-batch")

    async def settled(self) -> None:
        """Until nothing is being read: ledger and log are not compared meanwhile."""
        if self._ahead is not None:
            await asyncio.wait({self._ahead})

    def drop(self, partitions: Collection[Partition]) -> None:
        """What was read of these is read again: by another member that has them now, or here, from further back."""
        self._elsewhere.update(partitions)

    async def stop(self) -> None:
        """End reading. What was read is not stored, so it comes again."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)

    async def _read(self, subscription: Subscription, timeout_s: float) -> Sequence[Record]:
        records = await subscription.poll(self._size, timeout_s)
        self._elsewhere.clear()  # what is dropped from now on was read before
        await self._understand(records)
        return records
