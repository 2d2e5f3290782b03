"""CredentialCircuit: when every secret is refused, stop calling, probe slowly, close alone (cases C14, S5-S6, S14)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import orjson

from consumer.clock import Clock
from consumer.payments.errors import CircuitOpen
from consumer.payments.shared_budget import BudgetStore, Step

PROBE_EVERY_S = 30.0
LOOK_EVERY_S = 5.0

Turn = Literal["pass", "probe", "wait"]


@dataclass(frozen=True, kw_only=True)
class CircuitState:
    """What an operator sees: since when the application's credentials are refused (None: they are accepted)."""

    application: str
    open_since: datetime | None
    probes: int

    @property
    def is_open(self) -> bool:
        """Whether the credentials are refused now."""
        return self.open_since is not None


class CredentialCircuit:
    """Whether calls with these credentials are worth making.

    Opened by a 401 on every secret. While open, calls fail at once with CircuitOpen; at most one call in
    `probe_every_s` seconds, over all processes that share the store, is let through as a probe. It closes when a
    probe succeeds, here or in another process, or at once when other secrets were read from the file.
    `on_change` is told each opening and closing.
    """

    def __init__(
        self,
        application: str,
        *,
        store: BudgetStore,
        clock: Clock,
        app_id: str = "",
        on_change: Callable[[CircuitState], None] | None = None,
    ) -> None:
        self.application = application
        self._store = store
        self._clock = clock
        self._name = f"circuit/{app_id or application}"
        self.probe_every_s = PROBE_EVERY_S
        self._on_change = on_change
        self._open_since: datetime | None = None
        self._opened_at = 0.0  # the store's time
        self._is_told_refused = False  # the others still believe that the credentials are refused
        self._generation = 0
        self._look_at = 0.0  # the clock's monotonic time
        self._probes = 0

    @property
    def state(self) -> CircuitState:
        """What an operator sees of it."""
        return CircuitState(application=self.application, open_since=self._open_since, probes=self._probes)

    @property
    def is_open(self) -> bool:
        """Whether the credentials are refused, as far as this process knows."""
        return self._open_since is not None

    async def admit(self, generation: int) -> Literal["pass", "probe"]:
        """Whether a call may be made: `pass`, or `probe` when this caller has to probe first.

        `generation` is that of the credentials. Raises CircuitOpen when neither.
        """
        if self._open_since is None:
            return "pass"
        if generation != self._generation:
            self._close()
            return "pass"
        now = self._clock.monotonic()
        if now < self._look_at:
            raise CircuitOpen(retry_after_s=self._look_at - now, application=self.application)
        self._look_at = now + min(LOOK_EVERY_S, self.probe_every_s)
        turn, wait_s = await self._store.update([self._name], self._turn_step())
        if turn == "pass":
            self._is_told_refused = False
            self._close()
            return "pass"
        if turn == "probe":
            self._probes += 1
            self._look_at = now + self.probe_every_s
            return "probe"
        self._look_at = now + min(wait_s, LOOK_EVERY_S)
        raise CircuitOpen(retry_after_s=wait_s, application=self.application)

    async def refused(self, generation: int) -> None:
        """Every secret of this generation was answered with a 401."""
        if self._open_since is not None:
            return
        self._open_since = self._clock.now()
        self._generation = generation
        self._look_at = self._clock.monotonic() + min(LOOK_EVERY_S, self.probe_every_s)
        self._is_told_refused = True
        self._tell()
        self._opened_at = await self._store.update([self._name], self._opened_step())

    async def accepted(self) -> None:
        """A call was let in: the credentials work."""
        if self._open_since is not None:
            self._close()
        if not self._is_told_refused:
            return
        self._is_told_refused = False
        await self._store.update([self._name], self._accepted_step())

    def _close(self) -> None:
        self._open_since = None
        self._tell()

    def _tell(self) -> None:
        if self._on_change is not None:
            self._on_change(self.state)

    def _opened_step(self) -> Step[float]:
        def step(texts: Mapping[str, str], now: float) -> tuple[Mapping[str, str], float]:
            probed, accepted = _times(texts.get(self._name))
            # The refused call itself counts as the first probe.
            return {self._name: _text(max(probed, now), accepted)}, now

        return step

    def _turn_step(self) -> Step[tuple[Turn, float]]:
        def step(texts: Mapping[str, str], now: float) -> tuple[Mapping[str, str], tuple[Turn, float]]:
            probed, accepted = _times(texts.get(self._name))
            if accepted > self._opened_at:
                return {}, ("pass", 0.0)
            rest = probed + self.probe_every_s - now
            if 0 < rest <= self.probe_every_s:
                return {}, ("wait", rest)
            return {self._name: _text(now, accepted)}, ("probe", 0.0)

        return step

    def _accepted_step(self) -> Step[None]:
        def step(texts: Mapping[str, str], now: float) -> tuple[Mapping[str, str], None]:
            probed, _ = _times(texts.get(self._name))
            return {self._name: _text(probed, now)}, None

        return step


def _times(text: str | None) -> tuple[float, float]:
    if text is None:
        return 0.0, -1.0
    try:
        probed, accepted = orjson.loads(text)
        return float(probed), float(accepted)
    except (ValueError, TypeError):
        return 0.0, -1.0


def _text(probed: float, accepted: float) -> str:
    return orjson.dumps([probed, accepted]).decode()
