"""Stacks: where the processes that are measured keep their log and their ledger, each time new and empty."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support.postgres import create_database
from tests.support.process import command


def both(folder: Path, postgres: str, kafka: str) -> Iterator[tuple[str, Path, dict[str, str]]]:
    """Each stack's name, a folder of its own, and the settings that say where log and ledger are."""
    for name in ("embedded", "Kafka and PostgreSQL"):
        place = folder / uuid.uuid4().hex
        place.mkdir()
        log, ledger = f"embedded:{place}/log.db", f"sqlite+aiosqlite:///{place}/ledger.db"
        if name != "embedded":
            log, ledger = kafka, create_database(postgres)
        yield name, place, {"CONSUMER_BROKER_URL": log, "CONSUMER_DATABASE_URL": ledger}


async def upgraded(environ: Mapping[str, str]) -> None:
    """Its ledger has its tables."""
    done = await asyncio.to_thread(command, "db", "upgrade", environ=environ, within_s=120)
    if done.returncode != 0:
        raise RuntimeError(f"consumer db upgrade: {done.stderr.strip()[-500:]}")
