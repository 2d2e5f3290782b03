"""What is kept of a failure: its kind, one bounded line without secrets, and the author's own lines it came through."""

from __future__ import annotations

import asyncio
import errno
import smtplib
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType

import pytest
from sqlalchemy.exc import DBAPIError

from consumer.errors import HandlerInvalid, HandlerMisuse, HandlerTimeout
from consumer.payments import OrderAlreadyPaid, ServiceUnreachable
from consumer.plugin import Reject, RetryLater
from consumer.plugin.handler import LONGEST_S
from consumer.retry import Failure
from consumer.telemetry.redaction import NAMED_MIN_CHARS, without
from consumer.work.outcome import (
    CODE_MAX_CHARS,
    DEADLOCKED,
    GAVE_WAY,
    GAVE_WAY_S,
    REASON_MAX_CHARS,
    Succeeded,
    failed,
    has_timed_out,
)
from consumer.work.place import (
    FILE_MAX_CHARS,
    FUNCTION_MAX_CHARS,
    PLACES_MAX,
    Home,
    Place,
    home_of,
    place_of_import,
    place_of_waiting,
    place_on_stack,
    places_of,
    shown,
    told,
    told_import,
)
from consumer.work.unreachable import CAUSES_MAX, http_status, is_unreachable

FILE = "tests/work/telling/test_what_is_kept_of_a_failure.py"


class Named(RetryLater):
    """With a code of its own."""

    code = "c" * (CODE_MAX_CHARS + 1)


class Deadlock(Exception):
    """As the driver tells one."""

    sqlstate = "40P01"


FAILURES: list[tuple[BaseException, Failure]] = [
    (RetryLater(30, "not yet"), Failure("retry_later", "not yet", after_s=30.0)),
    (Reject("no such thing"), Failure("rejected", "no such thing", permanent=True)),
    (HandlerMisuse("not here"), Failure("handler_misuse", "not here", permanent=True)),
    (HandlerInvalid("not so"), Failure("handler_invalid", "not so", permanent=True)),
    (ServiceUnreachable("away"), Failure(ServiceUnreachable.code, "away", unreachable=True)),
    (OrderAlreadyPaid("paid"), Failure(OrderAlreadyPaid.code, "paid")),
    (ValueError("bad\namount\0"), Failure("handler_failed", "ValueError: bad amount\ufffd")),
    (ConnectionResetError("gone"), Failure("handler_failed", "ConnectionResetError: gone", unreachable=True)),
    (DBAPIError("UPDATE t", {}, Deadlock()), Failure(GAVE_WAY, DEADLOCKED, after_s=GAVE_WAY_S)),
    (SystemExit(3), Failure("handler_crashed", "the handler raised SystemExit")),
]
AWAY = Failure("handler_failed", "ConnectionResetError: gone", unreachable=True)
GATHERED: list[tuple[list[Exception], Failure]] = [
    ([ConnectionResetError("gone")], AWAY),
    ([RetryLater(30, "not yet"), ConnectionResetError("gone")], AWAY),
    ([ConnectionResetError("gone"), ValueError("bad")], Failure("handler_failed", "ValueError: bad")),
    ([ValueError("bad"), ExceptionGroup("inner", [Reject("no such thing")])],
     Failure("rejected", "no such thing", permanent=True)),
    ([RetryLater(30, "not yet")], Failure("retry_later", "not yet", after_s=30.0)),
]  # fmt: skip


@pytest.mark.parametrize(("error", "expected"), FAILURES, ids=lambda one: type(one).__name__)
def test_each_kind_of_error_is_a_failure_of_its_own(error: BaseException, expected: Failure) -> None:
    # case: H3, R10
    assert failed(error).failure == expected


def test_a_deadlock_is_one_also_where_the_handler_caught_it_and_raised_another() -> None:
    # case: I23
    def raised() -> BaseException:
        try:
            try:
                raise DBAPIError("UPDATE t", {}, Deadlock())
            except DBAPIError:
                raise RuntimeError("could not count")  # noqa: B904 - as authors do
        except RuntimeError as error:
            return error

    assert failed(raised()).failure == Failure(GAVE_WAY, DEADLOCKED, after_s=GAVE_WAY_S)
    assert failed(RuntimeError("could not count")).failure.code == "handler_failed"


@pytest.mark.parametrize(("errors", "expected"), GATHERED)
def test_of_what_a_task_group_gathers_the_gravest_counts(errors: list[Exception], expected: Failure) -> None:
    """An outage costs a handler that calls two at once no attempt either; what one of them says is heard."""
    # case: H3, R10, R11
    assert failed(ExceptionGroup("unhandled errors in a TaskGroup", errors)).failure == expected


@pytest.mark.parametrize(("asked", "kept"), [(-5.0, 0.0), (0.5, 0.5), (LONGEST_S, LONGEST_S), (1e15, LONGEST_S)])
def test_a_wait_that_was_asked_for_is_neither_negative_nor_endless(asked: float, kept: float) -> None:
    error = RetryLater(1)
    error.after_s = asked
    assert failed(error).failure.after_s == kept


def test_what_is_stored_fits_its_columns() -> None:
    assert failed(Named(1)).failure.code == "c" * CODE_MAX_CHARS
    assert len(failed(ValueError("word " * 100)).failure.reason) == REASON_MAX_CHARS
    assert len(failed(Reject("word " * 100)).failure.reason) == REASON_MAX_CHARS


def test_a_name_that_is_long_enough_to_be_one_is_left_out_and_only_then() -> None:
    # case: S9
    shortest = "x" * NAMED_MIN_CHARS
    assert without([shortest], f"{shortest} is new") == "[redacted] is new"
    assert without([shortest[1:]], f"{shortest} is new") == f"{shortest} is new"
    assert failed(Reject(f"{shortest} is new")).failure.reason == f"{shortest} is new"


def raised(act: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:
        act()
    return caught.value


def slips(reason: str = "no") -> None:
    raise ValueError(reason)


def trips() -> None:
    raise ValueError("no")


def test_failures_of_one_kind_and_place_are_alike_whatever_they_say() -> None:
    def also(kind: type[Exception]) -> None:
        raise kind("no")

    first = failed(raised(slips))
    assert len(first.fingerprint) == 16
    assert failed(raised(lambda: slips("another reason"))).fingerprint != failed(raised(trips)).fingerprint
    alike = [failed(raised(lambda text=text: slips(text))).fingerprint for text in ("a", "b")]  # type: ignore[misc]  # bound now
    assert len(set(alike)) == 1
    assert failed(raised(lambda: also(KeyError))).fingerprint != failed(raised(lambda: also(ValueError))).fingerprint


def test_only_the_innermost_places_make_the_fingerprint() -> None:
    def deep(levels: int) -> None:
        if not levels:
            raise ValueError("no")
        deep(levels - 1)

    found = [failed(raised(lambda levels=levels: deep(levels))).fingerprint for levels in (1, 2, 5)]  # type: ignore[misc]  # bound now
    assert found[0] != found[1] == found[2]


def test_only_a_handler_that_was_not_done_in_time_has_timed_out() -> None:
    found = [has_timed_out(one) for one in (failed(HandlerTimeout()), failed(TimeoutError()), Succeeded())]
    assert found == [True, False, False]


# --- where ------------------------------------------------------------------------------------------------------


def line_of(function: Callable[..., object], ahead: int = 1) -> str:
    """The place so many lines below where a function begins."""
    return f"{FILE}:{function.__code__.co_firstlineno + ahead} in {function.__qualname__}"


HOME = home_of(slips)
ELSEWHERE = Home("no_such_package", "/no/such/folder/", Place("ship.py", 3, "ship"))


def test_home_is_the_package_the_folder_and_the_first_line() -> None:
    assert Home("tests", str(Path(__file__).parent) + "/", Place(FILE, slips.__code__.co_firstlineno, "slips")) == HOME
    assert home_of(len) == Home("", "", Place("", 0, "len"))


def test_the_trace_is_the_authors_lines_innermost_first_or_where_the_handler_begins() -> None:
    # case: R4
    error = raised(slips)
    assert (failed(error, HOME).trace or "").startswith(line_of(slips) + " < ")
    assert failed(error, ELSEWHERE).trace == "ship.py:3 in ship"
    assert failed(error).trace is None
    assert (failed(HandlerTimeout(), HOME, came_by=error).trace or "").startswith(line_of(slips))


def test_what_came_through_no_line_of_the_authors_names_those_of_its_cause() -> None:
    error, context, alone = ValueError(), ValueError(), ValueError()
    error.__cause__ = context.__context__ = raised(slips)
    alone.__context__ = alone
    for one in (error, context):
        assert str(places_of(one, HOME)[-1]) == line_of(slips)
    assert places_of(alone, HOME) == ()


def test_of_a_deep_fall_the_innermost_places_are_kept() -> None:
    def deep(levels: int) -> None:
        if not levels:
            slips()
        deep(levels - 1)

    found = places_of(raised(lambda: deep(20)), HOME)
    assert len(found) == PLACES_MAX
    assert [str(found[0]), str(found[-1])] == [line_of(deep, 3), line_of(slips)]


def test_the_place_on_a_stack_is_the_innermost_of_the_authors() -> None:
    def seen(home: Home) -> Place | None:
        return place_on_stack(sys._getframe(), home)

    assert str(seen(HOME)) == line_of(seen)
    caller = home_of(pytest.main)  # whoever runs this test is further out
    assert (seen(caller) or HOME.start).file.startswith("_pytest/")
    assert seen(ELSEWHERE) is None
    assert place_on_stack(None, HOME) is None


async def waits() -> None:
    await asyncio.Event().wait()


async def waits_for_it() -> None:
    await waits()


async def test_a_coroutine_that_waits_is_where_its_innermost_line_of_the_authors_is() -> None:
    work = waits_for_it()
    task = asyncio.create_task(work)
    await asyncio.sleep(0)
    assert str(place_of_waiting(work, HOME)) == line_of(waits)
    assert place_of_waiting(work, ELSEWHERE) is None
    assert place_of_waiting(None, HOME) is None
    task.cancel()


def test_code_is_the_authors_by_its_package_or_by_its_folder_but_never_a_librarys() -> None:
    def has(home: Home, file: str, module: str) -> bool:
        found: list[bool] = []
        code = compile("import sys; look(sys._getframe())", file, "exec")
        exec(code, {"__name__": module, "look": lambda frame: found.append(home.has(frame))})
        return found[0]

    home = Home("shop", "/code/", Place("ship.py", 3, "ship"))
    assert has(home, "/lib/site-packages/shop/a.py", "shop.orders")
    assert has(home, "/code/tools.py", "tools")
    assert not has(home, "/other/tools.py", "tools")
    assert not has(home, "/code/site-packages/tools.py", "tools")
    assert not has(home, "/code/dist-packages/tools.py", "tools")
    nowhere = Home("", "", Place("", 0, "ship"))
    assert not has(nowhere, "/code/tools.py", "")
    assert not has(nowhere, "/code/tools.py", "asyncio.tasks")


def test_a_file_is_shown_as_its_author_knows_it() -> None:
    assert shown(str(Path.cwd() / "shop" / "a.py")) == "shop/a.py"
    assert shown("/venv/lib/site-packages/shop/a.py") == "shop/a.py"
    assert shown("/usr/lib/dist-packages/site-packages/shop/a.py") == "shop/a.py"
    assert shown("/" + "d" * FILE_MAX_CHARS) == "d" * FILE_MAX_CHARS
    assert shown("/venv/site-packages/" + "s" * (FILE_MAX_CHARS + 1)) == "s" * FILE_MAX_CHARS
    assert shown("/site-packages/" + "x" + "s" * FILE_MAX_CHARS) == "s" * FILE_MAX_CHARS
    assert told([Place("a.py", 1, "f"), Place("b.py", 2, "g")]) == "b.py:2 in g < a.py:1 in f"


def test_the_name_of_a_function_is_cut() -> None:
    name = "f" * (FUNCTION_MAX_CHARS + 1)
    found: dict[str, Callable[[], None]] = {}
    exec(f"def {name}(): raise ValueError", {"__name__": "tests.made"}, found)
    assert places_of(raised(found[name]), HOME)[-1].function == "f" * FUNCTION_MAX_CHARS


def broken_import(code: str | CodeType, name: str = "shop.orders") -> BaseException:
    return raised(lambda: exec(code, {"__name__": name}))


def test_an_import_that_failed_says_why_and_where_in_one_bounded_line() -> None:
    # case: H8
    error = broken_import(compile("\n\nlevel = lambda: {}['color']\nlevel()", "/code/shop/orders.py", "exec"))
    assert place_of_import(error, "shop") == Place("/code/shop/orders.py", 3, "<lambda>")
    assert place_of_import(error, "stall") is None
    assert told_import(error, ["stall", "shop.orders:ship"], 99) == "KeyError: 'color' (at /code/shop/orders.py:3)"
    assert told_import(error, ["stall"], 99) == "KeyError: 'color'"
    assert told_import(error, ["shop"], 34) == "KeyErr (at /code/shop/orders.py:3)"
    assert told_import(ImportError("no\nsuch"), [], 99) == "ImportError: no such"


def test_an_import_that_failed_tells_no_secret() -> None:
    # case: S9
    said = "RuntimeError: svc_sk_live_hush at postgresql://u:hush@db/x token=hush password='hush' for hush@example.com"
    told = told_import(RuntimeError(said), [], 300)
    assert "hush" not in told
    assert told.startswith("RuntimeError: RuntimeError: svc_sk_live_[redacted] at postgresql://[redacted]@db/x")


def test_a_syntax_error_names_its_own_line() -> None:
    error = raised(lambda: compile("\ndef ship(:", "/code/shop/orders.py", "exec"))
    assert place_of_import(error, "shop") == Place("/code/shop/orders.py", 2, "<module>")
    assert told_import(error, ["shop"], 99) == "SyntaxError: invalid syntax (at /code/shop/orders.py:2)"
    assert place_of_import(SyntaxError("no file"), "shop") is None
    lineless = SyntaxError("odd", ("/code/a.py", None, None, None))
    assert place_of_import(lineless, "shop") == Place("/code/a.py", 0, "<module>")


# --- whether nobody gets through --------------------------------------------------------------------------------


class Answer:
    """What a client's error is about."""

    def __init__(self, **fields: object) -> None:
        vars(self).update(fields)


class AnswerError(Exception):
    """A client's error about an answer."""

    def __init__(self, **fields: object) -> None:
        vars(self).update(fields)


STATUSES: list[tuple[dict[str, object], int | None]] = [
    ({"status": 503}, 503),
    ({"status_code": 100}, 100),
    ({"code": 599}, 599),
    ({"code": 600}, None),
    ({"code": 99}, None),
    ({"status": True}, None),
    ({"status": "503"}, None),
    ({"response": Answer(status_code=429)}, 429),
    ({"code": "x", "response": Answer(status=404)}, 404),
    ({}, None),
]


@pytest.mark.parametrize(("fields", "expected"), STATUSES)
def test_the_status_of_an_answer_is_found_where_clients_put_it(fields: dict[str, object], expected: int | None) -> None:
    assert http_status(AnswerError(**fields)) == expected


class MadeUpTimeout(Exception):
    """By its name alone."""


class Heir(MadeUpTimeout):
    """By its parent's name alone."""


class SMTPException(Exception):
    """As aiosmtplib has it: no OSError, the reply in `code`."""

    def __init__(self, code: int) -> None:
        self.code = code


class NoPicture(OSError):
    """A library's own, as Pillow's."""


REFUSALS: list[tuple[BaseException, bool]] = [
    (AnswerError(status=500), True),
    (AnswerError(status=499), False),
    (AnswerError(status=408), True),
    (MadeUpTimeout(), True),
    (Heir(), True),
    (OSError(errno.ECONNREFUSED, "refused"), True),
    (OSError(errno.EPIPE, "gone"), True),
    (OSError(-2, "no such name"), True),
    (OSError("without a number"), True),
    (OSError(0, "nothing"), False),
    (OSError(errno.EPERM, "not allowed"), False),
    (PermissionError("a file's"), False),
    (NoPicture("cannot identify image file"), False),
    (smtplib.SMTPRecipientsRefused({"nobody@shop.example": (550, b"no such user")}), False),
    (smtplib.SMTPRecipientsRefused({"ada@shop.example": (450, b"busy")}), True),
    (smtplib.SMTPDataError(554, b"refused"), False),
    (smtplib.SMTPAuthenticationError(535, b"who?"), True),
    (smtplib.SMTPResponseException(421, "closing"), True),
    (smtplib.SMTPServerDisconnected("gone"), True),
    (SMTPException(550), False),
    (SMTPException(451), True),
]


@pytest.mark.parametrize(("error", "expected"), REFUSALS, ids=lambda one: repr(one)[:40])
def test_an_error_is_everybodys_or_this_events_alone(error: BaseException, expected: bool) -> None:
    # case: R11
    assert is_unreachable(error) is expected


class Nameless(type):
    """A type that does not even say its name."""

    def __getattribute__(cls, name: str) -> object:
        if name in ("__name__", "__qualname__"):
            raise RuntimeError("no name")
        return super().__getattribute__(name)


class Untold(Exception, metaclass=Nameless): ...


class UntoldExit(BaseException, metaclass=Nameless): ...


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Untold(), Failure("handler_failed", "Untold, which cannot be shown: RuntimeError")),
        (
            ExceptionGroup("two", [Untold()]),
            Failure("handler_failed", "ExceptionGroup, which cannot be shown: RuntimeError"),
        ),
        (UntoldExit(), Failure("handler_failed", "UntoldExit, which cannot be shown: RuntimeError")),
    ],
    ids=["one", "in a group", "an exit"],
)
def test_an_error_whose_type_says_no_name_is_one_all_the_same(error: BaseException, expected: Failure) -> None:
    """It ended the role, and the next one that took its event."""
    assert failed(error).failure == expected


def test_a_crash_is_told_in_so_many_characters() -> None:
    crashed = type("L" * 5000, (BaseException,), {})
    assert len(failed(crashed()).failure.reason) == REASON_MAX_CHARS


@pytest.mark.parametrize(("links", "expected"), [(CAUSES_MAX - 1, True), (CAUSES_MAX, False)])
def test_so_many_causes_are_looked_at(links: int, expected: bool) -> None:
    # case: R11
    error: Exception = ConnectionResetError()
    for _ in range(links):
        outer = ValueError("no")
        outer.__cause__ = error
        error = outer
    assert is_unreachable(error) is expected


def test_failures_are_alike_that_came_through_the_same_functions_of_files_of_the_same_name() -> None:
    def fingerprint(file: str, function: str = "ship") -> str:
        names: dict[str, Callable[[], None]] = {}
        exec(compile(f"def {function}():\n    raise ValueError('no')", file, "exec"), names)
        try:
            names[function]()
        except ValueError as error:
            return failed(error).fingerprint
        raise AssertionError

    here = fingerprint("/srv/shop/ship.py")
    assert fingerprint("/home/other/shop/ship.py") == here, "installed elsewhere"
    assert fingerprint("/srv/shop/post.py") != here
    assert fingerprint("/srv/shop/ship.py", "send") != here
