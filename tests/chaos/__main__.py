"""`make chaos`: the long fault campaign and the outages, on real Kafka and PostgreSQL; exit 1 when an outcome is not
as expected. `python -m tests.chaos campaign`, `… scaling`, `… restore`, `… outages` and `… strangers` play one of them
alone."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from consumer.errors import ConsumerError
from tests.chaos import outages
from tests.chaos.campaign import Outcome, campaign
from tests.chaos.hour import Hour
from tests.chaos.outages import Part
from tests.chaos.restore import restore
from tests.chaos.scaling import Scaled, scaling
from tests.chaos.storage import Storage, on_files, on_servers
from tests.chaos.strangers import PER_MINUTE, Strangers, strangers
from tests.support.kafka import kafka_server
from tests.support.postgres import create_database, postgres_server
from tests.support.process import start_from_nothing

ROUNDS = 3
WEBHOOKS = 20_000
KILLS = 6
RATE, RESTORE_RATE = 50, 5
PLAYS = ("campaign", "scaling", "restore", "outages", "strangers")
STORAGES = ("files", "servers")


def main(arguments: Sequence[str] | None = None) -> int:
    """Play what was asked for, and print a table for each. Exits 2 for what cannot be played."""
    start_from_nothing()
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("all", *PLAYS), default="all")
    parser.add_argument("--part", choices=tuple(outages.PARTS), action="append", help="one outage only; repeatable")
    parser.add_argument("--hours", type=float, default=1.0, help="of an outage, or a backup's age: the sandbox's time")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long strangers send")
    parser.add_argument("--on", choices=STORAGES, help="where strangers find log and ledger; as it is: each in turn")
    parser.add_argument(
        "--rate", type=int, help=f"events a second meanwhile; as it is: {RATE}, and {RESTORE_RATE} for restore"
    )
    parser.add_argument(
        "--authenticity",
        choices=outages.AUTHENTICITIES,
        help="how webhooks are proved in every part; as it is: signature for the database, api for the others",
    )
    asked = parser.parse_args(arguments)
    if not 0 < asked.hours <= 24 or not 2 <= (asked.rate or RATE) <= 1000:
        parser.error("hours: over 0 and up to 24; rate: 2 to 1000")
    if not 0 < asked.minutes <= 60:
        parser.error("minutes: over 0 and up to 60")
    hour = Hour(seconds=max(1, round(asked.hours * 3600)), per_s=asked.rate or RATE)
    parts = {name: outages.PARTS[name].proved_by(asked.authenticity) for name in asked.part or outages.PARTS}
    if asked.what in ("all", "outages"):
        for name, part in parts.items():
            if (refusal := part.refusal(hour)) is not None:
                parser.error(f"{name}: {refusal}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds: servers and processes are stopped
    good = True
    if asked.what in ("all", "campaign"):
        good = _attempted("campaign", _campaigns)
    if asked.what in ("all", "scaling"):
        good = _attempted("scaling", _scaling) and good
    if asked.what in ("all", "restore"):
        good = _attempted("restore", partial(_restore, replace(hour, per_s=asked.rate or RESTORE_RATE))) and good
    if asked.what in ("all", "outages"):
        good = _outages(parts, hour) and good
    if asked.what in ("all", "strangers"):
        for on in [asked.on] if asked.on else STORAGES:
            good = _attempted(f"strangers on {on}", partial(_strangers, on, asked.minutes)) and good
    return 0 if good else 1


def _campaigns() -> bool:
    """The rounds, on one pair of servers."""
    good = True
    with (
        tempfile.TemporaryDirectory(prefix="kafka") as kafka_folder,
        kafka_server(Path(kafka_folder)) as kafka,
        postgres_server() as postgres,
    ):
        for number in range(1, ROUNDS + 1):
            good = _attempted(f"round {number}", partial(_round, kafka.url, postgres)) and good
    return good


def _round(broker_url: str, postgres: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="chaos") as folder:
        playing = campaign(
            Path(folder),
            broker_url=broker_url,
            database_url=create_database(postgres),
            webhooks=WEBHOOKS,
            kills=KILLS,
        )
        return _shown(f"{WEBHOOKS} webhooks, {KILLS} kills", asyncio.run(playing))


def _scaling() -> bool:
    with (
        tempfile.TemporaryDirectory(prefix="scaling") as folder,
        kafka_server(Path(folder) / "kafka") as kafka,
        postgres_server() as postgres,
    ):
        playing = scaling(Path(folder), broker_url=kafka.url, database_url=create_database(postgres))
        return _shown("workers come and go", asyncio.run(playing))


def _restore(hour: Hour) -> bool:
    with (
        tempfile.TemporaryDirectory(prefix="restore") as folder,
        kafka_server(Path(folder) / "kafka") as kafka,
        postgres_server() as postgres,
    ):
        playing = restore(Path(folder), broker_url=kafka.url, postgres=postgres, hour=hour)
        return _shown(f"a ledger {hour.seconds} s old", asyncio.run(playing))


def _outages(parts: Mapping[str, Part], hour: Hour) -> bool:
    """Each outage on servers of its own."""
    good = True
    for name, part in parts.items():
        good = _attempted(name, partial(_outage, part, hour)) and good
    return good


def _outage(part: Part, hour: Hour) -> bool:
    with tempfile.TemporaryDirectory(prefix="outage") as folder:
        return _shown(f"outage of {part.title}", outages.play(part, hour, Path(folder)))


def _strangers(on: str, minutes: float) -> bool:
    with tempfile.TemporaryDirectory(prefix="strangers") as folder, _storage(on, Path(folder)) as storage:
        return _shown(
            f"{PER_MINUTE} requests of strangers a minute, {minutes:g} min, log and ledger on {on}",
            asyncio.run(strangers(Path(folder), storage, seconds=minutes * 60)),
        )


@contextmanager
def _storage(on: str, folder: Path) -> Iterator[Storage]:
    if on == "files":
        yield on_files(folder)
        return
    with kafka_server(folder / "kafka") as kafka, postgres_server() as postgres:
        yield on_servers(kafka, create_database(postgres))


def _shown(title: str, outcome: Outcome | Scaled | Strangers) -> bool:
    sys.stdout.write(f"{title}\n{outcome.table()}\n\n")
    sys.stdout.flush()
    return outcome.good


def _attempted(title: str, play: Callable[[], bool]) -> bool:
    """Whatever goes wrong in a part is told as its failure, and the next is played all the same."""
    try:
        return play()
    except (Exception, pytest.skip.Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - told, whatever it was
        outages.say(f"{title}: FAILED: {reason(error)}")
        return False


def reason(error: BaseException) -> str:
    """Why, in one line, with the causes behind it; of a group, each of its errors."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(reason(one) for one in error.exceptions)
    if isinstance(error, ConsumerError):
        text = error.line()
    else:
        told = " ".join(str(error).split())
        text = f"{type(error).__name__}: {told}" if told else type(error).__name__
    cause = error.__cause__
    return f"{text} (because of {reason(cause)})" if cause is not None else text


if __name__ == "__main__":
    sys.exit(main())
