"""A step of the group that took longer than was waited for may have been done all the same: the member finds out, and
reads what is its own. A disk that stands still for seconds must not leave partitions that nobody reads."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from consumer.broker import Message, TopicConfig
from consumer.broker.base import next_offsets
from consumer.broker.embedded import claims
from consumer.broker.embedded.broker import EmbeddedBroker
from consumer.errors import BrokerUnavailable
from tests.support.ports import eventually

TOPIC = TopicConfig(name="t", partitions=4, retention_s=None, max_record_bytes=10_000)


def unheard_once(monkeypatch: pytest.MonkeyPatch, member: Any, step: Any) -> list[str]:
    """The next time the file is written so, it is, and nobody hears of it."""
    real, done = member._file.write, list[str]()

    async def write(given: partial[Any], *rest: Any) -> Any:
        found = await real(given, *rest)
        if given.func is step and not done:
            done.append(step.__name__)
            raise BrokerUnavailable("no answer in time")
        return found

    monkeypatch.setattr(member._file, "write", write)
    return done


# case: G5
async def test_what_was_taken_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = EmbeddedBroker(tmp_path / "log.db")
    await broker.start()
    await broker.ensure_topics([TOPIC])
    member = broker.subscribe(["t"], "work")
    done = unheard_once(monkeypatch, member, claims.take)
    await member.start()
    await eventually(lambda: len(member.assignment()) == 4, within_s=20)
    assert done == ["take"]
    for number in range(8):
        await broker.publish("t", Message(key=f"k{number}".encode(), value=b"v"))
    found: list[Any] = []
    while len(found) < 8:
        found += await member.poll(100, 5.0)
    assert await member.commit(next_offsets(found)), "they are its own"
    await broker.stop()


# case: G5
async def test_what_was_let_go_and_comes_back_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = EmbeddedBroker(tmp_path / "log.db")
    await broker.start()
    await broker.ensure_topics([TOPIC])
    first = broker.subscribe(["t"], "work")
    await first.start()
    await eventually(lambda: len(first.assignment()) == 4, within_s=20)
    done = unheard_once(monkeypatch, first, claims.release)
    second = broker.subscribe(["t"], "work")
    await second.start()
    await eventually(lambda: len(second.assignment()) == 2, within_s=20)
    assert done == ["release"]
    await second.stop()
    await eventually(lambda: len(first.assignment()) == 4, within_s=20)
    await broker.stop()
