"""Faults of the ledger that is PostgreSQL."""

from __future__ import annotations

from tests.faults.scene import Fault, Scene, fault, fill
from tests.faults.server import DATABASE, PASSWORD, USER

RENAME = "ALTER TABLE hints RENAME COLUMN {} TO {}"


def _told(
    what: str, code: str, strikes: tuple[str, ...], cures: tuple[str, ...], *, inside: bool = False, cut: bool = True
) -> Fault:
    """An administrator says this to the server; connections that are there are ended, where they would not notice."""
    database = DATABASE if inside else "postgres"

    async def strike(scene: Scene) -> None:
        await scene.server.say(*strikes, database=database)
        if cut:
            await scene.server.cut()
        scene.pay(2)

    async def cure(scene: Scene) -> None:
        await scene.server.say(*cures, database=database)
        if cut:
            await scene.server.cut()

    return fault("PostgreSQL", what, code, strike=strike, cure=cure)


async def _rename(scene: Scene) -> None:
    """Renaming wants nobody inside, and nobody who comes in meanwhile."""
    await scene.server.say(f"ALTER DATABASE {DATABASE} ALLOW_CONNECTIONS false")
    await scene.server.cut()
    await scene.server.say(f"ALTER DATABASE {DATABASE} RENAME TO moved")


async def _rename_back(scene: Scene) -> None:
    await scene.server.say(f"ALTER DATABASE moved RENAME TO {DATABASE}")
    await scene.server.say(f"ALTER DATABASE {DATABASE} ALLOW_CONNECTIONS true")


async def _replace(scene: Scene) -> None:
    """Another database of this name, and nothing in it."""
    await _rename(scene)
    await scene.server.say(f"CREATE DATABASE {DATABASE} OWNER {USER}")


async def _bring_back(scene: Scene) -> None:
    await scene.stop()
    await scene.server.say(f"DROP DATABASE {DATABASE} WITH (FORCE)")
    await _rename_back(scene)
    await scene.start()


async def _shut_down(scene: Scene) -> None:
    """A shutdown that waits for those who are there, and lets nobody in."""
    await scene.server.hold("processes", gently=True)
    await scene.server.begin_to_stop()


async def _up_again(scene: Scene) -> None:
    await scene.server.stop("fast")
    await scene.server.let_go()
    await scene.server.start()


async def _dead(scene: Scene) -> None:
    await scene.server.stop()


async def _start(scene: Scene) -> None:
    await scene.server.start()


async def _pause(scene: Scene) -> None:
    await scene.server.pause()


async def _resume(scene: Scene) -> None:
    await scene.server.resume()


async def _refuse(scene: Scene) -> None:
    await scene.server.proxy.refuse()


async def _accept(scene: Scene) -> None:
    await scene.server.proxy.accept()


async def _slow(scene: Scene) -> None:
    scene.server.proxy.delay_s = 1


async def _quick(scene: Scene) -> None:
    scene.server.proxy.delay_s = 0


async def _hold(scene: Scene) -> None:
    await scene.server.hold("events")
    scene.pay(2)


async def _let_go(scene: Scene) -> None:
    await scene.server.let_go()


async def _fill(scene: Scene) -> None:
    fill(scene.server.disk)
    scene.pay(30)


async def _make_room(scene: Scene) -> None:
    (scene.server.disk / "filler").unlink()
    await scene.server.start()


OF_POSTGRES = (
    fault("PostgreSQL", "dead", "ledger_unavailable", strike=_dead, cure=_start),
    fault("PostgreSQL", "hung", "ledger_unavailable", strike=_pause, cure=_resume),
    fault("PostgreSQL", "refused", "ledger_unavailable", strike=_refuse, cure=_accept),
    fault("PostgreSQL", "slow (1 s an answer)", "ledger_slow", strike=_slow, cure=_quick),
    _told("with another password (28P01)", "database_login_refused",
          (f"ALTER ROLE {USER} PASSWORD 'changed'",), (f"ALTER ROLE {USER} PASSWORD '{PASSWORD}'",)),
    _told("lets the user in no more (28000)", "database_login_refused",
          (f"ALTER ROLE {USER} NOLOGIN",), (f"ALTER ROLE {USER} LOGIN",)),
    _told("with too many connections (53300)", "database_too_many_clients",
          (f"ALTER ROLE {USER} CONNECTION LIMIT 0",), (f"ALTER ROLE {USER} CONNECTION LIMIT -1",)),
    _told("read-only (25006)", "ledger_read_only",
          (f"ALTER DATABASE {DATABASE} SET default_transaction_read_only = on",),
          (f"ALTER DATABASE {DATABASE} RESET default_transaction_read_only",)),
    _told("without a grant to write (42501)", "database_forbidden",
          (f"REVOKE INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public FROM {USER}",),
          (f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {USER}",), inside=True, cut=False),
    _told("without a grant to read (42501)", "database_forbidden",
          (f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {USER}",),
          (f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {USER}",), inside=True, cut=False),
    *(_told(f"without a grant to write `{table}` (42501)", "database_forbidden",
            (f"REVOKE INSERT, UPDATE, DELETE ON {table} FROM {USER}",),
            (f"GRANT ALL ON {table} TO {USER}",), inside=True, cut=False)
      for table in ("runs", "outbox", "fulfilment_order", "reads", "leases", "processes")),
    _told("without a grant to use its schema", "database_forbidden",
          ("ALTER SCHEMA public OWNER TO postgres", "REVOKE ALL ON SCHEMA public FROM PUBLIC"),
          ("GRANT USAGE ON SCHEMA public TO PUBLIC", "ALTER SCHEMA public OWNER TO pg_database_owner"), inside=True),
    _told("with a statement_timeout of 1 ms (57014)", "statement_cancelled",
          (f"ALTER ROLE {USER} SET statement_timeout = 1",), (f"ALTER ROLE {USER} RESET statement_timeout",)),
    _told("of an incompatible version", "schema_incompatible",
          (RENAME.format("attempts", "denials"),), (RENAME.format("denials", "attempts"),), inside=True, cut=False),
    fault("PostgreSQL", "with a table locked", "ledger_locked", strike=_hold, cure=_let_go),
    fault("PostgreSQL", "without the database (3D000)", "database_unknown", strike=_rename, cure=_rename_back),
    fault("PostgreSQL", "replaced by an empty one", "database_missing", "schema_outdated",
          strike=_replace, cure=_bring_back),
    fault("PostgreSQL", "shutting down (57P03)", "database_not_up", strike=_shut_down, cure=_up_again),
    fault("PostgreSQL", "on a full disk (53100)", "ledger_disk_full", strike=_fill, cure=_make_room),
)  # fmt: skip
