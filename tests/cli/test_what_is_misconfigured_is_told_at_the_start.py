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
from consumer.settings.load import problems_for
from consumer.work.registry import NOT_READABLE
from tests.cli.conftest import Run
from tests.support.desk import Desk


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


@pytest.mark.parametrize(
    "rest",
    ["127.0.0.1:1/db?ssl=hush", "127.0.0.1:1/db?direct_tls=hush", "127.0.0.1:1/db?gsslib=hush",
     "127.0.0.1:1/db?prepared_statement_cache_size=hush", "127.0.0.1:1/db?port=hush", "db..hush/db",
     f"{'hush' * 16}.example/db"],
)  # fmt: skip
def test_an_address_that_the_drivers_cannot_use_is_told_as_a_setting(desk: Desk, rest: str) -> None:
    """Each was `error[internal]`, and each role ended with it."""
    told = desk.call("events", "list", CONSUMER_DATABASE_URL=f"postgresql+asyncpg://{rest}")
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.startswith("error[settings_invalid]: CONSUMER_DATABASE_URL: ")
    assert "hush" not in told.stderr


@pytest.mark.usefixtures("upgraded")
def test_a_word_behind_a_files_name_that_sqlite_cannot_use_is_told_as_a_setting(
    desk: Desk, environ: dict[str, str]
) -> None:
    told = desk.call("events", "list", CONSUMER_DATABASE_URL=environ["CONSUMER_DATABASE_URL"] + "?timeout=hush")
    assert told.returncode == 2
    assert told.stderr.startswith("error[settings_invalid]: CONSUMER_DATABASE_URL: ")
    assert "hush" not in told.stderr


@pytest.mark.parametrize("name", ["CONSUMER_HOST", "CONSUMER_INTERNAL_HOST"])
@pytest.mark.parametrize("host", ["a..b", ".", "x" * 64])
def test_an_address_to_listen_at_that_nobody_can_have_is_told_as_a_setting(name: str, host: str) -> None:
    assert problems_for({name: host}, Role.OPERATE) == [f"{name}: must be an address, or the name of a host"]
