"""Looking: what an operator asks, with a million events in the ledger: seconds against the longest that is promised.

Measured in a process that runs already. `consumer status` as a command takes 1.2 s on a quiet machine of two cores, 1.1
of it CPU; 0.6 were wanted. Its imports are 0.8 s: SQLAlchemy 0.26, the tables of the ledger and the plugins 0.13,
pydantic 0.07, rich 0.04, SQLModel 0.03, the rest in small parts; some thirty statements, each built and compiled once,
are 0.3 s. `import sqlmodel` alone takes 0.4 s there, so 0.6 is out of its reach. Not done: a process that stays and
answers (it may be the one that is blind); statements as text for commands (two truths about one table).
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import uvloop

from consumer.ledger import Database
from consumer.ledger.engine import schema
from handlers.fulfilment.tables import FulfilmentOrder
from tests.bench.ratio import Ratio
from tests.support.desk import Desk
from tests.support.ledger.history import Past, dead, finished, take_statistics
from tests.support.postgres import create_database

EVENTS = 1_000_000
DEAD = 1_000
ROUNDS = 3
HANDLER = "fulfilment:order_paid"
ORDER = "order-500"
LONGEST_S = {"SQLite": 2.0, "PostgreSQL": 1.0}
ASKED = (
    ("events", "list"),
    ("events", "list", "--order", ORDER),
    ("explain", "order", ORDER),
    ("status",),
    ("replay", "plan", "--handler", HANDLER, "--status", "dead"),
)


def measure(folder: Path, postgres: str) -> list[Ratio]:
    """Each command in this process, the slowest of its rounds last; what it answers is not looked at here."""
    found = []
    for name, longest_s in LONGEST_S.items():
        url = f"sqlite+aiosqlite:///{folder / uuid.uuid4().hex}.db" if name == "SQLite" else create_database(postgres)
        uvloop.run(_with_a_million(url))
        desk = Desk({
            "CONSUMER_DATABASE_URL": url, "CONSUMER_BROKER_URL": f"embedded:{folder}/{uuid.uuid4().hex}.log",
            "CONSUMER_LOG_LEVEL": "error",
        })  # fmt: skip
        for words in ASKED:
            desk.call(*words, "--json")  # the first imports what it needs
            rounds = [(1 / _seconds(desk, words), 1 / longest_s) for _ in range(ROUNDS)]
            found.append(Ratio(f"{name}, {EVENTS} events: {' '.join(words)}", f"within {longest_s} s", rounds, 1.0))
    return found


def _seconds(desk: Desk, words: tuple[str, ...]) -> float:
    began = time.perf_counter()
    done = desk.call(*words, "--json")
    took_s = time.perf_counter() - began
    if not done.stdout:
        raise RuntimeError(f"{' '.join(words)} answered nothing: {done.stderr}")
    return took_s


async def _with_a_million(url: str) -> None:
    database = Database(url)
    await schema.upgrade(database)
    await finished(database, Past(first=1, last=EVENTS, handler=HANDLER))
    await dead(database, Past(first=EVENTS + 1, last=EVENTS + DEAD, handler=HANDLER))
    async with database.transaction() as session:
        session.add(FulfilmentOrder(application="default", order_id=ORDER))
    await take_statistics(database)
    await database.stop()
