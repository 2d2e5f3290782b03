"""Plans: which statements were sent, which of them the database answers by reading a whole table, and which read many
rows of what waits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncConnection

from consumer.ledger import Database
from tests.support.ledger.carried_out import CUSTOM, GENERIC, Plan, Steps, on_postgresql, rows_read

SMALL = frozenset({
    "alembic_version", "revisions", "handlers", "leases", "processes", "budgets", "sequences", "bookmarks",
    "access_brake", "chain_head", "log_positions", "handler_pauses",
})  # fmt: skip
"""Tables that do not grow with the business."""
BOUNDED = frozenset({"hints", "quarantine"})
"""Tables that hold at most so much: what strangers send is kept up to a limit (admission)."""
OPEN_ONLY = frozenset({
    "ix_runs_queue", "ix_runs_parked", "ix_runs_dead", "ix_runs_discarded", "ix_runs_blocking",
    "ix_dead_letters_unpublished", "ix_fulfilment_order_held", "ix_fulfilment_finding_open", "ix_access_finding_open",
    "ix_access_entitlement_braked", "ix_audit_unsealed", "ux_plans_applying", "ix_reads_unreadable",
    "ix_plan_items_pending",
})  # fmt: skip
"""Partial indexes that hold only what waits for somebody: a plan may go along one of them. How far it really goes is
counted (ROWS_MAX)."""
ROWS_MAX = 4_000
"""So many rows a statement may read, however long the backlog: a look at 1,000 parked runs with the head of each."""
STEPS_MAX = 60_000
"""The same, in SQLite's steps: a row takes it ten to forty."""

TIMES = 3
_READS = re.compile(r"\s*(?:SELECT|UPDATE|DELETE|WITH|INSERT\b.*?\bSELECT\b)", re.DOTALL)
"""Statements that read; an INSERT of VALUES does not."""


@dataclass
class Statements:
    """What was sent, and by whom (`label`). What is wrong with it, by that label: it reads `whole` tables; it would,
    with a plan for `any` parameters (our connections ask for none); it reads `many` rows."""

    label: str = ""
    texts: dict[str, tuple[str, Sequence[Any]]] = field(default_factory=dict)
    whole: dict[tuple[str, str], str] = field(default_factory=dict)
    any: dict[tuple[str, str], str] = field(default_factory=dict)
    many: dict[tuple[str, str], str] = field(default_factory=dict)
    _seen: Counter[tuple[str, str]] = field(default_factory=Counter)

    def on_postgresql(self, connection: Connection, statement: str, parameters: Sequence[Any]) -> None:
        """Carry it out beside; enough is a few times of each text from one."""
        self._seen[self.label, statement] += 1
        if self._seen[self.label, statement] > TIMES:
            return
        self.texts.setdefault(statement, (self.label, parameters))
        plan = on_postgresql(connection, statement, parameters, CUSTOM)
        self._count(statement, rows_read(plan), ROWS_MAX, "rows")
        for_any = on_postgresql(connection, statement, parameters, GENERIC)
        for found, explained in ((self.whole, plan), (self.any, for_any)):
            found.update(((self.label, statement), line) for line in _whole_on_postgresql(explained))

    def on_sqlite(self, statement: str, parameters: Sequence[Any], steps: int) -> None:
        """So many steps it took."""
        self.texts.setdefault(statement, (self.label, parameters))
        self._count(statement, steps, STEPS_MAX, "steps")

    def _count(self, statement: str, count: int, most: int, of_what: str) -> None:
        if count > most:
            self.many[self.label, statement] = f"{count} {of_what}"

    async def explain(self, connection: AsyncConnection) -> None:
        """On SQLite, whose plans do not follow the parameters: where a plan reads a whole table that grows."""
        for statement, (label, parameters) in self.texts.items():
            rows = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", tuple(parameters))
            for *_, detail in rows:
                if _is_whole_on_sqlite(detail, statement):
                    self.whole[label, statement] = detail


@contextmanager
def collecting(database: Database) -> Iterator[Statements]:
    """Everything this database is sent while the block lasts."""
    statements, steps = Statements(), Steps()
    is_sqlite = database.dialect == "sqlite"

    def before(connection: Connection, _: Any, statement: str, parameters: Any, *__: Any) -> None:
        if is_sqlite:
            steps.begin(connection)
        elif _READS.match(statement):
            statements.on_postgresql(connection, statement, _first(parameters))

    def after(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if is_sqlite and _READS.match(statement):
            statements.on_sqlite(statement, _first(parameters), steps.count)

    engine = database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", before)
    event.listen(engine, "after_cursor_execute", after)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", before)
        event.remove(engine, "after_cursor_execute", after)


def _first(parameters: Any) -> Sequence[Any]:
    """The first of many rows' parameters, or those of the only one."""
    found: Sequence[Any] = parameters[0] if isinstance(parameters, list) and parameters else parameters
    return found


def _is_whole_on_sqlite(detail: str, statement: str) -> bool:
    words = detail.split()
    if words[0] not in ("SCAN", "SEARCH") or words[1] in SMALL | BOUNDED or "VIRTUAL" in words:
        return False
    if not _is_table(words[1], statement):
        return False
    if any(name in OPEN_ONLY for name in words):
        return False
    condition = detail.partition("(")[2]
    if words[0] == "SCAN":
        return not _is_first_only(statement)
    is_end = re.search(r"\b(?:min|max)\(", statement)  # SQLite reads one row for it
    is_first = is_end and (not condition or ">" in condition)
    is_counted = statement.startswith("SELECT count(*)") and "LIMIT" in statement and "COVERING" in words
    columns = set(re.findall(r"(\w+)[=<>]", condition)) - {"application", "kind"}
    return not (columns or is_first or is_counted)


def _is_table(name: str, statement: str) -> bool:
    """A table of ours, maybe under another name; not a list of values, a subquery or a common table."""
    return bool(re.search(rf"\b(?:FROM|JOIN|INTO|UPDATE|,) ?(?:\w+ AS )?{name}\b", statement)) and not re.search(
        rf"\b{name}(?:\([^)]*\))? AS|json_each\([^)]*\)\)? AS {name}\b|\) AS {name}\b", statement
    )


def _is_first_only(statement: str) -> bool:
    """Whether it takes the first few in the order of an index, and passes over none."""
    return "LIMIT" in statement and "WHERE" not in statement


def _nodes(plan: Mapping[str, Any], *, is_limited: bool = False) -> Iterator[tuple[Mapping[str, Any], bool]]:
    yield plan, is_limited
    goes_on = plan["Node Type"] in ("Limit", "Result", "Subquery Scan", "LockRows", "Nested Loop") and is_limited
    for child in plan.get("Plans", ()):
        yield from _nodes(child, is_limited=goes_on or plan["Node Type"] == "Limit")


def _whole_on_postgresql(plan: Plan) -> list[str]:
    return [line for node, is_limited in _nodes(plan) if (line := _whole_node(node, is_limited))]


def _whole_node(node: Mapping[str, Any], is_limited: bool) -> str | None:
    kind, table, index = node["Node Type"], node.get("Relation Name", ""), node.get("Index Name", "")
    if kind not in ("Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Index Scan") or table in SMALL | BOUNDED:
        return None
    if index in OPEN_ONLY or any(name in index for name in SMALL | BOUNDED):
        return None
    condition, passed_over = node.get("Index Cond", ""), node.get("Filter", "")
    columns = set(re.findall(r"\(*(?:\w+\.)?(\w+)\)*(?:::\w+)? (?:=|<|>|<=|>=|IS)", condition))
    if columns - {"application", "kind"} or (is_limited and not passed_over and kind != "Seq Scan"):
        return None
    return f"{kind} {table} {index} cond={condition} filter={passed_over}"
