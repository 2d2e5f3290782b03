"""A role listens on IPv6, too, and says where so that a program can ask there: `serve --processes` does, and ends
where nothing answers; `dev` tells it to the simulator. `::` is every address of the machine, of both families."""

from __future__ import annotations

import socket
from pathlib import Path

import aiohttp
import pytest

from consumer.app import App
from consumer.settings import Role, load_settings

NONE = "no IPv6 on this machine"


def has_ipv6() -> bool:
    """Whether its loopback has an address of that family."""
    try:
        with socket.socket(socket.AF_INET6) as end:
            end.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason=NONE)
@pytest.mark.parametrize(
    ("host", "answers"), [("::1", ["[::1]"]), ("::", ["[::1]", "127.0.0.1"]), ("127.0.0.1", ["127.0.0.1"])]
)
async def test_where_it_says(tmp_path: Path, host: str, answers: list[str]) -> None:
    # case: O10
    environ = {
        "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/consumer.db",
        "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db",
        "CONSUMER_AUTHENTICITY": "signature",
        "CONSUMER_WEBHOOK_SECRETS": "whsec_" + "aHVzaC1zZWNyZXQtb2YtdGhlLW1lcmNoYW50LTMyYg==",
        "CONSUMER_LINGER_S": "0",
        "CONSUMER_HOST": host,
        "CONSUMER_PORT": "0",
        "CONSUMER_INTERNAL_HOST": host,
        "CONSUMER_INTERNAL_PORT": "0",
    }
    async with App(load_settings(environ, Role.SERVE)) as app, aiohttp.ClientSession() as http:
        await app.internal()
        await app.receive()
        assert app.internal_url is not None
        assert app.public_url is not None
        async with http.get(f"{app.internal_url}/healthz") as answer:
            assert answer.status == 200
        async with http.post(f"{app.public_url}/webhooks", json={}) as answer:
            assert answer.status == 401
        for one in answers:
            async with http.get(f"http://{one}:{app.internal_url.rpartition(':')[2]}/healthz") as answer:
                assert answer.status == 200, one
