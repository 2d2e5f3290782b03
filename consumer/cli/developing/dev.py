"""Development: every role in one process on ./data, with the sandbox unless a real service is configured."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path

from consumer.app import App
from consumer.app.root import STOP_SLACK_S
from consumer.cli.developing.simulator import sandbox_config, tell_running
from consumer.cli.output import Output
from consumer.cli.process import announce, at_sandbox, run_until, say_stopped, stop_on_signals
from consumer.clock import SystemClock
from consumer.errors import UsageError
from consumer.sandbox import Sandbox, SandboxClock, SandboxConfig, SandboxError
from consumer.settings import Settings


async def develop(settings: Settings, output: Output, data: Path, sandbox_port: int, *, reload: bool = False) -> None:
    """Run until a signal; `data` is the folder of the sandbox's state. With `reload` the worker is a process beside
    this one, and a new one after each save of a plugin. Raises UsageError when a port is taken."""
    stop = stop_on_signals()
    async with AsyncExitStack() as stack:
        sandbox, clock = None, None
        if not os.environ.get("SVC_BASE_URL"):
            sandbox = await started(stack, sandbox_config(settings, port=sandbox_port, data=data))
            tell_running(data, sandbox.base_url)
            settings = at_sandbox(settings, sandbox.base_url)
            clock = SandboxTime(sandbox.engine.clock)
        app = await stack.enter_async_context(App(settings, clock=clock))
        await build_everything(app, work=not reload)
        if sandbox is not None:
            sandbox.set_webhook_url(f"{app.public_url}/webhooks/default")
        if reload:
            _reload(app, sandbox)
        announce(app, output, {"sandbox_url": sandbox.base_url if sandbox is not None else None})
        await run_until(stop, app, settings)
    say_stopped()


class SandboxTime(SystemClock):
    """The sandbox's time for the consumer too, so that months can pass in both."""

    def __init__(self, clock: SandboxClock) -> None:
        self._clock = clock

    def now(self) -> datetime:
        """The simulator's wall time."""
        return self._clock.now()


async def started(stack: AsyncExitStack, config: SandboxConfig) -> Sandbox:
    """The simulator, running until the stack unwinds. Raises UsageError."""
    try:
        return await stack.enter_async_context(Sandbox(config))
    except (SandboxError, OSError) as error:
        raise UsageError(f"the sandbox cannot start: {error}") from error


async def build_everything(app: App, *, work: bool = True) -> None:
    """All roles, in the order in which they must be there; without `work` somebody else handles events."""
    await app.upgrade()
    await app.internal(console=True)
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
