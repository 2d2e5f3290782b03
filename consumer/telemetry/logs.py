"""Logs: structlog to stderr, JSON or console, every line redacted; libraries' own logging goes the same way."""

from __future__ import annotations

import atexit
import json
import logging
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any, Literal, TextIO, cast

import orjson
import structlog
from structlog.typing import Processor, WrappedLogger

from consumer.document import printable, printable_json
from consumer.errors import ConsumerError, code_of
from consumer.retry import Lasting
from consumer.telemetry.redaction import redacted_fields

LogFormat = Literal["json", "console", "auto"]
Grade = Literal["warning", "error"]
# Libraries whose chatter helps nobody, or whose lines hold statements, addresses and bytes that somebody sent.
_QUIET = ("aiohttp", "aiokafka", "alembic", "asyncio", "sqlalchemy", "aiosqlite", "urllib3")
# What these say, a command that does one thing says itself, in the one line of its error (contract, Commands).
_SAID_BY_COMMANDS = ("aiokafka",)
_WARNINGS = "py"  # where `logging.captureWarnings` sends them
LIBRARY_SAYS = "library_says"
_NEVER = logging.CRITICAL + 1
REPEAT_EVERY_S = 30.0
REMEMBERED_MAX = 256
QUEUED_MAX = 10_000
QUEUED_BYTES = 16 * 1024 * 1024
AT_ONCE_BYTES = select.PIPE_BUF
"""So much the kernel writes whole, or not yet: several processes share the pipe, and their lines do not mix."""
TURN_EVERY, TURN_S = 250, 0.0005
"""Each time so many more lines wait, who logs gives the thread that writes them its turn. An event loop that is never
idle gives none: of 100,000 lines 90,000 were lost, and their reader was there. 20 ms in all, where he stands still."""
SETTLE_S = 2.0

Fields = Callable[[], Mapping[str, Any]]
Line = tuple[bytes, int]  # and how many lost ones it tells of
Queue = SimpleQueue[Line | Event]
_told: ContextVar[Fields | None] = ContextVar("told_of_each_line", default=None)


class LineFields:
    """Inside, each line of this task has these fields, and not those of one around it. They are made for a line that is
    written: thousands of events a second go by without one. What a handler's author binds and leaves behind does not
    hide them."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields

    def __enter__(self) -> None:
        self._token = _told.set(self._fields)

    def __exit__(self, *_: object) -> None:
        _told.reset(self._token)


class LogStream:
    """Where lines go. One that `target` does not take (its disk is full, who read it is gone) is lost and counted, and
    nothing else comes of it: no order waits for a log. `untold`: those lost since the last one that was taken."""

    def __init__(self, target: TextIO) -> None:
        self._target = target
        self.lost = 0
        self.untold = 0

    def write(self, text: str) -> int:
        """A line."""
        try:
            self._target.write(text)
            self._target.flush()
        except (OSError, ValueError):  # ValueError: it is closed
            self.lost += 1
            self.untold += 1
        else:
            self.untold = 0
        return len(text)

    def flush(self) -> None:
        """Each line is flushed as it is written."""

    def settled(self) -> bool:
        """Whether each line so far is written, or lost; waits for that for a while."""
        return True

    def forked(self) -> None:
        """To be called in a process that was forked: what the other lost, the other tells."""
        self.lost = self.untold = 0


class QueuedStream(LogStream):
    """The same to a pipe, a socket or a terminal, whose reader may stand still for as long as he likes: a thread of its
    own waits for him, and what is more than QUEUED_MAX lines, or QUEUED_BYTES, is lost. `descriptor`: of `target`, past
    whose buffer it goes: Python's end waits for nobody who holds that. A fork writes there by itself, without a thread:
    it may end at any time (`os._exit`, as `multiprocessing` ends each), and its lines are written by then."""

    def __init__(self, target: TextIO, descriptor: int) -> None:
        super().__init__(target)
        self._descriptor = descriptor
        self._encoding = target.encoding or "utf-8"
        queue: Queue = SimpleQueue()  # also of a finalizer that logs within
        self._queue: Queue | None = queue
        self._queued_bytes = 0
        Thread(target=self._write_on, args=(queue,), daemon=True, name="log").start()

    def forked(self) -> None:
        """To be called in a process that was forked."""
        super().forked()
        self._queue = None

    def write(self, text: str) -> int:
        """A line."""
        waiting = 0 if self._queue is None else self._queue.qsize()
        if self._queue is not None and (waiting >= QUEUED_MAX or self._queued_bytes >= QUEUED_BYTES):
            self.lost += 1
            self.untold += 1
            return len(text)
        told, self.untold = self.untold, 0
        line = text.encode(self._encoding, "backslashreplace")
        if self._queue is None:
            self._is_torn_by([(line, told)])
        else:
            size = len(line)
            self._queued_bytes += size
            self._queue.put((line, told))
            if waiting % TURN_EVERY == TURN_EVERY - 1:
                time.sleep(TURN_S)
        return len(text)

    def settled(self) -> bool:
        """Whether each line so far is written, or lost; waits for that for SETTLE_S seconds at most."""
        if self._queue is None:
            return True
        reached = Event()
        self._queue.put(reached)
        return reached.wait(SETTLE_S)

    def _write_on(self, queue: Queue) -> None:
        is_torn = False
        found: Line | Event | None = None
        while True:
            if found is None:
                found = queue.get()
            lines: list[Line] = []
            size = int(is_torn)
            while not isinstance(found, Event | None):
                length = len(found[0])
                if lines and size + length > AT_ONCE_BYTES:
                    break
                lines.append(found)
                size += length
                self._queued_bytes -= length
                try:
                    found = queue.get_nowait()
                except Empty:
                    found = None
                    self._queued_bytes = 0  # threads that count at the same time may miscount, and not for long
            if lines and is_torn:
                lines[0] = (b"\n" + lines[0][0], lines[0][1])
            if lines:
                is_torn = self._is_torn_by(lines)
            if isinstance(found, Event):
                found.set()
                found = None

    def _is_torn_by(self, lines: Sequence[Line]) -> bool:
        """Write these, wait for as long as it takes, and count what is lost. Whether half a line is written."""
        waiting = memoryview(b"".join(line for line, _ in lines))
        sent, size = 0, len(waiting)
        try:
            while sent < size:
                try:
                    sent += os.write(self._descriptor, waiting[sent:])
                except BlockingIOError:  # who shares it made it so
                    select.select([], [self._descriptor], [])
        except (OSError, ValueError):
            ends = list(accumulate(len(line) for line, _ in lines))
            unwritten = [told for end, (_, told) in zip(ends, lines, strict=True) if end > sent]
            self.lost += len(unwritten)
            self.untold += len(unwritten) + sum(unwritten)
            return sent > 0 and sent not in ends
        return False


def _stream(target: TextIO, *, is_waited_for: bool) -> LogStream:
    """`is_waited_for`: a command's own reader is; a file or a disk takes a line, or refuses it."""
    try:
        descriptor = target.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError):  # in memory, or closed
        return LogStream(target)
    may_stand_still = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)
    return QueuedStream(target, descriptor) if may_stand_still and not is_waited_for else LogStream(target)


_lines = LogStream(sys.stderr)


def logs_settled() -> bool:
    """Whether each line so far is written, or lost; waits for that for SETTLE_S seconds at most. False: who reads them
    stands still, and so would whoever writes there. To be called before a process ends by itself (`exec`, `_exit`)."""
    return _lines.settled()


atexit.register(logs_settled)
os.register_at_fork(after_in_child=lambda: _lines.forked())


def configure_logging(
    level: str = "info",
    format: LogFormat = "auto",  # noqa: A002 - the setting's word
    stream: TextIO | None = None,
    *,
    one_shot: bool = False,
    who: Mapping[str, str | int] | None = None,
) -> None:
    """Send all logging of this process to `stream` (stderr). Called once by the CLI; may be called again.

    `level`: debug, info, warning or error. `format`: `json` is one object per line, `console` is for eyes, `auto`
    takes `console` on a terminal. Context is bound with `LineFields` or `structlog.contextvars`. `one_shot`: the
    process is a command that does one thing and ends; what libraries say of its failure is written at debug only.
    `who`: fields of every line that has no word of its own for them (role, pid, version).
    """
    global _lines
    target = stream if stream is not None else sys.stderr
    _lines.settled()
    _lines = _stream(target, is_waited_for=one_shot)
    console = format == "console" or (format == "auto" and target.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    before: list[Processor] = [
        _as_told,
        structlog.contextvars.merge_contextvars,
        _of_one,
        _signed(who or {}),
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        _with_lost,
    ]
    after: list[Processor] = [redact, *([_for_eyes] if console else [])]
    after.append(_renderer(console=console, colors=console and target.isatty()))
    structlog.configure(
        processors=[*before, *after],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _lines)),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(_lines)
    handler.addFilter(Seldom())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, _as_a_field, *before],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *after],
        )
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(number)
    for name in _QUIET:
        said = one_shot and number > logging.DEBUG and name in _SAID_BY_COMMANDS
        logging.getLogger(name).setLevel(_NEVER if said else max(number, logging.WARNING))
    logging.captureWarnings(capture=True)


class Seldom(logging.Filter):
    """Lets a library say the same line once in REPEAT_EVERY_S seconds: aiokafka tells twice a second, for hours, that
    a broker is away, which our own line says already. The next line tells how many were left out. Ours all pass."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._said: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        if record.name.partition(".")[0] not in _QUIET:
            return True
        try:
            line = (record.name, record.getMessage())
        except Exception:  # noqa: BLE001 - a line that cannot be made is the handler's to report, as it always was
            return True
        now = self._monotonic()
        last, unsaid = self._said.pop(line, (None, 0))
        if last is not None and now - last < REPEAT_EVERY_S:
            self._said[line] = (last, unsaid + 1)
            return False
        while len(self._said) >= REMEMBERED_MAX:
            del self._said[next(iter(self._said))]
        self._said[line] = (now, 0)
        if unsaid:
            record.msg, record.args = f"{line[1]} (and {unsaid} times before)", None
        return True


class Condition:
    """What lasts is said once, then at growing intervals, and its end is said. `event`: the stable word of its lines,
    `fields` what is on each; its end is `EVENT_over`. `level`: `warning`, or `error` where somebody has to act.
    `monotonic`: the clock that tells how long. `quiet_s`: for what ends by nothing more coming, so long as that."""

    def __init__(
        self,
        event: str,
        *,
        level: Grade = "warning",
        monotonic: Callable[[], float] = time.monotonic,
        quiet_s: float | None = None,
        **fields: Any,
    ) -> None:
        self._event = event
        self._level: Grade = level
        self._lasting = Lasting(monotonic)
        self._quiet_s = quiet_s
        self._log = structlog.get_logger(__name__, **fields)

    def lasts(self, why: BaseException | str, *, level: Grade | None = None, **fields: Any) -> None:
        """It is so (still), because of this error, or for what this code says; `fields` and `level` are of this line
        alone. `times` on it: how often it was so since it began."""
        self.lapse()
        code = why if isinstance(why, str) else code_of(why)
        if self._lasting.says(code):
            if not isinstance(why, str):
                fields["reason"] = why.message if isinstance(why, ConsumerError) else None
            say = self._log.error if (level or self._level) == "error" else self._log.warning
            say(self._event, code=code, for_s=self._lasting.for_s, times=self._lasting.times, **fields)

    def over(self, **fields: Any) -> None:
        """It is not so, any more; `fields` are on this line alone."""
        if (was := self._lasting.code) is not None:
            told = {"was": was, "after_s": self._lasting.for_s, "times": self._lasting.times}
            self._log.info(f"{self._event}_over", **told, **fields)
        self._lasting.over()

    @contextmanager
    def tried(self, *refused: type[Exception]) -> Iterator[None]:
        """What is tried within. Where it ends with one of these errors, it is so (still), and nobody else hears of it;
        else it is over."""
        try:
            yield
        except refused as error:
            self.lasts(error)
        else:
            self.over()

    def lapse(self) -> bool:
        """Over, where it was not so for `quiet_s` seconds; to be asked now and then, since nothing else tells that
        end. Whether it is over."""
        if self._quiet_s is not None and self._lasting.unseen_s >= self._quiet_s:
            self.over()
        return self._lasting.code is None


def _signed(who: Mapping[str, str | int]) -> Processor:
    """The processor that says on each line which process wrote it."""

    def sign(_: WrappedLogger, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for name, value in who.items():
            event.setdefault(name, value)
        return event

    return sign


def _as_a_field(_: WrappedLogger, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The processor that puts a library's sentence into `said`: what happened is a stable word. Authors of plugins, who
    may log by `logging`, name their own."""
    if event["logger"].partition(".")[0] in (*_QUIET, _WARNINGS):
        event["event"], event["said"] = LIBRARY_SAYS, event["event"]
    return event


def _as_told(_: WrappedLogger, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The processor that adds what `LineFields` says, where the line has no word of its own for it."""
    fields = _told.get()
    return event if fields is None else {**fields(), **event}


def _of_one(_: WrappedLogger, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The processor that keeps the traces of others off a line that is about one event of many."""
    if "trace_id" in event and "trace_ids" in event:
        del event["trace_ids"], event["of_events"]
    return event


def _with_lost(_: WrappedLogger, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The processor that says on the first line that is written again how many were not."""
    if _lines.untold:
        event["lines_lost"] = _lines.untold
    return event


def lines_lost() -> int:
    """How many lines of this process could not be written."""
    return _lines.lost


def redact(_: WrappedLogger, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The processor that masks secrets and personal data in a line, its exception text included."""
    return redacted_fields(event)


def _for_eyes(_: WrappedLogger, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The processor that makes every text printable, line by line: a terminal obeys what others wrote."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = "\n".join(printable(line) for line in value.split("\n"))
    return event


def _renderer(*, console: bool, colors: bool) -> Processor:
    if console:
        return structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
    return structlog.processors.JSONRenderer(serializer=_json)


def _json(value: Any, **_: Any) -> str:
    try:
        line = orjson.dumps(value, default=str)
        text = line.decode()  # who looks at it looks by a terminal, which obeys more than what JSON escapes
        return text if text.isprintable() else printable_json(line).decode()
    except TypeError:  # lone surrogates, integers over 64 bits: a log line must never be an accident
        return json.dumps(value, default=str)
