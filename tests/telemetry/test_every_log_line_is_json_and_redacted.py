"""Logs: one JSON object per line on the stream, context included, everything redacted, libraries included."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator

import pytest
import structlog

from consumer.telemetry.logs import REMEMBERED_MAX, REPEAT_EVERY_S, LineFields, Seldom, configure_logging


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


class Odd:
    """Something whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_level_time_and_context(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream)
    with structlog.contextvars.bound_contextvars(event_id="evt_1"):
        structlog.get_logger("x").info("accepted", application="shop")
    structlog.get_logger("x").debug("unseen")
    [line] = lines(stream)
    assert line["event"] == "accepted"
    assert (line["event_id"], line["application"], line["level"]) == ("evt_1", "shop", "info")
    assert str(line["at"]).endswith("Z")


def test_what_an_author_binds_and_leaves_behind_hides_no_events_own_fields(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream)
    structlog.contextvars.bind_contextvars(event_id="evt_1", shop="north")
    made: list[str] = []

    def fields() -> dict[str, str]:
        made.append("evt_2")
        return {"event_id": "evt_2", "trace_id": "t2"}

    with LineFields(fields):
        structlog.get_logger("x").debug("unseen")
        assert made == [], "nothing is made for a line that nobody writes"
        structlog.get_logger("x").info("handled")
        structlog.get_logger("x").info("of_another", event_id="evt_3")
        logging.getLogger("library").warning("said")
    structlog.get_logger("x").info("later")
    handled, other, library, later = lines(stream)
    assert [(one["event_id"], one["trace_id"], one["shop"]) for one in (handled, library)] == [
        ("evt_2", "t2", "north")
    ] * 2
    assert (other["event_id"], "trace_id" in later) == ("evt_3", False)


def test_secrets_are_masked_in_fields_messages_and_exceptions(stream: io.StringIO) -> None:
    # case: I25, S9
    configure_logging("info", "json", stream)
    log = structlog.get_logger("x")
    try:
        raise ValueError("refused svc_sk_live_hush1 of ada-hush2@example.com")
    except ValueError:
        log.exception("failed whsec_hush3", authorization="hush4", body=b"hush5", customer_email="hush6")
    text = stream.getvalue()
    assert "ValueError" in text
    assert "hush" not in text


@pytest.mark.parametrize(
    ("level", "one_shot", "said"), [("info", True, 0), ("error", True, 0), ("debug", True, 1), ("info", False, 1)]
)
def test_a_command_says_itself_why_it_failed_and_a_role_tells_what_the_library_says(
    stream: io.StringIO, level: str, one_shot: bool, said: int
) -> None:
    # case: I25
    configure_logging(level, "json", stream, one_shot=one_shot)
    logging.getLogger("aiokafka").error('Unable connect to "%s:%s"', "kafka-1", 9092)
    logging.getLogger("aiokafka.cluster").error("Topic %s not found", "t")
    logging.getLogger("aiokafka.cluster").info("unseen")
    assert len(lines(stream)) == 2 * said
    logging.getLogger("some.library").error("told always")
    configure_logging("info", "json", stream)
    logging.getLogger("aiokafka").error("told again")
    assert [line["event"] for line in lines(stream)[2 * said :]] == ["told always", "library_says"]
    assert lines(stream)[-1]["said"] == "told again"


def test_the_logging_of_libraries_goes_the_same_way(stream: io.StringIO) -> None:
    # case: I25
    configure_logging("info", "json", stream)
    try:
        raise OSError("postgresql://u:hush@db")
    except OSError:
        logging.getLogger("some.library").warning("Basic %s", "hushhush", exc_info=True)
    logging.getLogger("some.library").debug("unseen")
    logging.getLogger("aiokafka.consumer").info("unseen")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("a warning", stacklevel=1)
    first, second = lines(stream)
    assert (first["logger"], first["level"]) == ("some.library", "warning")
    assert (second["event"], "a warning" in str(second["said"])) == ("library_says", True)
    assert "hush" not in stream.getvalue()


@pytest.mark.parametrize("name", ["aiokafka.conn", "asyncio", "sqlalchemy.pool.impl"])
def test_what_a_library_says_is_a_field_of_a_stable_word_and_redacted(stream: io.StringIO, name: str) -> None:
    # case: I25
    configure_logging("info", "json", stream)
    logging.getLogger(name).error("Unable to connect to %s", "postgresql://u:hush@db")
    logging.getLogger("warehouse").error("an author's own")
    first, second = lines(stream)
    assert (first["event"], first["logger"]) == ("library_says", name)
    assert str(first["said"]).startswith("Unable to connect to")
    assert (second["event"], "said" in second) == ("an author's own", False)
    assert "hush" not in stream.getvalue()


def test_console_lines_are_redacted_too(stream: io.StringIO) -> None:
    configure_logging("debug", "console", stream)
    structlog.get_logger("x").warning("failed", token="hush", url="https://u:hush@x")
    assert "failed" in stream.getvalue()
    assert "hush" not in stream.getvalue()


def test_a_terminal_obeys_nothing_that_others_wrote(stream: io.StringIO) -> None:
    # case: I25
    configure_logging("debug", "console", stream)
    structlog.get_logger("x").warning("object_unreadable", object_id="cs_\x1b[2J\u202e1", reason="one\rtwo")
    logging.getLogger("some.library").error("said \x1b[31m")
    assert "\\x1b[2J\\u202e1" in stream.getvalue()
    assert not {"\x1b", "\u202e", "\r"} & set(stream.getvalue())


def test_auto_means_json_without_a_terminal_and_no_value_breaks_a_line(stream: io.StringIO) -> None:
    configure_logging("info", "auto", stream)
    structlog.get_logger("x").info("one", odd=Odd(), number=2**80, text="\ud800")
    assert lines(stream)[0]["event"] == "one"


def test_configuring_again_replaces_and_does_not_double(stream: io.StringIO) -> None:
    configure_logging("info", "json", io.StringIO())
    configure_logging("info", "json", stream)
    logging.getLogger("some.library").warning("once")
    assert len(lines(stream)) == 1


def said(name: str, message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, __file__, 1, message, args, None)


def test_a_library_repeats_itself_seldom_and_says_how_often_it_would_have() -> None:
    now = 0.0
    seldom = Seldom(lambda: now)
    away = ("aiokafka", 'Unable connect to "%s:%s"', "kafka-1", 9092)
    assert [seldom.filter(said(*away)) for _ in range(20)] == [True, *[False] * 19]
    assert seldom.filter(said(*away[:2], "kafka-2", 9092)), "another line is another matter"
    now = REPEAT_EVERY_S
    again = said(*away)
    assert seldom.filter(again)
    assert again.getMessage() == 'Unable connect to "kafka-1:9092" (and 19 times before)'
    assert not seldom.filter(said(*away))


def test_our_own_lines_and_lines_that_cannot_be_made_are_not_held_back() -> None:
    seldom = Seldom()
    assert all(seldom.filter(said("consumer.broker.kafka.broker", "away")) for _ in range(3))
    assert all(seldom.filter(said("aiokafka", "%s", Odd())) for _ in range(3))


def test_what_libraries_said_is_remembered_within_bounds() -> None:
    seldom = Seldom(lambda: 0.0)
    for number in range(REMEMBERED_MAX + 1):
        assert seldom.filter(said("aiokafka", "line %d", number))
    assert seldom.filter(said("aiokafka", "line %d", 0)), "the oldest is forgotten first"
    assert not seldom.filter(said("aiokafka", "line %d", REMEMBERED_MAX))


def test_a_line_of_json_moves_no_terminal(stream: io.StringIO) -> None:
    odd = "A\x9b2J\u202eB\x7f\u2028C\x1b[2J"
    configure_logging("info", "json", stream)
    structlog.get_logger("x").info("accepted", order_id=odd)
    assert stream.getvalue().rstrip("\n").isprintable()
    assert lines(stream)[0]["order_id"] == odd
