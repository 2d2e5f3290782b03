"""Carried out: what a statement really costs, measured on the very rows and parameters with which it is sent.

PostgreSQL carries it out once more beside it, and tells the plan with the rows that each step read; what that changed
is taken back. SQLite counts the steps of its machine while it does what was asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

import asyncpg
from sqlalchemy import Connection

Plan = Mapping[str, Any]

_LIMIT = "SET LOCAL statement_timeout = '10s'"
CUSTOM, GENERIC = "force_custom_plan", "force_generic_plan"
STEPS = 100


class Endless(AssertionError):
    """A statement that takes so long that nobody need count what it reads."""


class Steps:
    """What SQLite did for the newest statement, counted by the hundred."""

    def __init__(self) -> None:
        self.count = 0

    def begin(self, connection: Connection) -> None:
        """Count from here on."""
        self.count = 0
        driver: Any = connection.connection.dbapi_connection
        driver.run_async(lambda sqlite: sqlite.set_progress_handler(self._one_more, STEPS))

    def _one_more(self) -> int:
        self.count += STEPS
        return 0  # go on


def on_postgresql(connection: Connection, statement: str, parameters: Sequence[Any], mode: str) -> Plan:
    """The plan of the statement: one made for these parameters, with what it read (CUSTOM), or one for any, which is
    not carried out (GENERIC)."""
    connection.connection.cursor().execute("SELECT 1")  # the driver begins its transaction with the first statement
    driver: Any = connection.connection.dbapi_connection
    given = f"({', '.join(map(_literal, parameters))})" if parameters else ""
    options = "ANALYZE, TIMING OFF, FORMAT JSON" if mode == CUSTOM else "FORMAT JSON"

    async def carried_out(postgresql: Any) -> Plan:
        await postgresql.execute(
            f"SAVEPOINT beside; {_LIMIT}; SET LOCAL plan_cache_mode = {mode}; PREPARE beside AS {statement}"
        )
        try:
            told = await postgresql.fetchval(f"EXPLAIN ({options}) EXECUTE beside {given}")
        except asyncpg.QueryCanceledError:
            raise Endless(f"it does not come to an end: {statement}") from None
        finally:
            await postgresql.execute("ROLLBACK TO SAVEPOINT beside; DEALLOCATE beside")
        plan: Plan = (json.loads(told) if isinstance(told, str) else told)[0]["Plan"]
        return plan

    found: Plan = driver.run_async(carried_out)
    return found


def _literal(value: Any) -> str:
    """As PostgreSQL reads it, of whatever type the parameter is."""
    if value is None:
        return "NULL"
    return "'" + _text(value).replace("'", "''") + "'"


def _text(value: Any) -> str:
    match value:
        case bytes():
            return "\\x" + value.hex()
        case list() | tuple():
            items = (str(one).replace("\\", "\\\\").replace('"', '\\"') for one in value)
            return "{" + ",".join(f'"{one}"' for one in items) + "}"
        case date():
            return value.isoformat()
        case _:
            return str(value)


def steps_of(plan: Plan) -> Iterator[Plan]:
    """The plan and all that it is made of."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from steps_of(child)


def rows_read(plan: Plan) -> int:
    """How many rows were read of tables and indexes, those that were passed over among them; a look in vain is one."""
    return round(sum(_rows_of(step) for step in steps_of(plan)))


def _rows_of(step: Plan) -> float:
    if not ({"Relation Name", "Index Name"} & step.keys()) or "Scan" not in step["Node Type"]:
        return 0
    passed_over = sum(count for name, count in step.items() if name.startswith("Rows Removed by"))
    return float(step["Actual Loops"] * (1 + step["Actual Rows"] + passed_over))
