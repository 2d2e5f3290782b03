"""Every refusal of the simulator: the service's documented codes, and the few this sandbox had to make up.

A `Refusal` becomes an HTTP answer; a `PageRefusal` is what the hosted checkout page shows instead of a payment.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar


class SandboxError(Exception):
    """Something in the sandbox failed."""

    code: ClassVar[str] = "sandbox_error"


class SandboxMisconfigured(SandboxError):
    """The sandbox was given settings it cannot use."""

    code = "sandbox_misconfigured"


class SandboxFull(SandboxError):
    """The sandbox holds as many records as it may."""

    code = "sandbox_full"


class StorageBroken(SandboxError):
    """The data directory cannot be read or written."""

    code = "storage_broken"


@dataclass(frozen=True)
class Problem:
    """One row of the error table: HTTP status and message."""

    status: int
    message: str


PROBLEMS: dict[str, Problem] = {
    "invalid_api_credentials": Problem(
        401, "Send the header Authorization: Basic base64(app_id:app_secret) with valid API credentials."
    ),
    "validation_failed": Problem(400, "The request is not valid."),
    "amount_or_price_required": Problem(400, "Send exactly one of price_id, or amount together with description."),
    "amount_out_of_range": Problem(400, "amount must be from 0.01 to 1000000 USDC."),
    "url_insecure": Problem(400, "success_url and cancel_url must be https."),
    "expires_at_out_of_range": Problem(400, "expires_at must be from 5 minutes to 24 hours from now."),
    "price_id_required": Problem(400, "A subscription session needs a price_id."),
    "amount_not_allowed": Problem(400, "A subscription session takes neither amount nor description."),
    "price_not_found": Problem(422, "price_id does not name a price of this merchant."),
    "price_archived": Problem(422, "The price is archived."),
    "product_archived": Problem(422, "The product of this price is archived."),
    "price_type_mismatch": Problem(422, "The price is not a one-time price."),
    "order_already_paid": Problem(409, "The order is already paid."),
    "merchant_token_account_missing": Problem(422, "The receiving wallet has no USDC token account."),
    "price_not_recurring": Problem(422, "A subscription session needs a recurring price."),
    "session_not_reissuable": Problem(409, "The session is not open, or has less than 120 seconds left."),
    "payment_in_progress": Problem(409, "A payment for this session is in progress."),
    "session_not_cancelable": Problem(409, "The session is no longer open."),
    "checkout_unavailable": Problem(409, "Solana could not be checked in time. Try again."),
    "subscription_already_ended": Problem(409, "The subscription has already ended."),
    "plan_limit_reached": Problem(429, "The merchant created 50 new plans in the last 24 hours."),
    "rate_limited": Problem(429, "Too many requests."),
    # Not shown by the spec; see the assumptions `not_found_answer`, `idempotency_reuse`, `missing_idempotency_key`.
    "not_found": Problem(404, "No such record."),
    "idempotency_key_required": Problem(400, "A POST needs the header Idempotency-Key."),
    "idempotency_key_reused": Problem(409, "This Idempotency-Key was used with another request."),
    "method_not_allowed": Problem(405, "The method is not allowed here."),
    "unsupported_media_type": Problem(415, "Send Content-Type: application/json."),
    "payload_too_large": Problem(413, "The request body is too large."),
    "internal_error": Problem(500, "Something went wrong on our side."),
    "service_unavailable": Problem(503, "The service is unavailable for a moment."),
    # Refusals of the control addresses and of the payer's side.
    "conflict": Problem(409, "That is not possible in the present state."),
    "loopback_only": Problem(403, "The control addresses answer on loopback only."),
    "limit_reached": Problem(409, "The merchant has as many applications as it may have."),
}

PAGE_CODES: dict[str, str] = {
    "build_limit_reached": "This link was tried too often. Ask the merchant for a new one.",
    "too_close_to_expiry": "This link is about to expire. Ask the merchant for a new one.",
    "subscription_preparing": "The subscription plan is being prepared. Try again in a moment.",
    "subscription_plan_failed": "The subscription plan could not be prepared. Ask the merchant.",
    "wallet_still_subscribed": (
        "This wallet still holds a subscription to this plan on Solana. "
        "Use “Cancel on Solana” in the portal, wait for its end and reclaim the rent."
    ),
}


class Refusal(SandboxError):
    """The service refuses a request, with one of the codes of the table."""

    def __init__(
        self, code: str, message: str | None = None, *, field: str | None = None, retry_after_s: int | None = None
    ) -> None:
        self.problem_code = code
        self.problem = PROBLEMS[code]
        self.message = message or self.problem.message
        self.field = field
        self.retry_after_s = retry_after_s
        super().__init__(f"{code}: {self.message}")


class PageRefusal(SandboxError):
    """The checkout page refuses the payer (not an HTTP error of the API)."""

    def __init__(self, code: str) -> None:
        self.problem_code = code
        self.message = PAGE_CODES[code]
        super().__init__(f"{code}: {self.message}")


def problem_body(code: str, status: int, message: str, request_id: str, field: str | None) -> dict[str, Any]:
    """An error body: statusCode, error, code, message, request_id and, for validation, field."""
    body: dict[str, Any] = {
        "statusCode": status,
        "error": HTTPStatus(status).phrase,
        "code": code,
        "message": message,
    }
    if field is not None:
        body["field"] = field
    body["request_id"] = request_id
    return body
