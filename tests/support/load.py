"""A load generator: signed webhooks to a loopback address, a share of them sent twice. Bounded in count and time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import aiohttp
import orjson
from standardwebhooks import Webhook

SECRET = "whsec_dGVzdC1zZWNyZXQtb2YtdGhlLWxvYWQtZ2VuZXJhdG9yISE="


@dataclass(frozen=True)
class Sending:
    """One webhook to be sent."""

    event_id: str
    body: bytes
    headers: dict[str, str]


@dataclass
class Report:
    """What was answered."""

    statuses: Counter[int] = field(default_factory=Counter)
    accepted: set[str] = field(default_factory=set)


def paid_orders(orders: int, duplicates: int, *, seed: int = 1, first: int = 0) -> list[Sending]:
    """`orders` paid orders as signed `order.paid` webhooks, numbered from `first` on, and `duplicates` of them once
    more, shuffled."""
    chance = random.Random(seed)
    webhook = Webhook(SECRET)
    now = datetime.now(UTC)
    once = [
        _signed(webhook, f"evt_{number:06d}", f"order-{number:06d}", now) for number in range(first, first + orders)
    ]
    sendings = once + [chance.choice(once) for _ in range(duplicates)]
    chance.shuffle(sendings)
    return sendings


def _signed(webhook: Webhook, event_id: str, order_id: str, now: datetime) -> Sending:
    order = {"id": f"ord_{order_id}", "order_id": order_id, "status": "PAID", "amount": "25.00"}
    body = orjson.dumps(
        {"id": event_id, "type": "order.paid", "created_at": now.isoformat(), "data": {"object": order}}
    )
    headers = {
        "Content-Type": "application/json",
        "webhook-id": event_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": webhook.sign(event_id, now, body.decode()),
    }
    return Sending(event_id, body, headers)


async def send(
    address: str,
    sendings: Sequence[Sending],
    *,
    parallel: int = 64,
    limit_s: float = 300.0,
    on_progress: Callable[[int], None] = lambda sent: None,
) -> Report:
    """Send all; what is not answered 200 is sent again, as the service would. Raises TimeoutError after `limit_s`."""
    if not address.startswith("http://127.0.0.1:"):
        raise ValueError("load goes to the loopback only")
    report = Report()
    queue = iter(sendings)

    async def sender(http: aiohttp.ClientSession) -> None:
        for sending in queue:
            while True:
                status = await _post(http, address, sending)
                report.statuses[status] += 1
                if status == 200:
                    break
                await asyncio.sleep(0.2)
            report.accepted.add(sending.event_id)
            on_progress(report.statuses[200])

    connector = aiohttp.TCPConnector(limit=parallel)
    async with asyncio.timeout(limit_s), aiohttp.ClientSession(connector=connector) as http:
        await asyncio.gather(*(sender(http) for _ in range(parallel)))
    return report


async def _post(http: aiohttp.ClientSession, address: str, sending: Sending) -> int:
    try:
        async with http.post(address, data=sending.body, headers=sending.headers) as answer:
            await answer.read()
            return answer.status
    except aiohttp.ClientError:
        return 0
