"""Development: every role in one process on ./data, with the sandbox unless a real service is configured."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from consumer.app import App
from consumer.cli.output import Output
from consumer.cli.process import announce, stop_on_signals
from consumer.cli.simulator import sandbox_config
from consumer.errors import UsageError
from consumer.sandbox import Sandbox, SandboxConfig, SandboxError
from consumer.settings import Settings

SANDBOX_PORT = 4010


async def develop(settings: Settings, output: Output, data: Path) -> None:
    """Run until a signal. Raises UsageError when a port is taken."""
    stop = stop_on_signals()
    async with AsyncExitStack() as stack:
        if not os.environ.get("SVC_BASE_URL"):
            webhooks = f"http://{settings.host}:{settings.port}/webhooks/default"
            config = sandbox_config(settings, port=SANDBOX_PORT, webhook_url=webhooks, data=data / "sandbox")
            sandbox = await started(stack, config)
            settings = at_sandbox(settings, sandbox.base_url)
            output.line(f"sandbox: {sandbox.base_url} (control page {sandbox.base_url}/_sandbox/)")
        app = await stack.enter_async_context(App(settings))
        await build_everything(app)
        announce(app, output)
        await app.run(stop)


async def started(stack: AsyncExitStack, config: SandboxConfig) -> Sandbox:
    """The simulator, running until the stack unwinds. Raises UsageError."""
    try:
        return await stack.enter_async_context(Sandbox(config))
    except (SandboxError, OSError) as error:
        raise UsageError(f"the sandbox cannot start: {error}") from error


async def build_everything(app: App) -> None:
    """All roles, in the order in which they must be there."""
    await app.upgrade()
    await app.internal(console=True)
    await app.work()
    await app.sync()
    try:
        await app.receive()
    except OSError as error:
        raise UsageError(f"the webhook port cannot be opened: {error.strerror}") from error


def at_sandbox(settings: Settings, base_url: str) -> Settings:
    """The same settings, with the default application at a sandbox."""
    applications = tuple(
        replace(one, base_url=base_url) if one.name == "default" else one for one in settings.applications
    )
    return settings.model_copy(update={"applications": applications})
