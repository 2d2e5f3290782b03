"""Sandbox: the simulator with its HTTP server - in this process, or by itself."""

from __future__ import annotations

import ipaddress
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from consumer.sandbox.api.application import build_web
from consumer.sandbox.config import DEFAULT_APP_SECRET, DEFAULT_WEBHOOK_SECRET, SandboxConfig
from consumer.sandbox.errors import SandboxMisconfigured
from consumer.sandbox.scenarios import play
from consumer.sandbox.simulator import Simulator


class Sandbox(Simulator):
    """`async with Sandbox(config) as sandbox:` serves on `sandbox.base_url` until it is left."""

    def __init__(self, config: SandboxConfig | None = None) -> None:
        super().__init__(config)
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Load or seed the state, listen, and start sending. Raises SandboxMisconfigured, StorageBroken, OSError."""
        require_address(self.config.host)
        try:
            self.load()
            self._runner = web.AppRunner(build_web(self), access_log=None, handle_signals=False, shutdown_timeout=1.0)
            await self._runner.setup()
            await web.TCPSite(self._runner, self.config.host, self.config.port).start()
            self._address = self._runner.addresses[0][:2]
            await self.open()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop listening and sending; the state is saved. Safe to call twice."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        await self.close()

    async def play(self, name: str, **options: Any) -> dict[str, Any]:
        """Run a named scenario; what it made, and the service's own final state as `expected`."""
        return await play(self, name, **options)

    def announce(self) -> list[str]:
        """The lines to print at start: addresses, the seeded credentials, every assumption (case X63).

        Only the well-known default secrets are spelled out; one that came from the settings may be real elsewhere.
        """
        config = self.config
        known = (DEFAULT_APP_SECRET, DEFAULT_WEBHOOK_SECRET)
        app_secret, webhook_secret = (
            secret if secret in known else "(from the settings)"
            for secret in (config.app_secret, config.webhook_secret)
        )
        return [
            f"sandbox on {self.base_url} (control page {self.base_url}/_sandbox/)",
            f"application {config.app_id} secret {app_secret}",
            f"webhook secret {webhook_secret} url {config.webhook_url or 'none'}",
            *self.assumptions.lines(),
        ]


def require_address(host: str) -> None:
    """Raise SandboxMisconfigured for what is no address to listen on."""
    if host == "localhost":
        return
    try:
        ipaddress.ip_address(host)
    except ValueError as error:
        raise SandboxMisconfigured(f"host must be an IP address or localhost, not {host!r}") from error
