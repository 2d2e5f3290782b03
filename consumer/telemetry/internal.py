"""Internal: `/healthz`, `/readyz`, `/metrics` of a role's internal port.

Liveness says that the event loop turns, and nothing else (case O10): a broker or a database that is away must not
get the process killed. Readiness asks the named checks, and turns 503 as soon as the process drains (case I4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import orjson
from aiohttp import web

from consumer.clock import Clock
from consumer.errors import ConsumerError
from consumer.telemetry.logs import Condition
from consumer.telemetry.loop_watch import LoopWatch
from consumer.telemetry.metrics import CONTENT_TYPE, Metrics

Check = Callable[[], Awaitable[bool]]
KEEP_S = 1.0
FIRST_KEEP_S = 0.05
"""How long an answer is kept until the process was ready once: nobody waits a second more for its start."""


class Readiness:
    """Whether this process should get work: `starting`, then ready as its checks say, then `draining` for good.

    A check answers whether its thing can be used now, or raises a ConsumerError that says why not; it gets `limit_s`
    and never fails the process. Answers are kept for KEEP_S, so that probing costs a bounded amount.
    """

    def __init__(self, clock: Clock, checks: Mapping[str, Check] | None = None, *, limit_s: float = 2.0) -> None:
        self._clock = clock
        self._checks = dict(checks or {})
        self._limit_s = limit_s
        self._broken: dict[str, Condition] = {}
        self._state = "starting"
        self._was_ready = False
        self._asked_at = float("-inf")
        self._answers: dict[str, str] = {}
        self._problems: dict[str, tuple[str, str]] = {}
        self._asking = asyncio.Lock()

    @property
    def checks(self) -> Mapping[str, Check]:
        """The checks by name."""
        return dict(self._checks)

    def add(self, name: str, check: Check) -> None:
        """Ask this check too, from now on."""
        self._checks[name] = check

    @property
    def problems(self) -> Mapping[str, tuple[str, str]]:
        """Of the checks that failed when they were last asked: code and sentence of why."""
        return dict(self._problems)

    @property
    def draining(self) -> bool:
        """Whether `drain` was called."""
        return self._state == "draining"

    def started(self) -> None:
        """The role is up; from now on the checks decide."""
        if not self.draining:
            self._state = "started"

    def drain(self) -> None:
        """The role ends (SIGTERM): not ready from now on, whatever the checks say."""
        self._state = "draining"

    async def answers(self) -> tuple[bool, str, dict[str, str]]:
        """(ready, state, answer of each check: `ok`, `failed` or `timeout`)."""
        if self._state != "started":
            return False, self._state, {}
        async with self._asking:
            keep_s = KEEP_S if self._was_ready else FIRST_KEEP_S
            if self._clock.monotonic() - self._asked_at >= keep_s:
                found = await asyncio.gather(*(self._ask(name, check) for name, check in self._checks.items()))
                self._answers = dict(zip(self._checks, found, strict=True))
                self._asked_at = self._clock.monotonic()
        ready = not self.draining and all(answer == "ok" for answer in self._answers.values())
        self._was_ready = self._was_ready or ready
        return ready, "ready" if ready else ("draining" if self.draining else "not_ready"), self._answers

    async def _ask(self, name: str, check: Check) -> str:
        answer, problem = await self._answer(name, check)
        if problem is None:
            self._problems.pop(name, None)
        else:
            self._problems[name] = problem
        return answer

    async def _answer(self, name: str, check: Check) -> tuple[str, tuple[str, str] | None]:
        broken = self._broken.setdefault(
            name, Condition("readiness_check_failed", monotonic=self._clock.monotonic, check=name)
        )
        try:
            async with asyncio.timeout(self._limit_s):
                is_ready = await check()
                broken.over()
                if is_ready:
                    return "ok", None
        except TimeoutError:
            return "timeout", ("no_answer", f"no answer within {self._limit_s:g} s")
        except ConsumerError as error:
            broken.over()
            return "failed", (error.code, error.sentence())
        except Exception as error:  # noqa: BLE001 - a failing check is an answer, not an accident
            broken.lasts(type(error).__name__, error=type(error).__name__)
            return "failed", ("check_failed", type(error).__name__)
        return "failed", ("not_ready", "not ready yet")


def internal_app(*, metrics: Metrics, readiness: Readiness, watch: LoopWatch | None = None) -> web.Application:
    """The internal application of a role; the console adds its own routes to it."""

    async def healthz(_: web.Request) -> web.Response:
        return _answer(200, {"status": "ok", "loop_lag_s": round(watch.lag_s, 4) if watch is not None else None})

    async def readyz(_: web.Request) -> web.Response:
        ready, state, checks = await readiness.answers()
        body: dict[str, object] = {"status": state, "checks": checks}
        if readiness.problems:
            body["problems"] = {name: code for name, (code, _) in readiness.problems.items()}
        return _answer(200 if ready else 503, body)

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application(client_max_size=64 * 1024)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", exposition)
    return app


def _answer(status: int, body: object) -> web.Response:
    return web.Response(
        status=status,
        body=orjson.dumps(body),
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )
