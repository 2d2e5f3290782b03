"""`make chaos`: the long fault campaign and the outages, on real Kafka and PostgreSQL; exit 1 when an outcome is not
as expected. `python -m tests.chaos campaign` and `… outages` play one of them alone."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.chaos import outages
from tests.chaos.campaign import campaign
from tests.chaos.hour import Hour
from tests.support.kafka import kafka_server
from tests.support.postgres import create_database, postgres_server

ROUNDS = 3
WEBHOOKS = 20_000
KILLS = 6


def main() -> int:
    """Play what was asked for, and print a table for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("all", "campaign", "outages"), default="all")
    parser.add_argument("--part", choices=tuple(outages.PARTS), action="append", help="one outage only; repeatable")
    parser.add_argument("--hours", type=float, default=1.0, help="how long an outage lasts, in the sandbox's time")
    parser.add_argument("--rate", type=int, default=50, help="events a second meanwhile")
    asked = parser.parse_args()
    if not 0 < asked.hours <= 24 or not 2 <= asked.rate <= 1000:
        parser.error("hours: over 0 and up to 24; rate: 2 to 1000")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds: servers and processes are stopped
    hour = Hour(seconds=max(1, round(asked.hours * 3600)), per_s=asked.rate)
    good = True
    if asked.what in ("all", "campaign"):
        good = _campaigns()
    if asked.what in ("all", "outages"):
        good = _outages(asked.part or tuple(outages.PARTS), hour) and good
    return 0 if good else 1


def _campaigns() -> bool:
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
    return good


def _outages(parts: Sequence[str], hour: Hour) -> bool:
    """Each outage on servers of its own; one that fails does not keep the next from being played."""
    good = True
    for name in parts:
        with tempfile.TemporaryDirectory(prefix="outage") as folder:
            try:
                outcome = outages.play(name, hour, Path(folder))
            except AssertionError as failed:
                outages.say(f"{name}: FAILED: {failed}; {failed.__cause__ or ''}")
                good = False
                continue
        sys.stdout.write(f"{outcome.table()}\n\n")
        good = good and outcome.good
    return good


if __name__ == "__main__":
    sys.exit(main())
