"""Cluster: Kafka with TLS, a login and grants, behind a proxy; its administrator comes in by the side door."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from aiokafka.structs import TopicPartition

from tests.support.kafka import KafkaServer, kafka_server
from tests.support.ports import eventually
from tests.support.proxy import TcpProxy

USER = "consumer"
PASSWORD = "a-secret-word"
TOPIC, GROUP, CLUSTER = 2, 3, 4
OPERATIONS: Final = {"ALL": 2, "READ": 3, "WRITE": 4, "CREATE": 5, "DESCRIBE": 8}
LITERAL, DENY, ALLOW = 3, 2, 3


class Cluster:
    """One broker. `proxy`: the way to it, which may be slow, cut or closed."""

    def __init__(self, server: KafkaServer, proxy: TcpProxy) -> None:
        self.server = server
        self.proxy = proxy

    def environ(self) -> dict[str, str]:
        """The settings that reach it."""
        return {
            "CONSUMER_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "CONSUMER_KAFKA_CA_FILE": str(self.server.ca_file),
            "CONSUMER_KAFKA_SASL_USERNAME": USER,
            "CONSUMER_KAFKA_SASL_PASSWORD": PASSWORD,
        }

    async def deny(self, kind: int, name: str, operation: str) -> None:
        """Forbid our user this; returns when it is in force."""
        await self._grant(kind, name, operation, DENY)

    async def allow(self, kind: int, name: str, operation: str) -> None:
        """Forbid it no more; returns when that is in force."""
        grant = _grant(kind, name, operation, DENY)
        async with self._admin() as admin:
            await admin._send_request(DeleteAclsRequest(*grant))
            await eventually(lambda: _stands(admin, grant, False), what=f"{name} is not denied any more")

    async def change_password(self, password: str) -> None:
        """Our user's, at the broker; who is connected stays so until the broker's next start."""
        await asyncio.to_thread(self.server.set_password, USER, password)

    async def delete_records(self, topic: str) -> None:
        """As retention does with what is too old: all that is there now."""
        async with self._admin() as admin:
            [found] = await admin.describe_topics([topic])
            parts = [TopicPartition(topic, one["partition"]) for one in found["partitions"]]
            await admin.delete_records({part: RecordsToDelete(before_offset=-1) for part in parts})

    async def delete_topics(self, *names: str) -> None:
        """As an administrator who takes them for somebody else's."""
        async with self._admin() as admin:
            await admin.delete_topics(list(names))

    async def restart(self) -> None:
        """The broker, on the same data."""
        await asyncio.to_thread(self.server.stop)
        await asyncio.to_thread(self.server.start)

    async def restart_empty(self) -> None:
        """The broker, on another disk with nothing on it but its users and grants."""
        await asyncio.to_thread(self.server.stop)
        for inside in (path for disk in self.server.disks for path in disk.iterdir()):
            shutil.rmtree(inside) if inside.is_dir() else inside.unlink()
        await asyncio.to_thread(self.server.format)
        await asyncio.to_thread(self.server.start)
        await self.grant_all()

    async def grant_all(self) -> None:
        """Our user may use every topic and group, and the cluster."""
        for kind, name in ((TOPIC, "*"), (GROUP, "*"), (CLUSTER, "kafka-cluster")):
            await self._grant(kind, name, "ALL", ALLOW)

    async def _grant(self, kind: int, name: str, operation: str, permission: int) -> None:
        grant = _grant(kind, name, operation, permission)
        async with self._admin() as admin:
            await admin._send_request(CreateAclsRequest(*grant))  # aiokafka has no face for grants
            await eventually(lambda: _stands(admin, grant, True), what=f"the grant for {name}")

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[Any]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.server.inside_server)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()


def _grant(kind: int, name: str, operation: str, permission: int) -> tuple[Any, ...]:
    return kind, name, LITERAL, f"User:{USER}", "*", OPERATIONS[operation], permission


async def _stands(admin: Any, grant: tuple[Any, ...], expected: bool) -> bool:
    """Whether the broker knows of it as expected: it hears of a change some time after the controller took it."""
    told = await admin._send_request(DescribeAclsRequest(*grant))
    assert told.error_code == 0, told
    return bool(told.resources) is expected


@asynccontextmanager
async def cluster(folder: Path, other_disk: Path | None = None) -> AsyncIterator[Cluster]:
    """A broker that runs, maybe on two disks, on which our user may do what it needs."""
    async with TcpProxy(0) as proxy:
        with kafka_server(
            folder, advertised_port=proxy.port, user=(USER, PASSWORD), guarded=True, other_disk=other_disk
        ) as server:
            proxy.target_port = server.port
            found = Cluster(server, proxy)
            await found.grant_all()
            yield found
