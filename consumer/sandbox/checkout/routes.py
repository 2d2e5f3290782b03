"""The hosted checkout page and the payer's portal. A link's token is all the payer has; there is no other login."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from consumer.sandbox.checkout.state import PageState, origin_of, page_state
from consumer.sandbox.clock import iso
from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.money import amount_text
from consumer.sandbox.errors import PAGE_CODES, PageRefusal, Refusal
from consumer.sandbox.simulator import Simulator

TEMPLATES = Path(__file__).parent / "templates"
REDIRECT_AFTER_MS = 3000
# What the page's own buttons do; "confirm" and "finalize" let a developer stop between the two.
ACTIONS = ("pay", "confirm", "finalize", "fail", "cancel")
PORTAL_ACTIONS = ("cancel", "withdraw", "cancel-on-solana", "reclaim-rent")
# The pages hold a payment: never framed, never cached, and their link never leaks by referrer.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def page_environment(folder: Path) -> Environment:
    """Templates that escape everything and fail on a name that is not there."""
    return Environment(loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined)


def add_checkout_routes(application: web.Application, sandbox: Simulator) -> None:
    """The page, its state and its actions; the portal; style and script."""
    pages = _Pages(sandbox, page_environment(TEMPLATES))
    router = application.router
    router.add_get("/checkout/assets/{name}", _asset)
    router.add_get("/checkout/{token}", pages.checkout)
    router.add_get("/checkout/{token}/state", pages.state)
    router.add_post("/checkout/{token}/{action}", pages.act)
    router.add_get("/portal/{wallet}", pages.portal)
    router.add_post("/portal/{wallet}/{subscription}/{action}", pages.portal_act)


async def _asset(request: web.Request) -> web.StreamResponse:
    kinds = {"page.css": "text/css", "checkout.js": "text/javascript", "portal.js": "text/javascript"}
    name = request.match_info["name"]
    if name not in kinds:
        raise Refusal("not_found")
    text = (TEMPLATES.parent / "assets" / name).read_text()
    return web.Response(text=text, content_type=kinds[name], headers={"X-Content-Type-Options": "nosniff"})


class _Pages:
    def __init__(self, sandbox: Simulator, environment: Environment) -> None:
        self._sandbox = sandbox
        self._environment = environment

    def _session(self, request: web.Request) -> r.Session:
        self._sandbox.engine.run_due()
        session = self._sandbox.engine.sessions.by_token(request.match_info["token"])
        if session is None:
            raise Refusal("not_found", "This link does not work.")
        return session

    def _html(self, template: str, status: int = 200, **values: Any) -> web.Response:
        text = self._environment.get_template(template).render(**values)
        return web.Response(text=text, content_type="text/html", status=status, headers=HEADERS)

    async def checkout(self, request: web.Request) -> web.StreamResponse:
        try:
            session = self._session(request)
        except Refusal:
            return self._html("dead.html", status=404)
        engine = self._sandbox.engine
        plan_price = engine.world.prices.get(session.price_id or "")
        return self._html(
            "checkout.html",
            session=session,
            merchant=engine.applications.merchant(session.merchant_id),
            total=amount_text(session.amount + session.fee),
            amount=amount_text(session.amount),
            fee=amount_text(session.fee) if session.fee else None,
            interval_days=plan_price.interval_days if plan_price else None,
            state=page_state(engine, session),
            expires_at=iso(session.expires_at),
            texts=PAGE_CODES,
            page=json.dumps(self._state(session)),
            portal=f"/portal/{engine.payments.wallet_of(session)}" if session.mode == "subscription" else None,
        )

    def _state(self, session: r.Session) -> dict[str, Any]:
        """What the page's script acts on."""
        engine = self._sandbox.engine
        state: PageState = page_state(engine, session)
        payment = engine.world.payments.get(session.payment_id) if session.payment_id else None
        target = {"succeeded": session.success_url, "canceled": session.cancel_url}.get(state.status or "")
        return {
            "session_id": session.id,
            "state": state.state,
            "status": state.status,
            "plan_status": state.plan_status,
            "can_cancel": state.can_cancel,
            "final": state.final,
            "session_status": session.status.value,
            "payment_status": payment.status.value if payment else None,
            "ui_mode": session.ui_mode,
            "origin": origin_of(session.success_url),
            "redirect_to": target if session.ui_mode == "redirect" else None,
            "redirect_after_ms": REDIRECT_AFTER_MS if state.status == "succeeded" else 0,
        }

    async def state(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self._state(self._session(request)), headers=HEADERS)

    async def act(self, request: web.Request) -> web.StreamResponse:
        _check_same_site(request)
        action = request.match_info["action"]
        if action not in ACTIONS:
            raise Refusal("not_found")
        session = self._session(request)
        try:
            self._act(session, action)
        except PageRefusal as refusal:
            answer = {"code": refusal.problem_code, "message": refusal.message}
            return web.json_response(answer, status=409, headers=HEADERS)
        finally:
            self._sandbox.save()
            self._sandbox.sender.wake()
        return await self.state(request)

    def _act(self, session: r.Session, action: str) -> None:
        engine = self._sandbox.engine
        payments = engine.payments
        if action == "cancel":
            engine.sessions.cancel(session)
            return
        moving = engine.sessions.payment_in_flight(session)
        if action == "fail":
            if moving is None:
                raise Refusal("conflict", "No payment is in flight.")
            payments.fail(moving)
            return
        if moving is None:
            moving = payments.broadcast(payments.build(session))
        if action == "finalize":
            payments.finalize(payments.confirm(moving))
            return
        after_s = engine.assumptions.number("finalize_after_s") if action == "pay" else None
        payments.confirm(moving, finalize_after_s=after_s)

    # --- the payer's portal ------------------------------------------------------------------------------------

    async def portal(self, request: web.Request) -> web.StreamResponse:
        """The subscriptions of one wallet, each with what the payer may do (spec, Subscription rule 2)."""
        self._sandbox.engine.run_due()
        wallet = request.match_info["wallet"]
        mine = [one for one in self._sandbox.engine.world.subscriptions if one.wallet == wallet]
        products = self._sandbox.engine.world.products
        rows = [
            {
                "id": one.id,
                "name": (product.name if (product := products.get(one.product_id)) else one.product_id),
                "status": one.status.value,
                "end_reason": one.end_reason,
                "period_end": iso(one.period_end),
                "ends_at": iso(one.end_at) if one.end_at else None,
                "amount": amount_text(one.amount),
                "interval_days": one.interval_days,
                "onchain": one.onchain,
                "actions": portal_actions(one),
            }
            for one in reversed(mine)
        ]
        return self._html("portal.html", wallet=wallet, rows=rows)

    async def portal_act(self, request: web.Request) -> web.StreamResponse:
        _check_same_site(request)
        engine = self._sandbox.engine
        engine.run_due()
        subscriptions = engine.subscriptions
        subscription = subscriptions.any(request.match_info["subscription"])
        action = request.match_info["action"]
        if subscription.wallet != request.match_info["wallet"] or action not in PORTAL_ACTIONS:
            raise Refusal("not_found")
        run = {
            "cancel": subscriptions.payer_cancel,
            "withdraw": subscriptions.payer_withdraw,
            "cancel-on-solana": subscriptions.cancel_on_solana,
            "reclaim-rent": subscriptions.reclaim_rent,
        }[action]
        try:
            changed = run(subscription)
        finally:
            self._sandbox.save()
            self._sandbox.sender.wake()
        return web.json_response({"status": changed.status.value, "onchain": changed.onchain}, headers=HEADERS)


def portal_actions(subscription: r.Subscription) -> list[str]:
    """What the portal offers now; no cancel of its own while a merchant cancel is pending."""
    if subscription.onchain == "ended":
        return ["reclaim-rent"]
    if subscription.status is r.SubscriptionStatus.ENDED:
        return ["cancel-on-solana"] if subscription.onchain == "live" else []
    if subscription.payer_scheduled:
        return ["withdraw"]
    return [] if subscription.merchant_cancel_requested else ["cancel"]


def _check_same_site(request: web.Request) -> None:
    """No other site's page presses a button here."""
    origin = request.headers.get("Origin")
    if origin is not None and origin != f"{request.scheme}://{request.host}":
        raise Refusal("loopback_only", "Another site's page may not do that.")
