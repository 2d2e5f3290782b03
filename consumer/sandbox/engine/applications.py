"""Merchants, applications and their secrets: the dashboard's side, and who calls (spec, Authentication)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import replace

from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.world import World
from consumer.sandbox.errors import Refusal

MAX_ACTIVE = 10
MAX_TOTAL = 100
MAX_SECRETS = 2
GRACES_S = {"immediately": 0, "1h": 3600, "24h": 86400}


def digest(secret: str) -> str:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Applications:
    """Who may call."""

    def __init__(self, world: World) -> None:
        self._world = world

    def add_merchant(self, name: str, *, merchant_id: str | None = None) -> r.Merchant:
        """A new merchant with a wallet of its own."""
        world = self._world
        merchant = r.Merchant(
            id=merchant_id or world.new_id("merchant"),
            seq=world.next_seq(),
            name=name,
            wallet=f"wallet-{world.opaque(32)}",
        )
        return world.put(world.merchants, merchant)

    def merchant(self, merchant_id: str) -> r.Merchant:
        """Raises not_found."""
        merchant = self._world.merchants.get(merchant_id)
        if merchant is None:
            raise Refusal("not_found")
        return merchant

    def change_merchant(
        self,
        merchant_id: str,
        *,
        active: bool | None = None,
        fee_bps: int | None = None,
        new_wallet: bool = False,
        has_token_account: bool | None = None,
    ) -> r.Merchant:
        """Deactivate or reactivate (case X51); a changed fee or wallet gives new subscribers a new plan (case X47)."""
        world = self._world
        merchant = self.merchant(merchant_id)
        if fee_bps is not None and not 0 <= fee_bps <= 10_000:
            raise Refusal("validation_failed", "fee_bps must be from 0 to 10000", field="fee_bps")
        return world.put(
            world.merchants,
            replace(
                merchant,
                active=merchant.active if active is None else active,
                fee_bps=merchant.fee_bps if fee_bps is None else fee_bps,
                wallet=f"wallet-{world.opaque(32)}" if new_wallet else merchant.wallet,
                has_token_account=merchant.has_token_account if has_token_account is None else has_token_account,
            ),
        )

    def add(
        self,
        merchant_id: str,
        name: str,
        *,
        app_id: str | None = None,
        secrets: tuple[str, ...] = (),
        webhook_url: str | None = None,
        webhook_secrets: tuple[str, ...] = (),
    ) -> tuple[r.Application, str]:
        """A new application and its secret, shown once. 10 active and 100 in total per merchant (case X53)."""
        world = self._world
        self.merchant(merchant_id)
        mine = [application for application in world.applications if application.merchant_id == merchant_id]
        if len(mine) >= MAX_TOTAL:
            raise Refusal("limit_reached", f"a merchant has at most {MAX_TOTAL} applications in total")
        if sum(1 for application in mine if application.disabled_at is None) >= MAX_ACTIVE:
            raise Refusal("limit_reached", f"a merchant has at most {MAX_ACTIVE} active applications")
        if len(secrets) > MAX_SECRETS:
            raise Refusal("validation_failed", "at most two secrets are valid at a time", field="app_secret")
        given = secrets or (world.new_id("secret"),)
        identifier = app_id or world.new_id("application")
        application = r.Application(
            id=identifier,
            seq=world.next_seq(),
            app_id=identifier,
            merchant_id=merchant_id,
            name=name,
            created_at=world.now(),
            secrets=tuple(r.Secret(digest=digest(secret), created_at=world.now()) for secret in given),
            webhook_url=webhook_url,
            webhook_secrets=webhook_secrets or (self.new_webhook_secret(),),
        )
        return world.put(world.applications, application), given[0]

    def new_webhook_secret(self) -> str:
        """A Standard Webhooks secret."""
        return "whsec_" + base64.b64encode(self._world.chance.randbytes(24)).decode()

    def get(self, app_id: str) -> r.Application:
        """Raises not_found."""
        application = self._world.applications.get(app_id)
        if application is None:
            raise Refusal("not_found")
        return application

    def set_webhook(self, app_id: str, url: str | None) -> r.Application:
        """The one webhook endpoint of an application."""
        application = self.get(app_id)
        if url is not None and not url.startswith(("http://", "https://")):
            raise Refusal("validation_failed", "the webhook url must be http or https", field="url")
        return self._world.put(self._world.applications, replace(application, webhook_url=url))

    def set_webhook_secrets(self, app_id: str, secrets: tuple[str, ...]) -> r.Application:
        """The secrets that sign; with two, both do (signature header with two entries)."""
        if not secrets:
            raise Refusal("validation_failed", "at least one secret must sign", field="secrets")
        return self._world.put(self._world.applications, replace(self.get(app_id), webhook_secrets=secrets))

    def valid_secrets(self, application: r.Application) -> tuple[r.Secret, ...]:
        """The secrets that work now."""
        now = self._world.now()
        return tuple(s for s in application.secrets if s.expires_at is None or s.expires_at > now)

    def roll_secret(self, app_id: str, grace: str = "1h") -> str:
        """A new secret, shown once. The old ones go on for the grace: immediately, 1h (default) or 24h (case X50).

        Never three: with two valid ones the oldest is revoked, or the roll is refused (assumption).
        """
        world = self._world
        application = self.get(app_id)
        if grace not in GRACES_S:
            raise Refusal("validation_failed", "grace must be immediately, 1h or 24h", field="grace")
        if application.disabled_at is not None:
            raise Refusal("conflict", "the application is disabled")
        valid = self.valid_secrets(application)
        if len(valid) >= MAX_SECRETS and GRACES_S[grace]:
            if world.assumptions.text("roll_with_two_valid") == "refuse":
                raise Refusal("conflict", "two secrets are valid already")
            valid = valid[-1:]
        until = world.in_seconds(GRACES_S[grace])
        kept = tuple(
            replace(s, expires_at=min(until, s.expires_at) if s.expires_at else until) for s in valid if GRACES_S[grace]
        )
        new = world.new_id("secret")
        fresh = r.Secret(digest=digest(new), created_at=world.now())
        world.put(world.applications, replace(application, secrets=(*kept, fresh)))
        return new

    def revoke_secrets(self, app_id: str) -> None:
        """No secret of the application works any more."""
        self._world.put(self._world.applications, replace(self.get(app_id), secrets=()))

    def disable(self, app_id: str) -> r.Application:
        """For ever: secrets revoked, endpoint off (the engine cancels pending deliveries) (case X52)."""
        application = self.get(app_id)
        if application.disabled_at is not None:
            return application
        disabled = replace(application, disabled_at=self._world.now(), secrets=(), webhook_url=None)
        return self._world.put(self._world.applications, disabled)

    def authenticate(self, header: str | None) -> r.Application:
        """The calling application. Every problem is the same refusal and does not say which (case X49)."""
        app_id, secret = _basic(header)
        application = self._world.applications.get(app_id)
        given = digest(secret)
        known = self.valid_secrets(application) if application else ()
        matches = [hmac.compare_digest(given, one.digest) for one in known]
        if application is None or not any(matches) or application.disabled_at is not None:
            raise Refusal("invalid_api_credentials")
        if not self.merchant(application.merchant_id).active:
            raise Refusal("invalid_api_credentials")
        return application


def _basic(header: str | None) -> tuple[str, str]:
    scheme, _, encoded = (header or "").partition(" ")
    if scheme.lower() != "basic":
        raise Refusal("invalid_api_credentials")
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise Refusal("invalid_api_credentials") from error
    app_id, colon, secret = text.partition(":")
    if not colon:
        raise Refusal("invalid_api_credentials")
    return app_id, secret
