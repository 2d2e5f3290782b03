"""While a group's coordinator moves to another broker, or is loading, who looks at the group asks again; one that stays
away is an error, and not a group without members."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.errors import GroupLoadInProgressError, IncompatibleBrokerVersion, NotCoordinatorForGroupError

from consumer.broker.kafka import groups


class Admin:
    """A client whose first answers are errors."""

    def __init__(self, *errors: type[Exception]) -> None:
        self._errors = list(errors)

    async def describe_consumer_groups(self, _: object) -> list[Any]:
        if self._errors:
            raise self._errors.pop(0)
        return []

    async def find_coordinator(self, _: str) -> int:
        return 1

    async def _send_request(self, *_: object) -> None:
        raise IncompatibleBrokerVersion  # it knows no newer kind of group

    async def list_consumer_group_offsets(self, *_: object, **__: object) -> dict[str, int]:
        return {"events": 7}


async def test_it_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "COORDINATOR_EVERY_S", 0.0)
    moving = Admin(NotCoordinatorForGroupError, GroupLoadInProgressError)
    assert await groups._coordinated(moving, "payments.work", []) == ((), {"events": 7})
    away = Admin(*[NotCoordinatorForGroupError] * groups.COORDINATOR_TRIES)
    with pytest.raises(NotCoordinatorForGroupError):
        await groups._coordinated(away, "payments.work", [])
