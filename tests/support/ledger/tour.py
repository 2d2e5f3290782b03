"""A tour of every statement: each function of the ledger and of the console that asks the database, and both built-in
plugins on every event they want."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any

from sqlalchemy import Table

import consumer.console
import consumer.ledger
from consumer.console.checkouts import Body, Checkout
from consumer.console.invariants.kept import Account
from consumer.errors import ConsumerError
from consumer.events import Source
from consumer.ledger import Database
from consumer.ledger.archiving.bodies import digest
from consumer.ledger.archiving.derivation import Mark
from consumer.ledger.archiving.passes import LastPass
from consumer.ledger.archiving.settled import Aged
from consumer.ledger.audit import Noted
from consumer.ledger.handling import dead, lanes, outbox, runs
from consumer.ledger.handling.events import EventFilter
from consumer.ledger.handling.handlers import ALL
from consumer.ledger.leases import Lease
from consumer.ledger.log_memory import TopicMemory
from consumer.ledger.plans.candidates import Pair, PlanFilter
from consumer.ledger.plans.plans import Decided
from consumer.ledger.plans.tables import Action
from consumer.ledger.processes import Pulse
from consumer.ledger.reading.observations import Observed
from consumer.ledger.reading.quarantine import Kept
from consumer.ledger.tables import DeadLetterRow, EventRow, OutboxRow, ReadRow, RunRow, RunStatus
from consumer.plugin import Emission, Event, ReadRequest
from consumer.reason import Reason
from handlers.access.policy import Policy
from handlers.fulfilment.tables import FINDINGS
from tests.contract.ledger import facts
from tests.support.handling.projections import Projections, declared_in, observed, own, said, unreadable
from tests.support.ledger.history import AT
from tests.support.ledger.plans import Statements

HANDLER = "test:ship"
PLAN = "rpl_past"
"""A plan of the past that is being applied (`history.replayed`)."""
BUILT_IN = ("handlers.fulfilment.handler", "handlers.access.handler")
NOW = AT + timedelta(days=1)


class Undone(Exception):
    """What the tour changed is taken back."""


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function of the ledger and the console that takes a session, by its name there."""
    for root in (consumer.ledger, consumer.console):
        for module in pkgutil.walk_packages(root.__path__, f"{root.__name__}."):
            if ".migrations" not in module.name:
                for name, function in vars(import_module(module.name)).items():
                    if name.startswith("_") or getattr(function, "__module__", None) != module.name:
                        continue
                    if inspect.iscoroutinefunction(function) and "session" in inspect.signature(function).parameters:
                        yield f"{module.name.removeprefix('consumer.')}.{name}", function


def _row(model: Any, **values: Any) -> Any:
    """A row of which only these columns matter."""
    return model(**values)


_CLAIMED = runs.ClaimedRun(
    application="default", event_id="evt_300003", handler=HANDLER, seq=300003, key="order:order-300003", attempts=0,
    plan=None, created_at=AT, due_at=AT,
)  # fmt: skip
_QUARANTINED = Kept(
    id=1_000_001, application="default", delivery_id="d", event_id=None, reason="not_json", headers="{}",
    created_at=NOW, received_at=NOW, size=0,
)  # fmt: skip
_DEAD = dead.DeadRun(
    application="default", event_id="evt_5", handler=HANDLER, seq=5, key="order:order-5", type="order.paid",
    status="dead", blocking=True, attempts=1, code="x", reason=None, fingerprint=None, code_version="", died_at=AT,
)  # fmt: skip
_READ = ReadRow(application="default", kind="order", object_id="past_1000001", asked=1, due_at=AT, created_at=AT)
_OBSERVED = Observed(application="default", kind="order", object_id="x", version=1, digest="d", read_at=AT)
_LETTER = dead.Letter(row=_row(DeadLetterRow, id=1000001), event=_row(EventRow), attempts=())
_EMITTED = outbox.Emitted(
    emission=Emission(id="drv_1", type="x", key="order:1", data={}), cause=facts.event(1), handler=HANDLER
)
_DELIVERIES = [facts.delivery(number, event_id=f"evt_x{number}") for number in range(3)]
_BODY = Body(order_id="order-x", customer="cus_x", expected_amount="25.00")
_PULSE = Pulse(
    process="p", role="work", host="h", pid=1, version="1", started_at=AT, ready=True, since=AT
)  # fmt: skip
_PAIR = Pair(
    seq=5, handler=HANDLER, application="default", event_id="evt_5", key="order:order-5", type="order.paid",
    action=Action.RERUN,
)  # fmt: skip
_DECIDED = Decided(
    by="op", reason=None, filters={}, forced=False, renews_keys=False, items=1, predicted={}, digest="d"
)  # fmt: skip
_EVENTS: Table = EventRow.__table__
_FILTERS: tuple[dict[str, Any], ...] = (
    {}, {"order": "order-5"}, {"subscription": "sub_1"}, {"event": "evt_5"}, {"event": "evt_5", "application": "other"},
    {"handler": HANDLER}, {"handler": "test:new", "order": "order-5"}, {"handler": "test:new", "event": "evt_5"},
    {"type": "order.paid", "status": "dead"}, {"type": "order.*", "fingerprint": "f"}, {"status": "retrying"},
    {"since": AT, "until": NOW, "application": "default"}, {"reason_code": "x", "handler": HANDLER},
    {"subscription": "sub_1", "also": (("default", "customer:cu-1"),)},
    {"customer": "cu-1", "also": (("default", "order:order-5"), ("other", "subscription:sub_1"))},
    {"handler": HANDLER, "order": "order-5", "forced": True},
)  # fmt: skip
"""What a replay plan may be about."""
_PLANNED = [{"wanted": PlanFilter(**given)} for given in _FILTERS]
_AGED = Aged(
    seq=5, application="default", id="evt_5", key="order:order-5", type="order.observed", source="webhook",
    received_at=AT, bytes=2,
)  # fmt: skip
_DIGEST = digest(b"{}" + b" " * 400)
_LAY_ELSEWHERE = {
    "id": 1, "application": "default", "delivery_id": "dlv_moved", "event_id": None, "reason": "not_json",
    "raw": b"{", "headers": "{}", "received_at": NOW, "created_at": NOW,
}  # fmt: skip
_FIRST_WALK = {
    "first_walk": {
        "application": "default", "walk": "first_walk", "token": 1, "state": "{}", "updated_at": AT.isoformat(),
    },
    "events": 1,
}  # fmt: skip
_NOTED = Noted(
    at=AT, application="default", actor=HANDLER, action="order.changed", subject="order:x", before="{}", after="{}",
    reason="evt_5", code_version="",
)  # fmt: skip
_WORD = {"word": "access.recheck", "subject": "default", "by": "op", "reason": "why"}

BY_NAME: Mapping[str, Any] = {
    "now": NOW, "at": NOW, "over": NOW, "ahead_s": 5.0,
    "application": "default", "applications": ["default", "other"], "handler": HANDLER,
    "worker": "one", "limit": 50, "lease_s": 15.0, "by": "op", "reason": None, "event_id": "evt_5",
    "order_id": "order-6",
    "event_ids": ["evt_5", "evt_6"], "delivery_ids": ["past_1000001"], "object_ids": ["past_1000001"], "kind": "order",
    "object_id": "past_1000001", "key": "order:order-5", "moment": AT, "since": AT, "before": NOW, "unless": "ENDED",
    "application_names": ["default"], "role": "sync/default", "holder": "h", "token": 1, "state": {}, "walk": "events",
    "name": "test:ship", "names": ["test:ship"], "of_event": [_row(RunRow, handler=HANDLER, status="dead")],
    "counted": True, "next_at": NOW, "due_at": NOW, "code": "x",
    "process": "p", "fingerprint": "f",
    "customer": "past_1000001", "subscription_id": "past_1000001", "session_id": "past_1000001",
    "subject": "past_1000001", "policy": Policy(), "after": None, "causes": {"evt_5"}, "count": 1,
    "ids": [("default", "evt_5", HANDLER)], "lanes": [("default", HANDLER, "order:order-5")], "table": FINDINGS,
    "source": Source.WEBHOOK, "deliveries": _DELIVERIES, "reads": [_READ], "read": _READ, "is_read": True, "version": 1,
    "observed": [_OBSERVED], "letters": [_LETTER], "page": lanes.Page([("default", "evt_5", HANDLER)], None),
    "times": {"default": AT}, "lease": Lease("sync/default", "h", 1, AT), "pulses": [_PULSE],
    "roles": ["work"], "host": "h",
    "requests": [ReadRequest(kind="order", object_id="x")], "emitted": [_EMITTED], "body": _BODY,
    "checkout": Checkout(
        application="default", session_id="s", mode="payment", order_id="o", customer="c", expected_amount=None
    ),
    "run": _CLAIMED, "data": {}, "events": [("default", "evt_5")], "topic": "payments.events",
    "topics": ["payments.events"], "offsets": {("payments.events", 0): 1}, "starts": {("payments.events", 0): 1},
    "memory": TopicMemory(topic="payments.events"), "too_many_bytes": 1, "numbers": [1_000_001],
    "runs": [{"application": "default", "handler": HANDLER}], "plan": PLAN, "plan_id": PLAN, "types": ("order.paid",),
    "handlers": declared_in(BUILT_IN[0])[:2], "notes": [_NOTED],
}  # fmt: skip
"""What to give a parameter of this name."""

EVERY_WAY: Mapping[str, list[dict[str, Any]]] = {
    "ledger.audit.handled_after": [{"entry": entry} for entry in (0, 10**9)],
    "ledger.archiving.bodies.records": [
        {"names": [("default", "evt_5"), ("default", "evt_6")], "archived": whole} for whole in (True, False)
    ],
    "ledger.archiving.bodies.digests": [{"names": [("default", "evt_5"), ("default", "evt_6")]}],
    "ledger.archiving.bodies.take_out": [{"archive": "a", "digests": {("default", "evt_5"): _DIGEST}}],
    "ledger.archiving.bodies.first_walks": [{"events": 5}],
    "ledger.archiving.bodies.take_first_walks": [{"found": []}, {"found": [_FIRST_WALK]}],
    "ledger.archiving.bodies.put_back": [{"found": [], "brings_missing": True}],
    "ledger.archiving.observed.observed": [{"after": after} for after in ("", "past_1000001")],
    "ledger.archiving.quarantined.quarantined": [{"after": 0, "limit": 20}],
    "ledger.archiving.quarantined.take_in": [{"rows": [_LAY_ELSEWHERE]}],
    "ledger.archiving.passes.keep": [{"found": LastPass()}],
    "ledger.archiving.settled.stretch": [{"after": 0, "before": NOW}],
    "ledger.archiving.settled.settled": [{"aged": [_AGED]}],
    "ledger.handling.dead.search": [
        {"wanted": dead.DeadFilter()}, {"wanted": dead.DeadFilter(discarded=True)},
        {"wanted": dead.DeadFilter(order_id="order-5", type="order.*")},
        {"wanted": dead.DeadFilter(handler="test:gone", waiting_at=NOW)},
        {"wanted": dead.DeadFilter(event_id="evt_5", since=AT, until=NOW)},
        {"wanted": dead.DeadFilter(keys=(("default", "order:order-5"), ("default", "customer:cu-1")))},
    ],
    "ledger.handling.dead.totals": [{"wanted": dead.DeadFilter()}, {"wanted": dead.DeadFilter(discarded=True)}],
    "ledger.handling.dead.redrive": [{"runs": [_DEAD], "reason": "x"}],
    "ledger.handling.dead.discard": [{"runs": [_DEAD], "reason": "x"}],
    "ledger.handling.dead.restore": [{"runs": [_DEAD], "reason": "x"}],
    "ledger.handling.events.record": [{"events": [facts.event("new")]}],
    "ledger.handling.events.known": [{"keys": [("default", "evt_5"), ("default", "evt_6")]}],
    "ledger.handling.events.load": [{"keys": [("default", "evt_5"), ("default", "evt_6")]}],
    "ledger.handling.events.told": [{"keys": ["order:order-5"]}],
    "ledger.handling.events.search": [
        {"wanted": EventFilter(**given)}
        for given in (
            {}, {"event_id": "evt_5"}, {"order_id": "order-6"}, {"subscription_id": "sub_1"}, {"type": "order.paid"},
            {"application": "default", "order_id": "order-6", "handler": HANDLER}, {"since": AT, "until": NOW},
            {"handler": HANDLER, "status": "succeeded"}, {"status": "dead"}, {"status": "retrying"},
            {"status": "parked", "type": "order.paid", "application": "default", "since": AT},
            {"type": "order.*", "until": NOW},
            {"handler": HANDLER, "type": "order.paid"}, {"fingerprint": "a" * 16, "type": "order.paid"},
            {"keys": (("default", "order:order-5"), ("default", "order:order-6")), "handler": HANDLER},
        )
    ],
    "ledger.handling.requests.others": [{"event_type": "order.paid", "keys": ["order:order-5"], "known": {"evt_5"}}],
    "ledger.plans.candidates.archived": [*_PLANNED[5:8], _PLANNED[-1]],
    "ledger.plans.candidates.pairs": [{**given, "limit": 100_000} for given in _PLANNED],
    "ledger.plans.candidates.left_alone": _PLANNED[::3], "ledger.plans.candidates.seeded": _PLANNED[6:8],
    "ledger.plans.candidates.missed": [{"before": None}, {"before": AT}, {"types": ("order.*",)}, {"handler": "x:new"}],
    "ledger.plans.items.add": [{"pairs": [(_PAIR, 0, "{}")], "plan": "rpl_new"}],
    "ledger.plans.items.of_plan": [{}, {"limit": 50}],
    "ledger.plans.items.on_way": [
        {"events": [_row(EventRow, seq=number, application="default", id=f"evt_{number}") for number in range(3, 53)]}
    ],
    "ledger.plans.items.underway": [{"after": 0}],
    "ledger.plans.items.take": [
        {"wanted": [(PLAN, "default", f"evt_{number}") for number in range(5, 505)]},
        {"wanted": [("rpl_gone", "default", "evt_5")]},
    ],
    "ledger.plans.plans.create": [{"plan_id": "rpl_new", "decided": _DECIDED}],
    "ledger.plans.plans.begin": [{"reason": "x"}], "ledger.plans.plans.go_on": [{"reason": "x"}],
    "ledger.plans.plans.cancel": [{"reason": "x"}],
    "ledger.plans.plans.complete": [{"result": {}}],
    "ledger.plans.trial.derived_before": [{"ids": [("default", "evt_5"), ("default", "drv_x")]}],
    "ledger.archiving.derivation.begin": [{"files": ["a.jsonl"]}],
    "ledger.archiving.derivation.end": [{"began": "x", "whole": ["a.jsonl"]}],
    "ledger.archiving.derivation.settle": [{"known": {"default": Mark("owed 5", 5)}}],
    "ledger.trail.sealing.entries": [{"after": 3, "until": 9}],
    "ledger.trail.sealing.newest": [{"subject": None}, {"subject": "order:order-5"}],
    "ledger.handling.outbox.due": [{}, {"held": {("default", "order:order-5")}}],
    "ledger.handling.outbox.publish_again": [{"numbers": [1000001]}],
    "ledger.handling.outbox.astray": [{"before": NOW}],
    "ledger.handling.outbox.withdraw": [{"ids": [("default", "drv_x")]}],
    "ledger.handling.outbox.spent": [{"ids": [("default", "drv_x")]}],
    "ledger.handling.outbox.below": [{"seq": 2**62}],
    "ledger.handling.outbox.mark_published": [{"rows": [_row(OutboxRow, seq=1000001)]}],
    "ledger.handling.runs.add": [{"runs": facts.lane(1_000_001, 1_000_002)}],
    "ledger.handling.attempts.add": [{"attempts": [facts.attempt()]}],
    "ledger.handling.runs.claim_new": [{"added": facts.lane(1_000_001), "worker": "w", "now": NOW, "lease_s": 1.0}],
    "ledger.handling.attempts.ended_with": [{"run": _CLAIMED}],
    "ledger.handling.lanes.stranded": [
        {}, {"after": ("default", HANDLER, "order:order-5")}, {"held": {(HANDLER, "default")}},
    ],
    "ledger.handling.runs.finish": [
        {"finished": [facts.finish(_CLAIMED)]}, {"finished": [facts.finish(_CLAIMED, RunStatus.RETRYING, next_s=1)]},
    ],
    "ledger.handling.handlers.take_turns": [{}],
    "ledger.handling.handlers.pause": [{"reason": "x"}, {"reason": "x", "application": ALL}],
    "ledger.handling.handlers.resume": [{}, {"application": ALL}],
    "ledger.handling.handlers.waiting_is_over": [{"answered": {HANDLER: NOW}}, {"answered": {}}],
    "ledger.handling.lanes.blocked": [{"keys": [("default", "order:order-5")]}],
    "ledger.handling.snapshots.newest": [{}],
    "ledger.reading.hints.put_off": [{"keys": [("default", "evt_5")]}],
    "ledger.reading.hints.drop": [{"keys": [("default", "evt_5")]}],
    "ledger.reading.hints.count": [{}, {"application": None}],
    "ledger.reading.observations.which": [{"keys": [("default", "order:order-5")]}],
    "ledger.reading.quarantine.put": [{"deliveries": [(one, Reason.NOT_JSON) for one in _DELIVERIES]}],
    "ledger.reading.quarantine.drop": [{"seen": [_QUARANTINED]}],
    "ledger.reading.quarantine.newest": [
        {"application": None, "event_id": None}, {"application": None, "event_id": "evt_5"},
        {"application": None, "event_id": None, "reason": Reason.NOT_JSON},
    ],
    "ledger.reading.quarantine.get": [{"number": 5}],
    "ledger.reading.quarantine.count_of": [{"reasons": [Reason.NOT_STORABLE, Reason.NOT_UNDERSTOOD]}],
    "ledger.reading.quarantine.count_since": [{}, {"application": None}],
    "ledger.reading.read_requests.due": [{}, {"application": None}],
    "ledger.reading.read_requests.due_of": [{"version": None}, {}],
    "ledger.health.figures": [{}],
    "console.alarms.queues.queues": [{"application": None}, {}],
    "console.alarms.queues.findings": [{"kind": None}, {"kind": "paid_unmatched"}],
    "console.belongings.of_customer": [{"customer": "cu-1", "application": one} for one in (None, "default")],
    "console.belongings.whose": [{"customer": "cu-1", "application": one} for one in (None, "default")],
    "console.belongings.of_subscription": [{"application": one} for one in (None, "default")],
    "console.operators.subjects.fulfilled_by": [{"order_id": "past_1000001"}],
    "console.operators.subjects.held_by": [{"order_ids": ["past_1000001", "order-5"]}],
    "console.operators.subjects.require": [
        {"word": "fulfilment.released", "subject": "past_1000001"},
        {"word": "fulfilment.finding_closed", "subject": "past_1000001", "data": {"kind": "x"}},
        {"word": "access.customer_attached", "subject": "past_1000001"},
        {"word": "access.hold_lifted", "subject": "past_1000001", "data": {"id": "past_1000001"}},
        {"word": "access.brake_released", "subject": "default"},
    ],
    "console.timeline.newest": [
        {"table": _EVENTS, "order": _EVENTS.c.seq, "where": _EVENTS.c.key == "order:order-5"}
    ],
    "console.views.rows_of": [{"subject": "order-5", "closed_at": None}],
    "console.event_view.outcomes_of": [{"rows": [_row(EventRow, application="default", id="evt_5")]}],
    "console.explain.explain": [{"subject": ("order", "past_1000001"), "has_credentials": True}],
    "console.operators.pausing.pause": [{"reason": "x", "application": one} for one in (None, "default")],
    "console.operators.pausing.resume": [{"reason": "x", "application": one} for one in (None, "default")],
    "console.operators.quarantined.throw_away": [{"rows": [_QUARANTINED], "reason": "x"}],
    "console.operators.quarantined.take_out": [{"rows": [_QUARANTINED]}],
    "console.operators.words.check": [_WORD], "console.operators.words.say": [_WORD],
    "console.alarms.unfulfilled.longest_held": [{}],
    "console.alarms.unread.asked_in_vain": [{"before": NOW}], "console.alarms.unread.unread_in_vain": [{"before": NOW}],
    "console.alarms.taken.keep": [{"seq": 5}],
    "console.invariants.kept.keep": [{"account": Account(at=NOW)}],
    "ledger.reading.key_values.swap": [{"was": "", "value": "x"}],
    "ledger.reading.key_values.keep": [{"value": "x"}], "ledger.reading.key_values.beginning": [{"prefix": "account/"}],
}  # fmt: skip
"""Calls that want more than what the names say."""

TESTS_OWN = "a test's own"
ELSEWHERE = (
    "ledger.engine.counting.", "ledger.rebuilding.past.", "ledger.trail.importing.", "console.find.",
    "console.belongings.require_known", "ledger.handling.runs.after_set_back", "ledger.handling.outbox.after_set_back",
)  # fmt: skip
"""What the others call; what an operator does now and then, which may read much: a rebuild, a look for any id; what a
clock that was set back asks once of all that waits; and what happens to an empty ledger."""


async def walk(database: Database, statements: Statements) -> None:
    """Call everything once; what it changes is taken back."""
    for name, function in functions():
        if name.startswith(ELSEWHERE):
            continue
        for given in EVERY_WAY.get(name, [{}]):
            statements.label = name
            await _undone(database, function, _arguments(name, function, given))


def _arguments(name: str, function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            found = {**given, **found}
        elif parameter.name in given or parameter.name in BY_NAME:
            found[parameter.name] = given[parameter.name] if parameter.name in given else BY_NAME[parameter.name]
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            raise AssertionError(f"say in tests/support/ledger/tour.py what {name} gets as {parameter.name!r}")
    return found


async def _undone(database: Database, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    try:
        async with database.transaction() as session:
            await function(session, **arguments)
            raise Undone
    except (Undone, ConsumerError):
        return  # an order that is not there is a good answer, too


async def built_in(database: Database, statements: Statements) -> None:
    """Both plugins on each event that they want, as the suite's own histories have them."""
    plugins = Projections(database, *BUILT_IN, options={name: {} for name in BUILT_IN}, application="default")
    wanted = {handler.name for handler in plugins.handlers}
    look = plugins.due

    async def due() -> list[Event]:
        before, statements.label = statements.label, TESTS_OWN
        try:
            return await look()
        finally:
            statements.label = before

    plugins.due = due  # type: ignore[method-assign]  # what a test's relay asks is no statement of ours
    for event in _story():
        statements.label = f"handlers:{event.type}"
        wanted -= {handler.name for handler in plugins.handlers if handler.wants(event.type)}
        await plugins.feed(event)
        plugins.now = max(plugins.now, event.received_at)
        if event.type != "access.recheck":
            await plugins.relay()
    assert not wanted, f"no event in tests/support/ledger/tour.py is for {wanted}"


def _story() -> Iterator[Event]:
    sub, customer = "subscription:sub_1", "customer:cus_1"
    registered = {"session_id": "ses_1", "order_id": "order-1", "customer": "cus_1", "expected_amount": "25.00"}
    yield own("checkout.registered", "order:order-1", registered)
    yield said("checkout.session.completed", "evt_t1", id="ses_1", order_id="order-1")
    yield said("order.expired", "evt_t2", order_id="order-1")
    yield said("order.paid", "evt_t3", order_id="order-1", amount="20.00")
    yield said("order.paid", "evt_t4", order_id="order-2", amount="20.00")
    yield observed("order:order-2", 1, {"id": "order-2", "status": "PAID", "amount": "20.00", "order_id": "order-2"})
    yield unreadable("order:order-3", 2)
    record = {"id": "pay_1", "order_id": "order-9", "amount": "1.00", "status": "SUCCEEDED"}
    yield observed("payment:pay_1", 3, record)
    for word in ("marked_paid", "released", "unfulfillable"):
        yield own(f"fulfilment.{word}", "order:order-1", {"by": "op", "reason": "x", "kind": "amount_mismatch"})
    yield own("fulfilment.finding_closed", "object:order-1", {"by": "op", "reason": "x", "kind": "amount_mismatch"})
    yield own("fulfilment.read_due", "order:order-2", {})
    record = {"id": "sub_1", "status": "ACTIVE", "customer_reference": "cus_1", "price_id": "p", "session_id": "ses_1"}
    yield said("subscription.created", "evt_t5", id="sub_1", session_id="ses_1", order_id="order-1")
    yield observed(sub, 4, record)
    yield observed("subscription:sub_2", 5, {**record, "id": "sub_2"})
    yield said("subscription.renewed", "evt_t6", id="sub_1")
    yield observed("subscription:sub_2", 6, {**record, "id": "sub_2", "status": "ENDED", "end_reason": "cancelled"})
    yield said("subscription.ended", "evt_t7", id="sub_1")
    yield unreadable("subscription:sub_3", 7)
    yield observed("subscription:sub_4", 8, {"id": "sub_4", "status": "ACTIVE", "session_id": "ses_4"})
    yield observed("session:ses_4", 9, {"id": "ses_4", "customer_reference": "cus_4"})
    yield own("access.subscription_due", sub, {"why": "lease", "due": AT.isoformat(), "wait_s": 0, "heard_at": None})
    yield own("access.customer_due", customer, {"due": AT.isoformat()})
    yield own("access.customer_attached", sub, {"customer": "cus_2", "by": "op", "reason": "x"})
    for word, ends in (("held", "hold_lifted"), ("complimentary_granted", "complimentary_ended")):
        yield own(f"access.{word}", customer, {"by": "op", "reason": "x", "entitlement": "default"}, id_=f"drv_{word}")
        yield own(f"access.{ends}", customer, {"by": "op", "reason": "x", "id": f"drv_{word}"})
    yield own("access.brake_released", "object:default", {"by": "op", "reason": "x"})
    yield own("access.finding_closed", "object:sub_1", {"by": "op", "reason": "x", "kind": "unresolved_subscriber"})
    yield own("access.recheck", "object:default", {"by": "op", "reason": "x"})  # the last: it sets off all customers
