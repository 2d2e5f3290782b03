"""A role of the consumer in a process of its own that dies at an armed point. The product's code is not touched: a
function it calls is wrapped here, after the fork, and the waits that follow a death are shortened."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from consumer.app import App, log_parts
from consumer.broker import Broker, EmbeddedBroker, KafkaBroker
from consumer.runtime.leader import Leader
from consumer.settings import Role, load_settings
from consumer.telemetry.logs import configure_logging
from consumer.work.dispatch import dispatcher
from consumer.work.ingest import claiming
from consumer.work.outbound import relay
from tests.crash import shop
from tests.crash.points import Point, arm
from tests.support.merchant.warm import modules

LEASE_S = 0.8
SESSION_S = 1.5


def role_process(role: Role, environ: Mapping[str, str], point: Point | None) -> ForkServerProcess:
    """A process, started, forked from one that has everything imported, so that each start is quick."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *modules()])
    process = context.Process(target=_main, args=(role, dict(environ), point), daemon=True)
    process.start()
    return process


def _main(role: Role, environ: dict[str, str], point: Point | None) -> None:
    os.environ.update(environ)
    # The leases of the dead are waited for: here not for 15 seconds. They are read where they are used.
    for module, name in ((claiming, "CLAIM_LEASE_S"), (dispatcher, "CLAIM_LEASE_S"), (relay, "RELAY_LEASE_S")):
        assert hasattr(module, name)
        setattr(module, name, LEASE_S)
    Leader.__init__ = _with_short_lease(Leader.__init__)  # type: ignore[method-assign]  # as said above
    assert hasattr(log_parts, "open_broker")
    log_parts.open_broker = _open_broker
    if point is not None:
        arm(point)
    asyncio.run(_run(role, environ))


def _with_short_lease(original: Any) -> Any:
    def made(self: Leader, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options | {"lease_s": LEASE_S})

    return made


def _open_broker(url: str, **_options: object) -> Broker:
    kind, _, rest = url.partition(":")
    if kind == "embedded":
        return EmbeddedBroker(Path(rest), heartbeat_s=0.2, session_s=SESSION_S)
    return KafkaBroker([rest.removeprefix("//")], heartbeat_s=0.3, session_s=SESSION_S)


async def _run(role: Role, environ: Mapping[str, str]) -> None:
    settings = load_settings(environ, role)
    configure_logging(settings.log_level, settings.log_format)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with App(settings, plugins={"shop": shop}) as app:
        await (app.work() if role is Role.WORK else app.sync())
        await app.run(stop)
