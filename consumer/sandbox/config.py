"""SandboxConfig: what the simulator is started with. A plain value; the caller reads the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

DEFAULT_APP_ID = "svc_app_sandbox"
DEFAULT_APP_SECRET = "svc_sk_live_sandbox"  # noqa: S105 - the seeded credential of a simulator, printed at start
DEFAULT_WEBHOOK_SECRET = "whsec_c2FuZGJveC13ZWJob29rLXNlY3JldC0zMi1ieXRlcyE="  # noqa: S105 - as above


@dataclass(frozen=True, kw_only=True)
class SandboxConfig:
    """Port 0 takes a free one. `driven` stops the clock; `seed` makes faults and ids reproducible.

    `webhook_secret` may hold several, comma-separated: each one signs. `assumptions` are switches by name.
    `limits` off lifts the rate limits, for tests that are about something else.
    """

    host: str = "127.0.0.1"
    port: int = 0
    app_id: str = DEFAULT_APP_ID
    app_secret: str = field(default=DEFAULT_APP_SECRET, repr=False)
    webhook_secret: str = field(default=DEFAULT_WEBHOOK_SECRET, repr=False)
    webhook_url: str | None = None
    data_dir: Path | None = None
    driven: bool = False
    start: datetime | None = None
    seed: int | None = None
    limits: bool = True
    assumptions: Mapping[str, Any] = field(default_factory=dict)
    max_records: int = 500_000

    @property
    def webhook_secrets(self) -> tuple[str, ...]:
        """The secrets that sign, in order."""
        return tuple(part.strip() for part in self.webhook_secret.split(",") if part.strip())

    @property
    def app_secrets(self) -> tuple[str, ...]:
        """The seeded API secrets, one or two."""
        return tuple(part.strip() for part in self.app_secret.split(",") if part.strip())
