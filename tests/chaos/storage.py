"""Storage: where log and ledger of a long play are, files or servers, and how many bytes each takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.promises.deployment import Deployment, Places, embedded
from tests.support.kafka import KafkaServer

BLOCK_BYTES = 512
"""Of `st_blocks`, whatever the disk's own are."""


@dataclass(frozen=True)
class Storage:
    """`log_bytes`, `ledger_bytes`: what each takes now, with its indexes."""

    places: Places
    log_bytes: Callable[[], int]
    ledger_bytes: Callable[[Deployment], Awaitable[int]]

    async def sizes(self, found: Deployment) -> dict[str, int]:
        """Bytes of both."""
        return {"log": self.log_bytes(), "ledger": await self.ledger_bytes(found)}


def on_files(folder: Path) -> Storage:
    """The default: both embedded."""

    async def ledger_bytes(_: Deployment) -> int:
        return _files(folder, "consumer.db*")

    return Storage(embedded(folder), lambda: _files(folder, "log.db*"), ledger_bytes)


def on_servers(kafka: KafkaServer, database_url: str) -> Storage:
    """A broker and an empty database. PostgreSQL's write-ahead log is not counted: the server bounds it by itself."""

    async def ledger_bytes(found: Deployment) -> int:
        return int(await found.one("SELECT pg_database_size(current_database())"))

    places = Places(broker_url=kafka.url, database_url=database_url)
    return Storage(places, lambda: sum(_files(disk, "**/*") for disk in kafka.disks), ledger_bytes)


def _files(folder: Path, pattern: str) -> int:
    """What they take of the disk: Kafka's indexes look larger than they are, and some files are gone meanwhile."""
    size = 0
    for path in folder.glob(pattern):
        with suppress(FileNotFoundError):
            size += path.stat().st_blocks * BLOCK_BYTES
    return size
