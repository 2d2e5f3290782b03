"""A ledger that many generated histories share: each is an application of its own."""

from __future__ import annotations

import asyncio
from itertools import count

from consumer.ledger import Database
from consumer.ledger.engine import schema


class SharedLedger:
    """The database, the loop it belongs to, and a name for each history."""

    def __init__(self, url: str) -> None:
        self.runner = asyncio.Runner()
        self.database = Database(url)
        self.runner.run(schema.upgrade(self.database))
        self.names = (f"app{number}" for number in count())

    def close(self) -> None:
        """End both."""
        self.runner.run(self.database.stop())
        self.runner.close()
