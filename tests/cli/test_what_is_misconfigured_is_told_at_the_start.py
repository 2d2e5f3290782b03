"""What would silently rest, or lie open, is told or prevented at the start."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from consumer.app.root import App
from consumer.errors import LedgerError, SettingsError
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.settings import Role, load_settings
from consumer.work.registry import NOT_READABLE
from tests.cli.conftest import Run


@pytest.mark.slow
def test_a_handler_that_does_not_exist_stops_work(consumer: Run) -> None:
    assert consumer("db", "upgrade").returncode == 0
    done = consumer("work", CONSUMER_HANDLERS="fulfilment,shopp:ship", CONSUMER_INTERNAL_PORT="0")
    assert done.returncode == 2
    assert "CONSUMER_HANDLERS: no handler or plugin is called 'shopp:ship'" in done.stderr


async def test_the_ledgers_file_is_for_its_owner_only(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/made/ledger.db")
    await schema.upgrade(database)
    await database.stop()
    assert stat.S_IMODE((tmp_path / "made" / "ledger.db").stat().st_mode) == 0o600


def test_a_path_that_cannot_be_made_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LedgerError, match="cannot be opened"):
        Database(f"sqlite+aiosqlite:///{tmp_path}/file/ledger.db")


async def test_a_folder_of_plugins_that_cannot_be_read_stops_work(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumer.work.registry.unreadable", lambda: ["/plugins"])
    async with App(load_settings(environ, Role.WORK)) as app:
        with pytest.raises(SettingsError) as told:
            app.check_plugins()
    assert told.value.problems == [f"/plugins: {NOT_READABLE}"]
