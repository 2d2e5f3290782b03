"""Answering: whether the address of an application's API answers its credentials at all. Where nothing else is found
either (a wrong base URL, a proxy's page), a 404 says nothing about the object that was asked for."""

from __future__ import annotations

from typing import Final

from consumer.clock import Clock
from consumer.payments import PaymentsError, Resources
from consumer.sync.api import Cooldown

ANSWERS_FOR_S: Final = 60.0
PROBE_AGAIN_S: Final = 5.0


class Answering:
    """Of one application. `resources` is what is asked; a failure that concerns all its calls goes to `cooldown`."""

    def __init__(self, resources: Resources, cooldown: Cooldown, clock: Clock) -> None:
        self._resources = resources
        self._cooldown = cooldown
        self._clock = clock
        self._is_answering, self._known_until = False, 0.0

    async def answers(self) -> bool:
        """Whether it does. Who answered is asked again ANSWERS_FOR_S later, who did not after PROBE_AGAIN_S."""
        if self._clock.monotonic() >= self._known_until:
            try:
                await self._resources.application.retrieve()
            except PaymentsError as error:
                self._cooldown.take(error)
                self._is_answering, self._known_until = False, self._clock.monotonic() + PROBE_AGAIN_S
            else:
                self.answered()
        return self._is_answering

    def answered(self) -> None:
        """Something was read just now."""
        self._is_answering, self._known_until = True, self._clock.monotonic() + ANSWERS_FOR_S
