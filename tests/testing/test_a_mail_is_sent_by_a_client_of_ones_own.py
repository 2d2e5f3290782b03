"""The mail of the reference, sent for real: to a mail server on this machine that the kit lets it reach, by name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from email import message_from_string
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from consumer.testing import Refused, Workbench, assert_idempotent
from tests.plugin.test_face import code_blocks

REFERENCE = Path(__file__).resolve().parents[2] / "handlers" / "REFERENCE.md"
LIMIT_S = 10.0


class PostOffice:
    """A mail server that keeps what it is given; `refuses` the next so many mails."""

    def __init__(self) -> None:
        self.mails: list[Message] = []
        self.refuses = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> PostOffice:
        self._thread.start()
        opening = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self._server = opening.result(LIMIT_S)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()

    @property
    def ids(self) -> set[str]:
        """What a mail system that recognises a repetition holds."""
        return {str(mail["Message-ID"]) for mail in self.mails}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers = {b"DATA": b"354 go on", b"QUIT": b"221 bye"}
        writer.write(b"220 post office\r\n")
        while line := await reader.readline():
            verb = line[:4].upper()
            if verb == b"MAIL" and self.refuses:
                self.refuses -= 1
                writer.write(b"451 later\r\n")
                continue
            writer.write(answers.get(verb, b"250 fine") + b"\r\n")
            if verb == b"DATA":
                body = await reader.readuntil(b"\r\n.\r\n")
                self.mails.append(message_from_string(body.decode().replace("\r\n", "\n")))
                writer.write(b"250 kept\r\n")
            if verb == b"QUIT":
                break
        writer.close()


@pytest.fixture
def office() -> Iterator[PostOffice]:
    with PostOffice() as found:
        yield found


@pytest.fixture
def welcome(office: PostOffice) -> Any:
    """The handler, as the reference shows it, with this mail server for its own."""
    (code,) = [block for block in code_blocks(REFERENCE.read_text()) if "smtplib" in block]
    names: dict[str, Any] = {}
    exec(compile(code, "REFERENCE.md", "exec", dont_inherit=True), names)
    names |= {"HOST": "127.0.0.1", "PORT": office.port}
    return names["welcome"]


# case: H11
def test_without_its_name_it_is_refused_and_nothing_is_sent(
    workbench: Workbench, office: PostOffice, welcome: Any
) -> None:
    with pytest.raises(Refused, match=r"connects to 127\.0\.0\.1:\d+ by a client of its own.*allow=\['127\.0\.0\.1'\]"):
        workbench.run(welcome, workbench.event("access.granted", customer="ada"))
    assert office.mails == []


# case: H11
def test_allowed_by_name_it_is_sent_and_tried_again_when_it_was_refused(
    workbench: Workbench, office: PostOffice, welcome: Any
) -> None:
    workbench.allow("127.0.0.1")
    office.refuses = 1
    assert workbench.run(welcome, workbench.event("access.granted", customer="ada")).status == "retrying"
    workbench.advance(60, welcome)
    assert workbench.runs[-1].succeeded
    (mail,) = office.mails
    assert (mail["To"], mail["Subject"]) == ("ada@customers.example", "Welcome")
    assert "You may use default now." in mail.as_string()


# case: H11, G5
def test_every_attempt_has_the_same_message_id(office: PostOffice, welcome: Any) -> None:
    assert_idempotent(welcome, state=lambda: office.ids, reset=office.mails.clear, allow=["127.0.0.1"])
