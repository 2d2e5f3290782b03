"""Ships what was paid: tells the warehouse, once per order.

`fulfilment.requested` comes once per paid order, however often and in whatever order the service sends its webhooks.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from consumer.plugin import Context, Event, FulfilmentRequested, RetryLater, handles

ASK_AGAIN_S = 60
# What whoever is on call reads beside a failed run: your words, one line, or an https address.
RUNBOOK = "Does the warehouse answer at the handler's url? Mend that, then redrive: by the same key it ships once."


class Options(BaseModel):
    """What an operator sets in `CONSUMER_HANDLER_OPTIONS`; a table that does not fit keeps the worker from starting."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str | None = None


OPTIONS = Options


@handles("fulfilment.requested", name="template:ship", attempts=8, timeout_s=30, runbook=RUNBOOK)
async def ship(event: Event[FulfilmentRequested], ctx: Context) -> None:
    """Tell the warehouse at `ctx.options.url`; until there is one the order waits: to return would say "shipped"."""
    options: Options = ctx.options
    if options.url is None:
        raise RetryLater(ASK_AGAIN_S, "no warehouse yet: set url in CONSUMER_HANDLER_OPTIONS.template")
    # The same key on every attempt: the warehouse recognises a repetition and ships once.
    headers = {"Idempotency-Key": ctx.idempotency_key}
    async with ctx.http.post(options.url, json={"order_id": event.payload.order_id}, headers=headers) as answer:
        answer.raise_for_status()
