"""An idle connection of the webhook port stays open for `CONSUMER_KEEPALIVE_S`: longer than the proxy before it keeps
one. So does one of the internal port, where the pages are. What the proxy sends just when we close is answered by
nobody, and is a 502 to the sender."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from consumer.app import App
from consumer.settings import Role, load_settings
from consumer.telemetry.port import KEPT_OPEN_S

LONGEST_S = 120.0
"""What proxies keep by themselves: nginx and Amazon's balancers a minute, Traefik one and a half, Caddy two."""
BODY = b'{"id":"evt_1","type":"order.paid"}'
WEBHOOK = b"POST /webhooks HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


def environ(folder: Path) -> dict[str, str]:
    return {
        "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{folder}/consumer.db",
        "CONSUMER_BROKER_URL": f"embedded:{folder}/log.db",
        "CONSUMER_AUTHENTICITY": "signature",
        "CONSUMER_WEBHOOK_SECRETS": "whsec_" + "aHVzaC1zZWNyZXQtb2YtdGhlLW1lcmNoYW50LTMyYg==",
        "CONSUMER_LINGER_S": "0",
        "CONSUMER_PORT": "0",
        "CONSUMER_INTERNAL_PORT": "0",
    }


def test_it_stays_longer_than_proxies_keep_one(tmp_path: Path) -> None:
    assert load_settings(environ(tmp_path), Role.SERVE).keepalive_s > LONGEST_S
    assert KEPT_OPEN_S > LONGEST_S


@pytest.mark.parametrize("answers", [0, 1, 2])
async def test_it_ends_so_long_after_its_last_answer(tmp_path: Path, answers: int) -> None:
    # case: I22
    settings = load_settings({**environ(tmp_path), "CONSUMER_KEEPALIVE_S": "0.2"}, Role.SERVE)
    async with App(settings) as app:
        await app.receive()
        assert app.public_url is not None
        address = urlsplit(app.public_url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        async with asyncio.timeout(20):
            for _ in range(answers):
                writer.write(WEBHOOK)
                assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 401 ")  # nobody signed it
            assert await reader.read() == b""
        writer.close()
