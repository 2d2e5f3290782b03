"""Causes: what Kafka, or the way to it, refused, as our error. aiokafka says of every failed start only that it could
not bootstrap; so each server is asked once more, and the answer is the cause."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError

from consumer.broker.kafka.connection import KafkaConnection
from consumer.causes import of_kafka
from consumer.errors import BrokerError, BrokerUnavailable

ASK_WITHIN_S = 3.0
NOT_OF_A_CONNECTION = ("bootstrap_servers", "metadata_max_age_ms")


def broker_error(error: BaseException, message: str, **fields: Any) -> BrokerError:
    """Our error for what aiokafka raised: by the table of causes, else BrokerUnavailable with this message."""
    known = of_kafka(error)
    if known is None:
        return BrokerUnavailable(message, **fields, reason=type(error).__name__)
    return type(known)(**{**fields, **known.fields})


async def why_unreachable(connection: KafkaConnection) -> BrokerError | None:
    """What the servers answer to one who connects: a refused login, a certificate; None when one takes us, or when
    nobody answers in ASK_WITHIN_S."""
    options = {name: value for name, value in connection.options().items() if name not in NOT_OF_A_CONNECTION}
    for server in connection.servers:
        host, _, port = server.rpartition(":")
        try:
            async with asyncio.timeout(ASK_WITHIN_S):
                found = await create_conn(
                    host.strip("[]"), int(port), request_timeout_ms=int(ASK_WITHIN_S * 1000), **options
                )
            found.close()
        except (KafkaError, OSError, TimeoutError) as error:
            known = of_kafka(error)
            if known is not None:
                return type(known)(servers=server, **known.fields)
        else:
            return None
    return None
