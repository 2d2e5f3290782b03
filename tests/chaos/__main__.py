"""`make chaos`: the long fault campaign on real Kafka and PostgreSQL; exit 1 when an outcome is not as expected."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.chaos.campaign import campaign
from tests.support.kafka import kafka_server
from tests.support.postgres import create_database, postgres_server

ROUNDS = 3
WEBHOOKS = 20_000
KILLS = 6


def main() -> int:
    """Play the rounds and print a table for each."""
    good = True
    with (
        tempfile.TemporaryDirectory(prefix="kafka") as kafka_folder,
        kafka_server(Path(kafka_folder)) as kafka,
        postgres_server() as postgres,
    ):
        for number in range(1, ROUNDS + 1):
            with tempfile.TemporaryDirectory(prefix="chaos") as folder:
                outcome = asyncio.run(
                    campaign(
                        Path(folder),
                        broker_url=kafka.url,
                        database_url=create_database(postgres),
                        webhooks=WEBHOOKS,
                        kills=KILLS,
                    )
                )
            sys.stdout.write(f"round {number}: {WEBHOOKS} webhooks, {KILLS} kills\n{outcome.table()}\n\n")
            good = good and outcome.good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
