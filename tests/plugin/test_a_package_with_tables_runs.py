"""`handlers new --tables`: two packages with tables of their own, installed, migrated and run by real processes. What a
handler writes and the mark that it ran are there together or not at all, also after a kill in between."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from consumer.ledger import Database
from tests.support.load import SECRET, paid_orders, send
from tests.support.merchant.environment import install_packages, make_environment
from tests.support.merchant.environment import run_module as run
from tests.support.ports import eventually
from tests.support.process import ConsumerProcess, ended

SALES, POINTS = "shop-sales", "loyalty-points"
STALL = """    flag = ctx.options.get("stall", "")
    if flag and Path(flag).exists():
        Path(flag + ".here").touch()
        await asyncio.sleep(600)
"""
TABLES = ("shop_sales_sale", "loyalty_points_sale")
KEEPERS = "('shop_sales:keep', 'loyalty_points:keep')"


@dataclass
class Merchant:
    """What the test holds in its hands."""

    folder: Path
    python: str
    environ: dict[str, str]
    database: Database

    def consumer(self, *words: str, exit_code: int = 0) -> Any:
        """A command of the consumer; its answer."""
        told = run(self.python, "consumer", *words, "--json", cwd=self.folder, environ=self.environ,
                   exit_code=exit_code)  # fmt: skip
        return json.loads(told)

    def process(self, role: str, name: str) -> ConsumerProcess:
        return ConsumerProcess(role, self.environ, self.folder, name, python=self.python)

    async def counts(self) -> tuple[int, ...]:
        """Rows of either table, and runs of their handlers that are marked as done: as of one moment."""
        counted = [f"(SELECT count(*) FROM {table})" for table in TABLES]
        counted += [f"(SELECT count(*) FROM runs WHERE handler IN {KEEPERS} AND status = 'succeeded')"]
        async with self.database.reading() as session:
            return tuple((await session.execute(text("SELECT " + ", ".join(counted)))).one())

    async def is_settled_at(self, orders: int) -> bool:
        """Whether all is written down; at every look, the rows and the marks agree."""
        sales, points, marks = await self.counts()
        assert_agree(sales, points, marks)
        return (sales, points) == (orders, orders)


def assert_agree(sales: int, points: int, marks: int) -> None:
    if sales + points != marks:
        pytest.fail(f"{sales} + {points} rows, but {marks} marks")


# case: G2, G5, H1
@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_from_nothing_to_rows_that_commit_with_their_mark(tmp_path: Path, database_url: str) -> None:
    python = make_environment(tmp_path / "environment")
    for name in (SALES, POINTS):
        run(python, "consumer", "handlers", "new", name, "--tables", cwd=tmp_path)
    install_packages(python, tmp_path / SALES, tmp_path / POINTS)
    if database_url.startswith("sqlite"):
        assert_as_good_as_it_is_written(python, tmp_path)
    stall = let_it_stall(tmp_path / SALES / "shop_sales" / "handler.py", tmp_path)
    environ = {
        "CONSUMER_DATABASE_URL": database_url,
        "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db",
        "CONSUMER_AUTHENTICITY": "signature",
        "CONSUMER_WEBHOOK_SECRETS": SECRET,
        "CONSUMER_LINGER_S": "0",
        "CONSUMER_HANDLER_OPTIONS": json.dumps({"shop_sales": {"stall": str(stall)}}),
    }
    database = Database(database_url)
    try:
        merchant = Merchant(tmp_path, python, environ, database)
        upgrade(merchant)
        await play(merchant, stall)
    finally:
        await database.stop()


def assert_as_good_as_it_is_written(python: str, folder: Path) -> None:
    """Its own tests pass, also that of its migration; `handlers check` has nothing to say."""
    assert "4 passed" in run(python, "pytest", "-q", "-p", "no:cacheprovider", str(folder / SALES), cwd=folder)
    checked = json.loads(run(python, "consumer", "handlers", "check", "--json", cwd=folder))
    assert {"shop_sales:keep", "loyalty_points:keep"} <= set(checked["handlers"])
    assert checked["problems"] == []


def let_it_stall(handler: Path, folder: Path) -> Path:
    """From now on the handler stands still, after it wrote its row, while the file is there that is returned."""
    source = handler.read_text().replace("from consumer.plugin", "import asyncio\nfrom pathlib import Path\n\n"
                                         "from consumer.plugin", 1)  # fmt: skip
    handler.write_text(source + STALL)
    stall = folder / "stall"
    stall.touch()
    return stall


def upgrade(merchant: Merchant) -> None:
    """`db current` names what is missing, `db upgrade` brings every branch, and says so."""
    own = {"shop_sales_0001", "loyalty_points_0001"}
    assert own <= set(merchant.consumer("db", "current", exit_code=1)["missing"])
    merchant.consumer("db", "upgrade")
    current = merchant.consumer("db", "current")
    assert current["missing"] == []
    assert own < set(current["current"])
    assert {one.rpartition("_")[0] for one in current["current"]} >= {"ledger", "fulfilment", "access"}


async def play(merchant: Merchant, stall: Path) -> None:
    first, *others = sorted(paid_orders(6, 0), key=lambda one: one.event_id)
    serve, killed, work = (merchant.process(role, name) for role, name in
                           (("serve", "serve"), ("work", "killed"), ("work", "work")))  # fmt: skip
    with ended(serve, killed, work):
        for process in (serve, killed):
            process.spawn()
        for process in (serve, killed):
            await process.ready()
        address = f"{serve.addresses['public_url']}/webhooks"
        await send(address, [first])
        here = stall.with_name("stall.here")
        await eventually(here.exists, within_s=30, what="the handler has written its row and stands still")
        killed.kill()
        assert await merchant.counts() == (0, 0, 0), "neither rows nor marks"

        stall.unlink()  # noqa: ASYNC240 - the test has nothing else to do
        work.spawn()
        await work.ready()
        await eventually(lambda: merchant.is_settled_at(1), within_s=60, what="the first order is written down")
        await send(address, [first, *others, *others, first])
        await eventually(lambda: merchant.is_settled_at(6), within_s=60, what="each order is written down once")
    assert work.stop() == 0, work.log
    assert await merchant.counts() == (6, 6, 12)
