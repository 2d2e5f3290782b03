"""Outcomes: what becomes of each of many messages that are published together. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from consumer.broker.base import Message
from consumer.errors import TOO_LARGE, BrokerError, PartitionAway, again


class Outcomes:
    """Of these messages, by their place. What fails holds up those of its key behind it, and nobody else."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._durable = set[int]()
        self._failed: dict[bytes, int] = {}
        """Key to the place of the first that failed."""
        self._error: BrokerError | None = None

    def settle(self, place: int, error: BrokerError | None) -> None:
        """It is durable, or failed so."""
        if error is None:
            self._durable.add(place)
            return
        key = self._messages[place].key
        self._failed[key] = min(place, self._failed.get(key, place))
        if self._error is None or _weight(error) > _weight(self._error):
            self._error = error

    def chunks(self, sizes: Sequence[int], most: int, most_bytes: int) -> Iterator[list[int]]:
        """The places of those that are to be sent, in portions; `sizes` are theirs. What has failed by the time a
        portion is made is in none, and neither is what comes behind it under the same key."""
        chunk, size = list[int](), 0
        for place, one_size in enumerate(sizes):
            if chunk and (len(chunk) >= most or size + one_size > most_bytes):
                yield chunk
                chunk, size = [], 0
            if place < self._failed.get(self._messages[place].key, len(sizes)):
                chunk.append(place)
                size += one_size
        if chunk:
            yield chunk

    def check(self) -> None:
        """Raise the first error, if there was one, that of a record that is too large before any other, and that of a
        partition behind them all: with it, which are `durable`."""
        if self._error is not None:
            error = again(self._error)
            error.durable = frozenset(self._durable)
            raise error


def _weight(error: BrokerError) -> int:
    return 2 if isinstance(error, TOO_LARGE) else 0 if isinstance(error, PartitionAway) else 1
