"""`consumer sandbox`: the simulator of the payments service, alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from consumer.cli.output import Json, Output
from consumer.cli.process import run, stop_on_signals
from consumer.errors import UsageError
from consumer.sandbox import (
    DEFAULT_APP_ID,
    DEFAULT_APP_SECRET,
    DEFAULT_WEBHOOK_SECRET,
    Sandbox,
    SandboxConfig,
    SandboxMisconfigured,
)
from consumer.settings import Role, Settings, load_settings
from consumer.telemetry.logs import configure_logging

app = typer.Typer(help="The simulator of the payments service, alone.", invoke_without_command=True)


@app.callback()
def sandbox(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 4010,
    webhook_url: Annotated[str | None, typer.Option(help="Where webhooks go.")] = None,
    data: Annotated[Path | None, typer.Option(help="Keep the state in this folder; in memory when left out.")] = None,
    as_json: Json = False,
) -> None:
    """Run the simulator until interrupted."""
    if context.invoked_subcommand is not None:
        return
    settings = load_settings(os.environ, Role.SANDBOX)
    configure_logging(settings.log_level, settings.log_format)
    config = sandbox_config(settings, host=host, port=port, webhook_url=webhook_url, data=data)
    try:
        run(_serve(config, Output(as_json)))
    except (SandboxMisconfigured, OSError) as error:
        raise UsageError(str(error)) from error


def sandbox_config(
    settings: Settings, *, host: str = "127.0.0.1", port: int = 0, webhook_url: str | None = None, data: Path | None
) -> SandboxConfig:
    """The simulator's configuration: its seeded application is the deployment's `default`."""
    application = settings.application("default")
    secrets = [secret.get_secret_value() for secret in application.app_secrets] if application else []
    signing = [secret.get_secret_value() for secret in application.webhook_secrets] if application else []
    return SandboxConfig(
        host=host,
        port=port,
        app_id=(application.app_id if application else None) or DEFAULT_APP_ID,
        app_secret=",".join(secrets) or DEFAULT_APP_SECRET,
        webhook_secret=",".join(signing) or DEFAULT_WEBHOOK_SECRET,
        webhook_url=webhook_url,
        data_dir=data,
    )


async def _serve(config: SandboxConfig, output: Output) -> None:
    stop = stop_on_signals()
    async with Sandbox(config) as running:
        output.document({"base_url": running.base_url, "application": config.app_id})
        for line in running.announce():
            output.line(line)
        await stop.wait()
