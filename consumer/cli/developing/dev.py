"""Development: every role in one process on ./data, with the sandbox unless a real service is configured."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, suppress
from datetime import datetime
from pathlib import Path

from consumer.app import App
from consumer.app.options import require_options
from consumer.app.root import STOP_SLACK_S
from consumer.cli.bootstrap import announce, at_sandbox, run_until, say_stopped, stop_on_signals
from consumer.cli.developing.simulator import cannot_start, sandbox_config, tell_running
from consumer.cli.looking.background_status import background_status
from consumer.cli.output import Output
from consumer.clock import SystemClock, rest
from consumer.errors import LedgerError
from consumer.sandbox import Sandbox, SandboxClock, SandboxConfig, SandboxError
from consumer.settings import Settings

LOOK_EVERY_S = 0.2


async def develop(settings: Settings, output: Output, data: Path, sandbox_port: int, *, reload: bool = False) -> None:
    """Run until a signal; `data` is the folder of the sandbox's state. With `reload` the worker is a process beside
    this one, and a new one after each save of a plugin. Raises PortTaken."""
    stop = stop_on_signals()
    async with AsyncExitStack() as stack:
        sandbox, clock = None, None
        if not os.environ.get("SVC_BASE_URL"):
            sandbox = await started(stack, sandbox_config(settings, port=sandbox_port, data=data))
            tell_running(data, sandbox.base_url)
            settings = at_sandbox(settings, sandbox.base_url)
            clock = SandboxTime(sandbox.engine.clock)
        app = await stack.enter_async_context(App(settings, clock=clock))
        await build_everything(app, work=not reload, clock=sandbox.engine.clock if sandbox is not None else None)
        if sandbox is not None:
            sandbox.set_webhook_url(f"{app.public_url}/webhooks/default")
        if reload:
            _reload(app, sandbox)
        announce(app, output, {"sandbox_url": sandbox.base_url if sandbox is not None else None})
        await run_until(stop, app, settings)
    say_stopped()


class Timekeeper:
    """The ledger's time is the simulator's, also after that was driven: so commands go by it, too."""

    def __init__(self, app: App, clock: SandboxClock) -> None:
        self._app = app
        self._clock = clock
        self._told_s: float | None = None

    async def tell(self) -> None:
        """What the simulator's time is now. Raises LedgerError."""
        ahead_s = self._clock.offset_s
        if ahead_s != self._told_s:
            await self._app.drive(ahead_s)
            self._told_s = ahead_s

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        while not stop.is_set():
            with suppress(LedgerError):  # told the next time
                await self.tell()
            await rest(self._app.machine, LOOK_EVERY_S, stop)

    async def check(self) -> bool:
        """Whether the ledger knows it."""
        return self._told_s == self._clock.offset_s


class SandboxTime(SystemClock):
    """The sandbox's time for the consumer too, so that months can pass in both."""

    def __init__(self, clock: SandboxClock) -> None:
        self._clock = clock

    def now(self) -> datetime:
        """The simulator's wall time."""
        return self._clock.now()


async def started(stack: AsyncExitStack, config: SandboxConfig) -> Sandbox:
    """The simulator, running until the stack unwinds. Raises UsageError, PortTaken."""
    try:
        return await stack.enter_async_context(Sandbox(config))
    except (SandboxError, OSError) as error:
        raise cannot_start(error, config, option="--sandbox-port") from error


async def build_everything(app: App, *, clock: SandboxClock | None, work: bool = True) -> None:
    """All roles, in the order in which they must be there; without `work` somebody else handles events. `clock`: the
    simulator's, which the ledger then goes by. Raises SettingsError for options that do not fit."""
    if work:
        require_options(app.registry, app.settings.handler_options)  # of every plugin, before console asks two of them
    await app.upgrade()
    if clock is None:
        await app.drive(0.0)
    else:
        keeper = Timekeeper(app, clock)
        await keeper.tell()
        app.beside(keeper.run, "clock", STOP_SLACK_S, check=keeper.check)
    await app.internal(console=True, status=background_status(app.settings))
    if work:
        await app.work()
    await app.sync()
    await app.receive()


def _reload(app: App, sandbox: Sandbox | None) -> None:
    """The worker, in a process that is replaced when a plugin was saved."""
    from consumer.cli.developing.reload.reloader import Reloader

    clock = sandbox.engine.clock if sandbox is not None else None
    reloader = Reloader(
        base_url=sandbox.base_url if sandbox is not None else None,
        offset_s=lambda: clock.offset_s if clock is not None else 0.0,
        drain_s=app.settings.drain_s + STOP_SLACK_S,
    )
    app.beside(reloader.run, "reload", app.settings.drain_s + 2 * STOP_SLACK_S, check=reloader.check)
