"""Every way a call to the payments service can fail, one class per documented code (spec, Errors; cases C10-C14).

Dispatch is by `code`, never by status alone. The service's own message is kept in `detail` and the start of the
body in `raw`: both may quote what the merchant sent, so neither is part of `str()`, `repr()` or `line()`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from consumer.errors import ConsumerError
from consumer.payments.models import CheckoutSession, Order, Record

RAW_MAX_BYTES = 2048
DETAIL_MAX_CHARS = 500


class PaymentsError(ConsumerError):
    """A call to the payments service failed."""

    code = "payments_error"


# --- answers of the service ----------------------------------------------------------------------------------


class ApiError(PaymentsError):
    """The payments service answered with an error.

    `status` is the HTTP status (None when the request was refused here, before sending), `service_code` the code in
    the body as it came, `request_id` the service's name for the call, `field` what a validation error points at.
    `after_ambiguous` says that an earlier try of the same write got no answer, so that try may have caused this one.
    """

    code = "api_error"

    def __init__(
        self,
        message: str | None = None,
        *,
        status: int | None = None,
        service_code: str | None = None,
        request_id: str | None = None,
        field: str | None = None,
        detail: str | None = None,
        raw: bytes = b"",
        retry_after_s: float | None = None,
        **fields: Any,
    ) -> None:
        self.status = status
        self.service_code = service_code
        self.request_id = request_id
        self.field = field
        self.detail = detail[:DETAIL_MAX_CHARS] if detail else detail
        self.raw = raw[:RAW_MAX_BYTES]
        self.retry_after_s = retry_after_s
        self.after_ambiguous = False
        shown_code = service_code if service_code != self.code else None
        super().__init__(message, status=status, service_code=shown_code, field=field, request_id=request_id, **fields)

    def __str__(self) -> str:
        known = {"status": self.status, "request_id": self.request_id, "field": self.field}
        shown = ", ".join(f"{name}={value}" for name, value in known.items() if value is not None)
        return f"{self.message} ({shown})" if shown else self.message


class AuthenticationError(ApiError):
    """Every credential was refused; the service does not say why. Check the Authorization header (one, with \
app_id:app_secret after the word Basic), whether the secret is unknown, revoked or expired, whether the application \
is disabled, and whether the merchant account is approved and active."""

    code = "invalid_api_credentials"
    retryable = True


class RateLimitError(ApiError):
    """A rate limit of the service is exceeded."""

    code = "rate_limited"
    retryable = True
    DEFAULT_RETRY_AFTER_S: ClassVar[float] = 2.0

    @property
    def retry_after_seconds(self) -> float:
        """Seconds to wait before the next call; a default when the service named none (case C7)."""
        return self.DEFAULT_RETRY_AFTER_S if self.retry_after_s is None else self.retry_after_s


class PlanLimitReached(ApiError):
    """The merchant created 50 new plans in the last 24 hours; this is no rate limit, waiting seconds does not help."""

    code = "plan_limit_reached"


class ValidationError(ApiError):
    """The request is not valid."""

    code = "validation_failed"


class AmountOrPriceRequired(ValidationError):
    """Exactly one of price_id, or amount with description, is needed."""

    code = "amount_or_price_required"


class AmountOutOfRange(ValidationError):
    """The amount must be from 0.01 to 1000000."""

    code = "amount_out_of_range"


class UrlInsecure(ValidationError):
    """The URL must be https."""

    code = "url_insecure"


class ExpiresAtOutOfRange(ValidationError):
    """The expiry must be from 5 minutes to 24 hours ahead."""

    code = "expires_at_out_of_range"


class PriceIdRequired(ValidationError):
    """A subscription session needs a price_id."""

    code = "price_id_required"


class AmountNotAllowed(ValidationError):
    """A subscription session takes no amount and no description."""

    code = "amount_not_allowed"


class PriceError(ApiError):
    """The price cannot be used for this session."""

    code = "price_error"


class PriceNotFound(PriceError):
    """The price does not exist."""

    code = "price_not_found"


class PriceArchived(PriceError):
    """The price is archived."""

    code = "price_archived"


class ProductArchived(PriceError):
    """The product of the price is archived."""

    code = "product_archived"


class PriceTypeMismatch(PriceError):
    """The price's type does not fit the session's mode."""

    code = "price_type_mismatch"


class PriceNotRecurring(PriceError):
    """A subscription session needs a recurring price."""

    code = "price_not_recurring"


class MerchantTokenAccountMissing(ApiError):
    """The receiving wallet has no USDC token account."""

    code = "merchant_token_account_missing"


class ConflictError(ApiError):
    """The state of the resource does not allow it."""

    code = "conflict"


class OrderAlreadyPaid(ConflictError):
    """The order is already paid."""

    code = "order_already_paid"


class SessionNotReissuable(ConflictError):
    """The session is not open or has under 120 seconds left: once it has expired, create a new session with the \
same order_id."""

    code = "session_not_reissuable"


class PaymentInProgress(ConflictError):
    """A payment for the session is being processed, or a prepared transaction could still land."""

    code = "payment_in_progress"


class SessionNotCancelable(ConflictError):
    """The session is no longer open."""

    code = "session_not_cancelable"


class CheckoutUnavailable(ConflictError):
    """Solana could not be reached or checked in time."""

    code = "checkout_unavailable"
    retryable = True


class SubscriptionAlreadyEnded(ConflictError):
    """The subscription has already ended."""

    code = "subscription_already_ended"


class ResourceNotFound(ApiError):
    """The service does not show this resource to this application; that never means it ended (case G7)."""

    code = "resource_not_found"


class NotShown(ResourceNotFound):
    """The answer has a success status, and shows no such object: none at all, or another one.

    `record` is what it shows: of none, one without an id.
    """

    code = "resource_not_shown"

    def __init__(self, *, record: Record, **fields: Any) -> None:
        self.record = record
        super().__init__(**fields)


class ServerError(ApiError):
    """The payments service failed to answer properly."""

    code = "server_error"
    retryable = True


class UnexpectedAnswer(ApiError):
    """The answer is not what the API promises."""

    code = "unexpected_answer"


class AnswerTooLarge(UnexpectedAnswer):
    """The answer is larger than any the API promises; it was not read to its end."""

    code = "answer_too_large"


class UnreadableAnswer(UnexpectedAnswer):
    """The answer has a success status, but its body is not the JSON object the API promises."""

    code = "unreadable_answer"
    retryable = True


class CursorsRefused(UnexpectedAnswer):
    """The service refuses the cursors that it hands out itself: the list cannot be walked."""

    # Case B11: a walk begins again at the head once.
    code = "cursors_refused"


# --- no answer, or no request --------------------------------------------------------------------------------


class ServiceUnreachable(PaymentsError):
    """The payments service could not be reached, or did not answer in time.

    `sent` says whether the request may have reached it.
    """

    code = "service_unreachable"
    retryable = True

    def __init__(self, message: str | None = None, *, sent: bool = True, **fields: Any) -> None:
        self.sent = sent
        super().__init__(message, **fields)


class AmbiguousWrite(PaymentsError):
    """Whether the write happened could not be found out: repeat it with the same idempotency key (case C26).

    `idempotency_key` is that key; `order` is what the lookup showed, None when it showed nothing.
    """

    code = "ambiguous_write"
    retryable = True

    def __init__(
        self, message: str | None = None, *, idempotency_key: str, order: Order | None = None, **fields: Any
    ) -> None:
        self.idempotency_key = idempotency_key
        self.order = order
        super().__init__(message, **fields)


class CircuitOpen(PaymentsError):
    """The credentials of this application are refused: no call is made until a probe succeeds or a secret changes."""

    code = "circuit_open"
    retryable = True

    def __init__(self, *, retry_after_s: float, **fields: Any) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(retry_after_s=round(retry_after_s, 1), **fields)


class BudgetExhausted(PaymentsError):
    """The request budget has no room in the time the caller would wait."""

    code = "budget_exhausted"
    retryable = True

    def __init__(self, *, retry_after_s: float, **fields: Any) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(retry_after_s=round(retry_after_s, 1), **fields)


class BudgetPaused(BudgetExhausted):
    """The service asked to wait, by a 429 that this process or another had; `until` is when that is over.

    `retry_after_s` may end sooner: then it is tried whether the service answers again.
    """

    code = "rate_limited"

    def __init__(self, *, until: datetime, retry_after_s: float, **fields: Any) -> None:
        super().__init__(retry_after_s=retry_after_s, **fields)
        self.until = until
        self.message = f"The service asked to wait until {until:%Y-%m-%d %H:%M:%SZ}."
        self.args = (self.message,)


# --- answers that do not fit the question --------------------------------------------------------------------


class LinkUnavailable(PaymentsError):
    """The session is open, but its link was handed out before and a new one cannot be issued now.

    `session` is the open session, `reason` why the reissue was refused.
    """

    code = "link_unavailable"

    def __init__(self, *, session: CheckoutSession, reason: PaymentsError) -> None:
        self.session = session
        self.reason = reason
        super().__init__(f"no payment link for the open session: {reason.message}", reason=reason.code)


class SessionMismatch(PaymentsError):
    """An open session of this order_id exists with other terms than the ones asked for (case U24)."""

    code = "session_mismatch"

    def __init__(self, *, session: CheckoutSession, differing: tuple[str, ...]) -> None:
        self.session = session
        self.differing = differing
        super().__init__(differing="+".join(differing))


class CursorLoop(PaymentsError):
    """The list handed out a cursor it had handed out before in the same walk (case B7)."""

    code = "cursor_loop"


def _tree(base: type[ApiError]) -> list[type[ApiError]]:
    return [base, *(found for child in base.__subclasses__() for found in _tree(child))]


DOCUMENTED_CODES: tuple[str, ...] = (
    "invalid_api_credentials",
    "validation_failed",
    "amount_or_price_required",
    "amount_out_of_range",
    "url_insecure",
    "expires_at_out_of_range",
    "price_id_required",
    "amount_not_allowed",
    "price_not_found",
    "price_archived",
    "product_archived",
    "price_type_mismatch",
    "order_already_paid",
    "merchant_token_account_missing",
    "price_not_recurring",
    "session_not_reissuable",
    "payment_in_progress",
    "session_not_cancelable",
    "checkout_unavailable",
    "subscription_already_ended",
    "plan_limit_reached",
    "rate_limited",
)
"""Every code of the spec's Errors table."""

BY_CODE: dict[str, type[ApiError]] = {error.code: error for error in _tree(ApiError) if error.code in DOCUMENTED_CODES}
"""The class of each documented code."""


def class_for(status: int, code: str | None) -> type[ApiError]:
    """The class of an error answer: by its code; only an unknown code falls back to the status (cases C11, C13)."""
    if code in BY_CODE:
        return BY_CODE[code]
    if status >= 500 or status == 408:  # what stands before the service gave up waiting for it, or for us
        return ServerError
    if status < 400:
        return UnexpectedAnswer
    by_status = {401: AuthenticationError, 404: ResourceNotFound, 409: ConflictError, 429: RateLimitError}
    return by_status.get(status, ApiError)
