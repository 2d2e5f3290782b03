"""What a real Kafka refuses is told by our own code: grants, logins, certificates, a topic that is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from consumer.broker import KafkaBroker, KafkaSecurity, TopicConfig
from consumer.errors import (
    BrokerError,
    BrokerLoginRefused,
    BrokerTlsFailed,
    ClusterForbidden,
    GroupForbidden,
    TopicForbidden,
    TopicUnknown,
)
from tests.contract.broker.conftest import message
from tests.faults.cluster import CLUSTER, GROUP, PASSWORD, TOPIC, USER, Cluster, cluster
from tests.support.ports import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

EVENTS = TopicConfig(name="events", partitions=1, retention_s=None, max_record_bytes=100_000)


class Door:
    """The cluster, as one comes in to it: by our user and its authority, or as a test says otherwise."""

    def __init__(self, brokers: Cluster) -> None:
        self.brokers = brokers
        self.address = f"127.0.0.1:{brokers.proxy.port}"
        self.ours = KafkaSecurity(
            security_protocol="SASL_SSL", ca_file=brokers.server.ca_file, username=USER, password=PASSWORD
        )

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[KafkaBroker]:
        """A broker that has started."""
        found = KafkaBroker([self.address], security=self.ours, start_within_s=2.0)
        await found.start()
        try:
            yield found
        finally:
            await found.stop(2.0)

    async def refused(self, security: KafkaSecurity | None = None, address: str | None = None) -> BrokerError:
        """What one hears who comes in by `security`, or at another address."""
        found = KafkaBroker([address or self.address], security=security or self.ours, start_within_s=1.0)
        with pytest.raises(BrokerError) as told:
            await found.start()
        return told.value


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Door]:
    async with cluster(tmp_path_factory.mktemp("kafka")) as brokers:
        found = Door(brokers)
        async with found.entered() as broker:
            await broker.ensure_topics([EVENTS])
        yield found


def reason(error: BaseException) -> object:
    return getattr(error, "fields", {}).get("reason")


# case: I2, O2
# cause: TopicAuthorizationFailedError, GroupAuthorizationFailedError, ClusterAuthorizationFailedError
# cause: UnknownTopicOrPartitionError
async def test_what_is_not_granted_and_what_is_not_there(door: Door) -> None:
    brokers = door.brokers
    async with door.entered() as broker:
        await broker.publish("events", message("x"))

        await brokers.deny(GROUP, "g", "READ")
        member = broker.subscribe(["events"], "g")

        async def joins() -> type[BaseException]:
            try:
                await member.start()
                await member.poll(10, 1.0)
            except BrokerError as error:
                return type(error)
            return AssertionError

        async def is_refused() -> bool:
            return await joins() is GroupForbidden

        await eventually(is_refused, within_s=20, every_s=0.2, what="the group is refused")
        await member.stop()

        await brokers.deny(TOPIC, "events", "WRITE")
        with pytest.raises(TopicForbidden) as told:
            await broker.publish("events", message("x"), timeout_s=10)
        assert reason(told.value) == "TopicAuthorizationFailedError"

    await brokers.deny(TOPIC, "*", "WRITE")
    await brokers.deny(CLUSTER, "kafka-cluster", "ALL")
    found = await door.refused()
    assert (type(found), reason(found)) == (ClusterForbidden, "ClusterAuthorizationFailedError")
    await brokers.allow(CLUSTER, "kafka-cluster", "ALL")
    await brokers.allow(TOPIC, "*", "WRITE")
    await brokers.allow(TOPIC, "events", "WRITE")

    async with door.entered() as broker:
        await broker.publish("events", message("again"))
        await brokers.delete_topics("events")

        async def is_unknown() -> bool:
            try:
                await broker.probe(["events"])
            except TopicUnknown as error:
                return reason(error) == "UnknownTopicOrPartitionError"
            return False

        await eventually(is_unknown, within_s=20, every_s=0.2, what="the topic is gone")


# case: I2, O2
# cause: SaslAuthenticationFailed, UnsupportedSaslMechanismError, IllegalSaslStateError, TLS
async def test_whom_it_does_not_let_in_and_whom_we_do_not_trust(door: Door) -> None:
    def security(**other: object) -> KafkaSecurity:
        given = {"security_protocol": "SASL_SSL", "ca_file": door.brokers.server.ca_file, "username": USER}
        return KafkaSecurity(**({**given, "password": PASSWORD} | other))  # type: ignore[arg-type]  # by their names

    plain = security(security_protocol="SASL_PLAINTEXT", ca_file=None)
    told = [
        await door.refused(security(password="wrong")),
        await door.refused(security(sasl_mechanism="PLAIN")),
        await door.refused(plain, door.brokers.server.inside_server),
    ]
    assert [(type(one), reason(one)) for one in told] == [
        (BrokerLoginRefused, "SaslAuthenticationFailed"),
        (BrokerLoginRefused, "UnsupportedSaslMechanismError"),
        (BrokerLoginRefused, "IllegalSaslStateError"),
    ]
    unknown = await door.refused(security(ca_file=None))
    assert (type(unknown), unknown.fields["said"]) == (BrokerTlsFailed, "self-signed certificate")
    assert unknown.sentence().endswith("(self-signed certificate)"), "so that `status` says it"
    misnamed = await door.refused(address=f"localhost:{door.brokers.proxy.port}")
    assert isinstance(misnamed, BrokerTlsFailed)
    assert "localhost" in misnamed.sentence()
