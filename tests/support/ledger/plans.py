"""Plans: which statements were sent, and which of them the database would answer by reading a whole table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection

from consumer.ledger import Database

SMALL = frozenset({
    "alembic_version", "revisions", "handlers", "leases", "processes", "budgets", "sequences", "bookmarks",
    "access_brake",
})  # fmt: skip
"""Tables that do not grow with the business."""
BOUNDED = frozenset({"hints", "quarantine"})
"""Tables that hold at most so much: what strangers send is kept up to a limit (admission)."""
OPEN_ONLY = frozenset({
    "ix_runs_queue", "ix_runs_parked", "ix_runs_dead", "ix_runs_discarded", "ix_runs_blocking",
    "ix_dead_letters_unpublished", "ix_fulfilment_order_held", "ix_fulfilment_finding_open", "ix_access_finding_open",
    "ix_access_entitlement_braked", "ix_audit_unsealed",
})  # fmt: skip
"""Partial indexes that hold only what waits for somebody: reading one of them whole reads that."""


@dataclass
class Statements:
    """What was sent, each text once with its first parameters, and by whom (`label`)."""

    label: str = ""
    found: dict[str, tuple[str, Any]] = field(default_factory=dict)

    def note(self, statement: str, parameters: Any, many: bool) -> None:
        if statement.lstrip().split(None, 1)[0] in ("SELECT", "UPDATE", "DELETE", "WITH"):  # VALUES read nothing
            self.found.setdefault(statement, (self.label, tuple(parameters[0] if many else parameters)))


@contextmanager
def collecting(database: Database) -> Iterator[Statements]:
    """Everything this database is sent while the block lasts."""
    statements = Statements()

    def note(_: Any, __: Any, statement: str, parameters: Any, ___: Any, many: bool) -> None:
        statements.note(statement, parameters, many)

    engine = database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", note)


async def whole_reads(connection: AsyncConnection, statement: str, parameters: Any) -> list[str]:
    """Where the plan of this statement reads all of a table that grows; empty when it does not."""
    if connection.dialect.name == "sqlite":
        rows = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        return [detail for *_, detail in rows if _is_whole_on_sqlite(detail, statement)]
    rows = await connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters)
    told = rows.scalar_one()
    if statement.startswith("SELECT count(*)") and re.search(r"LIMIT \$\d+::INTEGER\) AS anon_1$", statement):
        return []  # it ends at COUNT_MAX
    plan = (json.loads(told) if isinstance(told, str) else told)[0]["Plan"]
    return [line for node, is_limited in _nodes(plan) if (line := _whole_on_postgresql(node, is_limited))]


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
    is_first = "min(" in statement and (not condition or ">" in condition)  # SQLite reads one row for it
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


def _whole_on_postgresql(node: Mapping[str, Any], is_limited: bool) -> str | None:
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
