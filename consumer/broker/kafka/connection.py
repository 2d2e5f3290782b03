"""How to reach Kafka: servers, TLS and SASL, and the bounded end of whatever aiokafka started. It imports
aiokafka where it is needed: settings are checked with it by everybody, and most have no Kafka."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import structlog

from consumer.errors import BrokerUrlInvalid

LOG = structlog.get_logger(__name__)

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

ABANDON_ROUNDS = 5
CLOSE_WITHIN_S = 1.0
REACH_WITHIN_S = 1.0
ASKED_AGAIN_S, ASKED_AGAIN_CEILING_S = 0.001, 0.05
"""The least and the most between two questions about the cluster; the first after CALM_S of none is asked at once."""
CALM_S = 1.0


@dataclass(frozen=True, kw_only=True)
class KafkaSecurity:
    """TLS and SASL. Files are PEM; without `ca_file` the system's authorities are trusted. The password stays out of
    repr and of every error."""

    security_protocol: Protocol = "PLAINTEXT"
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    sasl_mechanism: Mechanism = "SCRAM-SHA-512"
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.security_protocol.startswith("SASL") and not (self.username and self.password):
            raise BrokerUrlInvalid("SASL needs a username and a password")
        if self.key_file is not None and self.cert_file is None:
            raise BrokerUrlInvalid("a client key without its certificate")

    def options(self) -> dict[str, Any]:
        """The keyword arguments aiokafka takes. Raises BrokerUrlInvalid when a file cannot be used."""
        found: dict[str, Any] = {"security_protocol": self.security_protocol}
        if self.security_protocol.endswith("SSL"):
            from aiokafka.helpers import create_ssl_context

            try:
                found["ssl_context"] = create_ssl_context(
                    cafile=self.ca_file, certfile=self.cert_file, keyfile=self.key_file
                )
            except (OSError, ssl.SSLError) as error:
                raise BrokerUrlInvalid("a TLS file of the broker cannot be used", reason=str(error)) from error
        if self.security_protocol.startswith("SASL"):
            found["sasl_mechanism"] = self.sasl_mechanism
            found["sasl_plain_username"] = self.username
            found["sasl_plain_password"] = self.password
        return found


@dataclass(frozen=True, kw_only=True)
class KafkaConnection:
    """Where the brokers are and how to talk to them."""

    servers: tuple[str, ...]
    client_id: str
    security: KafkaSecurity = field(default_factory=KafkaSecurity)

    def options(self) -> dict[str, Any]:
        """The keyword arguments that producer, consumer and admin client share."""
        return {
            "bootstrap_servers": list(self.servers),
            "client_id": self.client_id,
            "metadata_max_age_ms": 60_000,
            **self.security.options(),
        }

    async def reached(self) -> KafkaConnection:
        """The same by those of several servers that answer now, by all when none does. aiokafka tries one after the
        other, in any order, and waits for a machine that is gone, or hangs, as long as for an answer: ten to forty
        seconds. Raises BrokerUrlInvalid when a TLS file cannot be used."""
        if len(self.servers) == 1:
            return self
        secured = {name: given for name, given in self.security.options().items() if name == "ssl_context"}
        found = await asyncio.gather(*(self._answers(server, secured) for server in self.servers))
        there = tuple(server for server, is_there in zip(self.servers, found, strict=True) if is_there)
        return replace(self, servers=there or self.servers)

    async def _answers(self, server: str, secured: Mapping[str, Any]) -> bool:
        """Whether it says which requests it knows, as it does to anybody, without a login. One that hangs takes
        connections, and says nothing on them."""
        from aiokafka.conn import create_conn
        from aiokafka.errors import KafkaError

        host, _, port = server.rpartition(":")
        protocol = "SSL" if secured else "PLAINTEXT"
        limit_ms = int(REACH_WITHIN_S * 1000)
        try:
            async with asyncio.timeout(REACH_WITHIN_S):
                connected = await create_conn(
                    host.strip("[]"), int(port), client_id=self.client_id, security_protocol=protocol,
                    request_timeout_ms=limit_ms, **secured,
                )  # fmt: skip
        except (KafkaError, OSError, TimeoutError, UnicodeError):  # the last: a name that is none
            return False
        connected.close()
        return True


async def is_reached(server: str) -> bool:
    """Whether a connection to it can be made; it says nothing on it."""
    host, _, port = server.rpartition(":")
    try:
        async with asyncio.timeout(REACH_WITHIN_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError, UnicodeError):  # the last: a name that is none
        return False
    writer.close()
    return True


def ask_calmly(client: Any) -> None:
    """From now on aiokafka's network client waits between two questions about the cluster, twice as long each time.
    While a partition has no leader it asks as soon as it is answered: 4,000 times a second, with half a core (O9)."""
    update, loop = client._metadata_update, asyncio.get_running_loop()
    wait_s, asked_s = 0.0, -CALM_S

    async def updated(*about: Any) -> Any:
        nonlocal wait_s, asked_s
        calm = loop.time() - asked_s >= CALM_S
        wait_s = 0.0 if calm else min(max(2 * wait_s, ASKED_AGAIN_S), ASKED_AGAIN_CEILING_S)
        await asyncio.sleep(wait_s)
        try:
            return await update(*about)
        finally:
            asked_s = loop.time()

    client._metadata_update = updated


async def end(client: Any, timeout_s: float) -> None:
    """Stop a producer, consumer or admin client of aiokafka, bounded; never raises.

    Their own `stop()` can wait for ever for a broker that is gone (aiokafka #1101, #773). What does not end in time is
    cancelled, task by task, and its connections are closed.
    """
    stop = client.close if hasattr(client, "close") else client.stop
    stopping = asyncio.ensure_future(stop())
    await asyncio.wait({stopping}, timeout=timeout_s)
    if stopping.done():
        error = None if stopping.cancelled() else stopping.exception()
        if error is not None:
            LOG.warning("kafka_client_stopped_badly", error=type(error).__name__)
        else:
            return
    LOG.warning("kafka_client_abandoned", timeout_s=timeout_s)
    network = getattr(client, "client", None) or getattr(client, "_client", None)
    parts = [client, network]
    parts += [getattr(client, name, None) for name in ("_sender", "_message_accumulator", "_coordinator", "_fetcher")]
    stopping.cancel()
    for _ in range(ABANDON_ROUNDS):  # aiokafka's sender answers a cancel by waiting for its own children
        tasks = _tasks_of(part for part in parts if part is not None)
        if not stopping.done():
            tasks.add(stopping)
        if not tasks:
            break
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=0.2)
    if network is not None:
        # In a task of its own: what it waits for was cancelled above, and that must not cancel us.
        closing = asyncio.ensure_future(network.close())
        await asyncio.wait({closing}, timeout=CLOSE_WITHIN_S)
        if not closing.done():
            closing.cancel()
        elif not closing.cancelled():
            closing.exception()  # looked at: whatever it was, the connections are given up


def given_up(owner: object, method: str) -> None:
    """Nobody waits any more for what these tasks of its do: how they end is looked at, or Python would tell of it as of
    an error that nobody has seen."""
    for task in _tasks_of([owner]):
        if getattr(task.get_coro(), "__name__", "") == method:
            task.add_done_callback(_looked_at)


def _looked_at(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _tasks_of(owners: Iterable[object]) -> set[asyncio.Task[Any]]:
    """The tasks that run a method of one of these objects; aiokafka keeps no list of them."""
    ids = {id(owner) for owner in owners}
    found: set[asyncio.Task[Any]] = set()
    for task in asyncio.all_tasks():
        frame = getattr(task.get_coro(), "cr_frame", None)
        if frame is not None and task is not asyncio.current_task() and id(frame.f_locals.get("self")) in ids:
            found.add(task)
    return found
