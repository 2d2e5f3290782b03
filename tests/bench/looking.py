"""Looking: what an operator asks, with a million events in the ledger: seconds against the longest that is promised.

Measured in a process that runs already. As commands, side by side at a load of 4 on two cores, CPU seconds before and
after what is imported was kept from the garbage collector (`cli/entry.py`): `status` 1.36 and 0.97, `events list` 1.00
and 0.71, `explain` 1.17 and 0.83. Then `status` lost two looks at source and ORM that nobody needs. 0.6 s were wanted
where the start was 1.5 s; it is 2.0 s on this machine, `status` then 2.2 s. What is left are imports: SQLAlchemy 0.3,
the tables of the ledger and the plugins 0.15, structlog 0.08 (0.2 with rich, which is left out), pydantic 0.1.
`import sqlmodel` alone takes 0.5.

Not done: a process that stays and answers (it may be the one that is blind); statements as text for commands (two
truths about one table).
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
