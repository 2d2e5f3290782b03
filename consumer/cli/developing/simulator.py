"""`consumer sandbox`: the simulator of the payments service, alone."""

from __future__ import annotations

import os
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import aiohttp
import typer

from consumer.cli.bootstrap import run, stop_on_signals
from consumer.cli.output import Json, Output
from consumer.errors import ConsumerError, PortTaken, UsageError
from consumer.sandbox import (
    DEFAULT_APP_ID,
    DEFAULT_APP_SECRET,
    DEFAULT_WEBHOOK_SECRET,
    Sandbox,
    SandboxConfig,
    SandboxError,
)
from consumer.settings import Role, Settings, load_settings
from consumer.telemetry.logs import configure_logging

DEFAULT_URL = "http://127.0.0.1:4010"
RUNNING = "running.url"

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
    except (SandboxError, OSError) as error:
        raise cannot_start(error, config, option="--port") from error


def cannot_start(error: SandboxError | OSError, config: SandboxConfig, *, option: str) -> ConsumerError:
    """Why the simulator does not run. What is wrong with no file is wrong with the address: `option` names its port."""
    if isinstance(error, OSError) and error.filename is None:
        told = f"The sandbox cannot listen there: end who does, or say another port ({option}; 0 takes a free one)."
        return PortTaken(told, host=config.host, port=config.port, reason=error.strerror)
    return UsageError(f"the sandbox cannot start: {error}")


@app.command()
def trigger(
    event_type: Annotated[str, typer.Argument(metavar="TYPE", help="Event type, like order.paid.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A field, like order_id=A-1; repeatable.")
    ] = None,
    subscription: Annotated[
        str | None, typer.Option(metavar="ID", help="For subscription.*: a subscription that is there.")
    ] = None,
    order: Annotated[
        str | None, typer.Option(metavar="ORDER_ID", help="For order.* and checkout.session.*: an order that is there.")
    ] = None,
    any_type: Annotated[
        bool, typer.Option("--any-type", help="Make the event up, of any type: --set is its object, nothing behind it.")
    ] = False,
    base_url: Annotated[
        str | None,
        typer.Option(help="Where the sandbox runs; left out: where `dev` here does, else port 4010."),
    ] = None,
    data: Annotated[Path, typer.Option(help="The folder that `dev` was started with.")] = Path("data"),
    as_json: Json = False,
) -> None:
    """Make an event happen in a running sandbox, with the state behind it."""
    pairs = [pair.partition("=") for pair in settings or []]
    if any(not name or not sign for name, sign, _ in pairs):
        raise UsageError("--set takes NAME=VALUE")
    body = {"type": event_type, "set": {name: value for name, _, value in pairs}, "any_type": any_type}
    targets = {"subscription": subscription, "order": order}
    made = run(
        _trigger(
            base_url or running_at(data / "sandbox") or DEFAULT_URL,
            body | {name: value for name, value in targets.items() if value is not None},
        )
    )
    output = Output(as_json)
    output.document(made)
    for event in made["events"]:
        output.line(f"{event['type']}  {event['id']}")


def tell_running(data: Path, base_url: str) -> None:
    """Write down where the sandbox of this folder runs, for `trigger` to find it."""
    data.mkdir(parents=True, exist_ok=True)
    (data / RUNNING).write_text(base_url + "\n", encoding="utf-8")


def running_at(data: Path) -> str | None:
    """Where it runs, as far as it was written down; only an address on this machine counts."""
    try:
        found = (data / RUNNING).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return found if urlsplit(found).hostname in ("127.0.0.1", "::1", "localhost") else None


async def _trigger(base_url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Ask the sandbox's control address. Raises UsageError when it refuses or does not answer."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as http,
            http.post(f"{base_url.rstrip('/')}/_sandbox/trigger", json=body) as answer,
        ):
            found: dict[str, Any] = await answer.json()
    except (aiohttp.ClientError, ValueError, TimeoutError) as error:
        raise UsageError(f"no sandbox answers at {base_url}; start one with `consumer sandbox`") from error
    if answer.status >= HTTPStatus.BAD_REQUEST:
        raise UsageError(str(found.get("message", "the sandbox refused")))
    return found


def sandbox_config(
    settings: Settings, *, port: int, host: str = "127.0.0.1", webhook_url: str | None = None, data: Path | None
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
