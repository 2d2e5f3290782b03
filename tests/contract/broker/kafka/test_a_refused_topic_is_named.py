"""What aiokafka says of a topic that it may not use names the topic, one or several."""

from __future__ import annotations

import pytest
from aiokafka.errors import GroupAuthorizationFailedError, KafkaError, TopicAuthorizationFailedError

from consumer.broker.kafka.causes import broker_error
from consumer.errors import GroupForbidden, TopicForbidden


@pytest.mark.parametrize(
    ("error", "kind", "named"),
    [
        (TopicAuthorizationFailedError("payments.events"), TopicForbidden, "payments.events"),
        (TopicAuthorizationFailedError({"b", "a"}), TopicForbidden, "a, b"),
        (TopicAuthorizationFailedError(), TopicForbidden, None),
        (GroupAuthorizationFailedError("payments.work"), GroupForbidden, None),
    ],
)
def test_by_its_name(error: KafkaError, kind: type[Exception], named: str | None) -> None:
    found = broker_error(error, "the broker could not be read", group="payments.work")
    assert (type(found), found.fields.get("topic"), found.fields["group"]) == (kind, named, "payments.work")


def test_a_name_that_is_known_already_gives_way() -> None:
    found = broker_error(TopicAuthorizationFailedError("payments.events"), "refused", topic="payments")
    assert found.fields["topic"] == "payments.events"
