"""procrastinate: a job in PostgreSQL for each webhook, deferred before the clock begins, as the endpoint would have
done it with the check for duplicates; the worker takes them, has the effect and marks them.
`python -m tests.bench.peers.work.procrastinate_queue DATABASE COUNT`"""

from __future__ import annotations

import sys
from typing import Any

import uvloop
from procrastinate import App, PsycopgConnector

from tests.bench.peers.work.told import Clock, effect

AT_ONCE = 16


async def main(database: str, count: int) -> None:
    """Work off the queue."""
    app = App(connector=PsycopgConnector(conninfo=database))

    async def ship(body: dict[str, Any]) -> None:
        await effect()

    task = app.task(name="ship")(ship)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await task.batch_defer_async(*({"body": _body(number)} for number in range(count)))
        clock = Clock()
        await app.run_worker_async(wait=False, concurrency=AT_ONCE, install_signal_handlers=False)
        clock.tell()


def _body(number: int) -> dict[str, Any]:
    order = {"id": f"ord_{number}", "order_id": f"order-{number}", "status": "PAID", "amount": "25.00",
             "customer_reference": "customer-1"}  # fmt: skip
    return {"id": f"evt_{number}", "type": "order.paid", "created_at": "2026-01-01T00:00:00+00:00",
            "data": {"object": order}}  # fmt: skip


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
