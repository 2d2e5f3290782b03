"""Check: gathers, page by page, what the books say, lets the rules judge it, and counts. Reads only; bounded memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.console.invariants import access, orders
from consumer.console.invariants.cures import in_order, problem
from consumer.console.invariants.kept import not_derived
from consumer.console.invariants.orders import BookedOrder, Findings
from consumer.console.invariants.payments import SUCCEEDED, Around, Payment, classified
from consumer.console.invariants.report import Class, Report, micro_of
from consumer.console.invariants.service import PAGE, Seen, Service
from consumer.events import parse_time
from consumer.ledger import Database
from consumer.ledger.handling import queue, requests
from consumer.ledger.reading import observations
from consumer.ledger.reading.observation import status_of
from consumer.ledger.tables import RunStatus
from consumer.plugin import derived_id
from handlers import books
from handlers.access.policy import Policy
from handlers.access.rules import OperatorSource
from handlers.access.subscription import Subscription, to_subscription
from handlers.fulfilment.options import Options
from handlers.fulfilment.order import decimal
from handlers.fulfilment.store import REQUESTED, to_order
from handlers.pointers import look_amount, look_text

TIMES: Final = ("succeeded_at", "finalized_at", "paid_at", "created_at")
BUILT_IN: Final = ("fulfilment:", "access:")
FIRSTS_MAX: Final = 100_000

Page = Sequence[Mapping[str, Any]]


class Check:
    """Accounts for one application at a time. `options`: each plugin's own, as the workers have them. `handlers`:
    those that could fulfil an order. `rest` is awaited between pages by who has time."""

    def __init__(
        self,
        database: Database,
        service: Service,
        options: Mapping[str, Mapping[str, Any]],
        now: datetime,
        *,
        handlers: Sequence[str] = (),
        rest: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._handlers = handlers
        self._rest = rest
        self._database = database
        self._service = service
        self._fulfilment = Options.model_validate(options.get("fulfilment", {}))
        self._policy = Policy.model_validate(options.get("access", {}))
        self._now = now

    async def run(self, application: str, *, earlier: Report | None = None) -> Report:
        """The whole account. With an `earlier` one, only what both name is broken: each look meets what is on its way
        here just then. One that could not name all it found says nothing. Raises LedgerError; PaymentsError where the
        service is read."""
        is_whole = earlier is not None and len(earlier.named) == earlier.broken.total()
        report = Report(application=application, stood=frozenset(earlier.named) if earlier and is_whole else None)
        await self._work(report)
        async for page in self._all(books.orders_after, application, "order_id"):
            await self._orders(report, page)
        async for seen in self._service.pages(application, "order"):
            await self._orders_at_service(report, seen)
        await self._payments(report)
        async for page in self._all(books.subscriptions_after, application, "subscription_id"):
            await self._subscriptions(report, page)
        async for seen in self._service.pages(application, "subscription"):
            await self._subscriptions_at_service(report, seen)
        await self._customers(report)
        report.problems = in_order(report.problems)
        return report

    async def _all(
        self, page_after: Callable[[AsyncSession, str, str, int], Awaitable[Page]], application: str, key: str
    ) -> AsyncIterator[Page]:
        after = ""
        while True:
            async with self._database.reading() as session:
                page = await page_after(session, application, after, PAGE)
            if not page:
                return
            yield page
            after = page[-1][key]
            if self._rest is not None:
                await self._rest()

    def _name(
        self, report: Report, code: str, kind: str, subject: str, more: str = "", *, is_recorded: bool = False
    ) -> None:
        handlers = self._handlers
        report.name(problem(code, report.application, kind, subject, more, handlers=handlers, is_recorded=is_recorded))

    async def _work(self, report: Report) -> None:
        """What the built-in handlers gave up is in no book; nor is what came in from archives, before a rebuild."""
        async with self._database.reading() as session:
            counts = await queue.count_by_status(session, report.application)
            lacking = await not_derived(session)
        if code := lacking.get(report.application):
            self._name(report, code, "plugin", "all")
        for (handler, status), count in sorted(counts.items()):
            if count and status == RunStatus.DEAD and handler.startswith(BUILT_IN):
                self._name(report, "projection_dead", "handler", handler, f": {count} run(s)")

    # --- orders ------------------------------------------------------------------------------------------------

    async def _orders(self, report: Report, page: Page) -> None:
        async with self._database.reading() as session:
            booked = await self._booked(session, report.application, page)
            at_service = {row["service_order_id"] for row in page if row["service_order_id"] is not None}
            requested = await books.requested_by_service_id(session, report.application, at_service)
        report.orders += len(page)
        for one_id, others in orders.same_at_service(page, requested).items():
            self._name(report, "requested_under_two_ids", "order", one_id, f" ({', '.join(others)})")
        for one in booked.values():
            for code in orders.problems_of(one, self._now):
                self._name(report, code, "order", one.order_id)

    async def _booked(self, session: AsyncSession, application: str, page: Page) -> dict[str, BookedOrder]:
        ids = [row["order_id"] for row in page]
        keys = {f"order:{one}": derived_id(application, REQUESTED, f"order:{one}", "order") for one in ids}
        found = await requests.requests(session, application, list(keys.values()))
        others = await requests.others(session, application, REQUESTED, list(keys), frozenset(keys.values()))
        findings = await books.findings_of_orders(session, application, orders.KINDS, ids)
        lapsed = await books.lapsed(session, application, ids)
        return {
            row["order_id"]: BookedOrder(
                order_id=row["order_id"],
                order=to_order(row),
                request=found.get(keys[f"order:{row['order_id']}"]),
                others=others.get(f"order:{row['order_id']}", ()),
                findings=findings,
                is_lapsed=row["order_id"] in lapsed,
            )
            for row in page
        }

    async def _orders_at_service(self, report: Report, page: Sequence[Seen]) -> None:
        ids = [one.object_id for one in page]
        report.observed += len(ids)
        async with self._database.reading() as session:
            rows = await books.orders_of(session, report.application, ids)
            findings = await books.findings_of_orders(session, report.application, orders.KINDS, ids)
        for one in page:
            if (code := orders.disagreement(one, rows.get(one.object_id), findings)) is not None:
                self._name(report, code, "order", one.object_id, is_recorded=one.is_told)

    # --- payments ----------------------------------------------------------------------------------------------

    async def _payments(self, report: Report) -> None:
        firsts: dict[str, str] = {}  # order to the first payment of it that the books do not have
        async for page in self._service.pages(report.application, "payment"):
            seen = [one for one in page if one.status == SUCCEEDED]
            async with self._database.reading() as session:
                found = await self._around(session, report.application, seen, firsts)
            report.observed += len(page)
            report.unread += sum(payment.micro is None for payment, _ in found if not payment.is_shown)
            for payment, around in found:
                into, code = classified(payment, around)
                if into is Class.UNEXPLAINED and code is not None and not report.counts(code, "payment", payment.id):
                    into, code = Class.ARRIVING, None
                report.add(into, payment.micro)
                if code is not None:
                    is_told = around.subscription_state is not None
                    self._name(report, code, "payment", payment.id, is_recorded=is_told)

    async def _around(
        self, session: AsyncSession, application: str, seen: Sequence[Seen], firsts: dict[str, str]
    ) -> list[tuple[Payment, Around]]:
        kept = await books.payments_of(session, application, [one.object_id for one in seen])
        payments = [self._payment(one, kept.get(one.object_id)) for one in seen]
        by_service = {one.id: self._service_order(other) for one, other in zip(payments, seen, strict=True)}
        named = await books.order_ids_of(session, application, [one for one in by_service.values() if one])
        order_of = {one.id: one.order_id or named.get(by_service[one.id] or "") for one in payments}
        order_ids = sorted({one for one in order_of.values() if one is not None})
        rows = await books.orders_of(session, application, order_ids)
        booked = await self._booked(session, application, list(rows.values()))
        first_of: dict[str, str] = {}
        for row in await books.payments_of_orders(session, application, order_ids):
            first_of.setdefault(row["order_id"], row["payment_id"])
        in_session = {id_: row["session_id"] for id_, row in kept.items() if row["session_id"] and not row["order_id"]}
        of_subs_sessions = await books.subscription_sessions(session, application, sorted(set(in_session.values())))
        subjects = [*order_ids, *(one.id for one in payments)]
        findings = await books.findings_of_orders(session, application, orders.KINDS, subjects)
        sub_ids = sorted({one.subscription_id for one in payments if one.subscription_id is not None})
        subs, of_subs = await self._subscriptions_of(session, application, sub_ids)
        unknown = [one for one in sub_ids if one not in subs]
        shown = await observations.last(session, application, "subscription", unknown)
        found = []
        for one in payments:
            order_id = order_of[one.id]
            first = first_of.get(order_id or "")
            if order_id is not None and first is None and len(firsts) < FIRSTS_MAX:
                first = firsts.setdefault(order_id, one.id)
            around = Around(
                order=booked.get(order_id or ""),
                is_kept=one.id in kept,
                is_first=first in (None, one.id),
                is_period=in_session.get(one.id) in of_subs_sessions,
                subscription=subs.get(one.subscription_id or ""),
                subscription_state=status_of(last.state) if (last := shown.get(one.subscription_id or "")) else None,
                findings={**findings, **of_subs},
            )
            found.append((one, around))
        return found

    def _payment(self, seen: Seen, kept: Mapping[str, Any] | None) -> Payment:
        event, options = seen.event, self._fulfilment
        said = look_amount(event, options.amount) if event is not None else None
        amount = said if said is not None or kept is None else kept["amount"]
        named = look_text(event, options.payment_order) if event is not None else None
        return Payment(
            id=seen.object_id,
            micro=micro_of(decimal(amount)),
            order_id=(kept["order_id"] if kept is not None else None) or named,
            subscription_id=look_text(event, options.payment_subscription) if event is not None else None,
            at=None if event is None else parse_time(event.find(*(f"/data/record/{name}" for name in TIMES))),
            is_observed=seen.observed is not None,
            is_remembered=seen.observed is not None and not seen.is_recorded,
            is_shown=event is not None,
        )

    def _service_order(self, seen: Seen) -> str | None:
        return None if seen.event is None else look_text(seen.event, self._fulfilment.payment_service_order)

    # --- access ------------------------------------------------------------------------------------------------

    async def _subscriptions_of(
        self, session: AsyncSession, application: str, ids: Sequence[str]
    ) -> tuple[dict[str, Subscription], Findings]:
        rows = await books.subscriptions_of(session, application, ids)
        findings = await books.findings_of_access(session, application, access.KINDS, ids)
        return {id_: to_subscription(row) for id_, row in rows.items()}, findings

    async def _subscriptions(self, report: Report, page: Page) -> None:
        ids = [row["subscription_id"] for row in page]
        customers = sorted({row["customer"] for row in page if row["customer"] is not None})
        async with self._database.reading() as session:
            findings = await books.findings_of_access(session, report.application, access.KINDS, ids)
            decisions = await books.decisions_of(session, report.application, customers)
        for row in page:
            standing = {one["entitlement"]: one for one in decisions.get(row["customer"], ())}
            id_ = row["subscription_id"]
            word, broken = access.of_subscription(id_, to_subscription(row), standing, findings, self._policy)
            if word is not None:
                report.live[word] += 1
            for code in broken:
                self._name(report, code, "subscription", id_)

    async def _subscriptions_at_service(self, report: Report, page: Sequence[Seen]) -> None:
        report.observed += len(page)
        async with self._database.reading() as session:
            subs, findings = await self._subscriptions_of(session, report.application, [one.object_id for one in page])
        for one in page:
            here = subs.get(one.object_id)
            code = access.against_service(one.object_id, here, one.status, findings, read_at=one.read_at)
            if code is not None:
                self._name(report, code, "subscription", one.object_id, is_recorded=one.is_told)

    async def _customers(self, report: Report) -> None:
        application, after = report.application, ""
        while True:
            async with self._database.reading() as session:
                names = await books.customers_after(session, application, after, PAGE)
                found = await self._deciding(session, application, names)
                brake = await books.findings_of_access(session, application, access.KINDS, [application])
            if not names:
                return
            for name, customer in found.items():
                report.grants.update(access.word_of(row) for row in customer.standing.values() if row["allowed"])
                for code in access.of_customer(customer, self._policy, brake, application, self._now):
                    self._name(report, code, "customer", name)
            after = names[-1]

    async def _deciding(
        self, session: AsyncSession, application: str, names: Sequence[str]
    ) -> Mapping[str, access.Customer]:
        subscriptions = await books.subscriptions_of_customers(session, application, names)
        decisions = await books.decisions_of(session, application, names)
        sources = await books.operator_sources_of(session, application, names)
        times = await books.decided_at(session, application, names)
        return {
            name: access.Customer(
                subscriptions={row["subscription_id"]: to_subscription(row) for row in subscriptions.get(name, ())},
                grants=_sources(sources.get(name, ()), "complimentary"),
                holds=_sources(sources.get(name, ()), "hold"),
                standing={row["entitlement"]: row for row in decisions.get(name, ())},
                as_of=times.get(name),
            )
            for name in names
        }


def _sources(rows: Page, kind: str) -> list[OperatorSource]:
    names = [field.name for field in fields(OperatorSource)]
    return [OperatorSource(**{name: row[name] for name in names}) for row in rows if row["kind"] == kind]
