"""The embedded log's file: damage, disk full, retention, who owns it. No traceback, always one of our errors."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from consumer.broker import EmbeddedBroker, Partition, TopicConfig
from consumer.broker.embedded import broker as embedded_module
from consumer.broker.embedded.schema import touch
from consumer.clock import DrivenClock
from consumer.errors import BrokerError, BrokerUnavailable, LogCorrupt, LogIncompatible, LogLocked, LogReplaced
from tests.contract.broker.conftest import message, read, values
from tests.support.ports import answers, eventually
from tests.support.process import another_process


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    """A started broker with topic `t` of one partition."""
    found = EmbeddedBroker(tmp_path / "log.db")
    await found.start()
    await found.ensure_topics([TopicConfig(name="t", partitions=1, retention_s=3600, max_record_bytes=100_000)])
    yield found
    await found.stop()


async def test_the_file_and_its_folder_are_made_and_only_the_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "data" / "deep" / "log.db"
    broker = EmbeddedBroker(path)
    await broker.start()
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name
    await broker.stop()


# cause: log SQLITE_NOTADB
async def test_rubbish_is_told_as_a_corrupt_log(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.write_bytes(b"this is not a database, not at all " * 100)
    with pytest.raises(LogCorrupt) as told:
        await EmbeddedBroker(path).start()
    assert told.value.line().startswith("error[log_corrupt]:")
    assert told.value.fields["reason"] == "SQLITE_NOTADB"


async def test_a_log_that_was_closed_is_one_file(tmp_path: Path) -> None:
    for number in range(20):
        path = tmp_path / f"log-{number}.db"
        broker = EmbeddedBroker(path)
        await broker.start()
        await broker.ensure_topics([TopicConfig(name="t", partitions=1, retention_s=None, max_record_bytes=100_000)])
        await broker.publish_many("t", [message("x" * 1_000, f"k{key}") for key in range(100)])
        await broker.stop()
        assert not path.with_name(f"{path.name}-wal").exists()


# cause: log SQLITE_CORRUPT
async def test_damage_inside_the_file_is_told_as_a_corrupt_log(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    broker = EmbeddedBroker(path)
    await broker.start()
    await broker.ensure_topics([TopicConfig(name="t", partitions=1, retention_s=None, max_record_bytes=100_000)])
    await broker.publish_many("t", [message("x" * 3_000, f"k{number}") for number in range(500)])
    await broker.stop()
    content = bytearray(path.read_bytes())
    content[8192:-4096] = b"\xff" * (len(content) - 12288)
    path.write_bytes(content)
    broken = EmbeddedBroker(path)

    async def use() -> None:
        await broken.start()
        member = broken.subscribe(["t"], "g")
        await member.start()
        await read(member, 500)

    with pytest.raises(LogCorrupt) as told:
        await use()
    assert told.value.fields["reason"] == "SQLITE_CORRUPT"
    await broken.stop()


async def test_somebody_elses_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE orders (id TEXT)")
    other.commit()
    other.close()
    with pytest.raises(BrokerError, match="not a log"):
        await EmbeddedBroker(path).start()


# cause: LOG_INCOMPATIBLE
async def test_a_log_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    broker = EmbeddedBroker(path)
    await broker.start()
    await broker.stop()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(LogIncompatible, match="newer version"):
        await EmbeddedBroker(path).start()


async def test_a_path_that_cannot_be_a_file_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "log.db", tmp_path):
        with pytest.raises(BrokerUnavailable):
            await EmbeddedBroker(path).start()


async def test_a_deleted_file_takes_no_record_that_nobody_could_find_again(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    await broker.publish("t", message("kept"))
    (tmp_path / "log.db").rename(tmp_path / "moved.db")
    with pytest.raises(BrokerUnavailable, match="gone"):
        await broker.publish("t", message("lost"))
    (tmp_path / "log.db").write_bytes(b"")
    with pytest.raises(BrokerUnavailable, match="replaced"):
        await broker.publish("t", message("lost"))
    assert await answers(broker) is False


# case: I1, I2
@pytest.mark.parametrize("gone", [["-wal"], ["-shm"], ["-wal", "-shm"]], ids=" ".join)
async def test_what_lies_beside_the_file_may_be_removed_and_nothing_is_lost(
    broker: EmbeddedBroker, tmp_path: Path, gone: list[str]
) -> None:
    """Roles went on in what was removed, beside whoever started after them: what had been answered 200 was lost, or the
    file broken. Where the first had put it away, the others read nothing any more."""
    path = tmp_path / "log.db"
    member = broker.subscribe(["t"], "g")
    await member.start()
    with another_process(OTHER, str(path), "before") as before:
        expected = [await before.answer()]
        many = [f"{number} {'x' * 3_000}" for number in range(20)]
        await broker.publish_many("t", [message(value) for value in many])
        for name in gone:
            path.with_name(f"{path.name}{name}").unlink()

        async def is_written() -> bool:
            with suppress(BrokerUnavailable):
                await broker.publish_many("t", [message(value) for value in many])
                return True
            return False

        await eventually(is_written, within_s=20, what="the log takes records again")
        expected += [*many, *many, await before.answer()]
        with another_process(OTHER, str(path), "after") as after:
            expected += [await after.answer()]
        await broker.publish("t", message("last"))
        expected += ["last"]
        assert values(await read(member, len(expected))) == expected, "who was there reads on"
    await member.stop()
    await broker.stop()
    with closing(sqlite3.connect(path)) as found:
        assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert found.execute("SELECT count(*) FROM records").fetchone() == (len(expected),)


async def test_a_file_that_goes_after_what_lay_beside_it_is_not_made_anew(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """It would be an empty log, and nobody would be told that the old one is gone."""
    (tmp_path / "log.db-wal").unlink()
    with pytest.raises(BrokerUnavailable, match="moved"):
        await broker.publish("t", message("x"))
    (tmp_path / "log.db").rename(tmp_path / "moved.db")
    for _ in range(2):
        with pytest.raises(LogReplaced, match="gone"):
            await broker.publish("t", message("x"))
    assert not (tmp_path / "log.db").exists()


OTHER = """
import asyncio, sys
from pathlib import Path
import structlog
from consumer.broker import EmbeddedBroker, Message
from consumer.errors import BrokerUnavailable

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

async def publish(value):
    broker = EmbeddedBroker(Path(sys.argv[1]))
    await broker.start()
    while await asyncio.to_thread(sys.stdin.readline):
        while True:
            try:
                await broker.publish("t", Message(key=b"order:1", value=value.encode()))
                break
            except BrokerUnavailable:
                await asyncio.sleep(0.05)
        print(value, flush=True)
    await broker.stop()

asyncio.run(publish(sys.argv[2]))
"""


# cause: log SQLITE_FULL
async def test_wherever_the_process_goes_its_log_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler may change the folder: the log was gone then, and the worker stood still."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    broker = EmbeddedBroker(Path("log.db"))
    await broker.start()
    await broker.ensure_topics([TopicConfig(name="t", partitions=1, retention_s=None, max_record_bytes=100_000)])
    monkeypatch.chdir(tmp_path / "elsewhere")
    await broker.publish("t", message("x"))
    await broker.stop()
    assert not list((tmp_path / "elsewhere").iterdir())


async def test_a_full_disk_is_unavailable_and_room_makes_it_work_again(broker: EmbeddedBroker) -> None:
    # case: I2
    await broker.publish("t", message("before"))
    file = broker._file
    assert file is not None
    assert file._writer is not None
    pages = file._writer.execute("PRAGMA page_count").fetchone()[0]
    file._writer.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(BrokerUnavailable) as told:
        await broker.publish("t", message("x" * 50_000))
    assert told.value.fields["reason"] == "SQLITE_FULL"
    for _ in range(2):
        assert await answers(broker) is False
    await file.write(touch, timeout_s=5)  # a write that needs no page
    assert await answers(broker) is False
    file._writer.execute("PRAGMA max_page_count = 1073741823")
    assert await answers(broker) is True
    assert file._writer.execute("SELECT count(*) FROM records").fetchone() == (1,)
    await broker.publish("t", message("after"))
    member = broker.subscribe(["t"], "g")
    await member.start()
    assert values(await read(member, 2)) == ["before", "after"]


# cause: log SQLITE_BUSY
@pytest.mark.slow
async def test_a_locked_file_is_told_as_such_also_to_who_waits_less_long_than_its_lock(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_module, "READY_WITHIN_S", 0.05)
    holder = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(LogLocked) as told:
        await broker.publish("t", message("first"))
    assert told.value.fields["reason"] == "SQLITE_BUSY"
    for _ in range(3):
        with pytest.raises(LogLocked):
            await broker.check()
    holder.execute("ROLLBACK")
    await eventually(lambda: answers(broker), within_s=15)
    holder.close()


async def test_many_publishers_share_transactions(broker: EmbeddedBroker) -> None:
    file = broker._file
    assert file is not None
    transactions = 0
    transact = file._transact

    def counted(jobs: list[object]) -> list[object]:
        nonlocal transactions
        transactions += 1
        return transact(jobs)  # type: ignore[arg-type]  # passed on as it came

    file._transact = counted  # type: ignore[method-assign,assignment]  # counted, not changed
    await asyncio.gather(*(broker.publish("t", message(str(number))) for number in range(1_000)))
    assert transactions <= 20


async def test_old_records_go_when_every_group_has_read_them_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_module, "RETENTION_EVERY_S", 0.05)
    clock = DrivenClock(datetime.now(UTC))
    broker = EmbeddedBroker(tmp_path / "log.db", clock=clock)
    await broker.start()
    await broker.ensure_topics([TopicConfig(name="t", partitions=1, retention_s=3600, max_record_bytes=100_000)])
    partition = Partition("t", 0)
    await broker.publish_many("t", [message(str(number)) for number in range(5_000)])
    slow, fast = broker.subscribe(["t"], "slow"), broker.subscribe(["t"], "fast")
    await slow.start()
    await fast.start()
    await read(fast, 5_000)
    await read(slow, 5_000)
    await fast.commit({partition: 5_000})
    await slow.commit({partition: 10})
    clock.advance(3_000)
    await broker.publish("t", message("young"))
    clock.advance(1_000)

    async def oldest() -> int:
        probe = sqlite3.connect(tmp_path / "log.db")
        try:
            return int(probe.execute("SELECT first_offset FROM partitions").fetchone()[0])
        finally:
            probe.close()

    async def is_at(offset: int) -> bool:
        return await oldest() == offset

    await eventually(lambda: is_at(10), what="only what both groups have read is deleted")
    await slow.stop()
    again = broker.subscribe(["t"], "slow")
    await again.start()
    assert values(await read(again, 4_991))[0] == "10"
    await again.commit({partition: 5_001})
    await eventually(lambda: is_at(5_000), what="the young record stays")
    late = broker.subscribe(["t"], "late")
    await late.start()
    assert values(await read(late, 1)) == ["young"]
    await broker.stop()


async def test_what_a_group_has_not_read_stays_however_long_nobody_was_there(tmp_path: Path) -> None:
    """After 30 idle days, or on a machine that booted with its clock ahead, the first moment deleted it: its group was
    forgotten before anybody could join."""
    # case: G7, I4
    topic, path = TopicConfig(name="t", partitions=1, retention_s=3600, max_record_bytes=100_000), tmp_path / "log.db"
    before = EmbeddedBroker(path)
    await before.start()
    await before.ensure_topics([topic])
    member = before.subscribe(["t"], "confirm")
    await member.start()
    await before.publish_many("t", [message(str(number)) for number in range(3)])
    assert values(await read(member, 3)) == ["0", "1", "2"]
    await member.commit({Partition("t", 0): 1})
    await before.stop()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE groups SET seen_s = seen_s - ?", (400 * 86_400,))
    after = EmbeddedBroker(path, clock=DrivenClock(datetime.now(UTC) + timedelta(days=400)))
    await after.start()

    async def is_over() -> bool:
        """What was committed is deleted: the pass was there."""
        with closing(sqlite3.connect(path)) as connection:
            return bool(connection.execute("SELECT first_offset FROM partitions").fetchone()[0])

    await eventually(is_over)
    again = after.subscribe(["t"], "confirm")
    await again.start()
    assert values(await read(again, 2)) == ["1", "2"]
    await after.stop()
