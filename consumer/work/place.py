"""Place: where in an author's own code something happened: file, line, function; never a value. Pure."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

from consumer.telemetry.redaction import scrub

PLACES_MAX = 8
FILE_MAX_CHARS = 120
FUNCTION_MAX_CHARS = 80
_LIBRARIES = ("/site-packages/", "/dist-packages/")


@dataclass(frozen=True)
class Place:
    """One line of an author's code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Home:
    """Where an author's code lives: the top package of a function, the folder of its file, and the function itself."""

    package: str
    folder: str
    start: Place

    def has(self, frame: FrameType) -> bool:
        """Whether the code that runs there is the author's."""
        file = frame.f_code.co_filename
        if self.package and _package(str(frame.f_globals.get("__name__", ""))) == self.package:
            return True
        return bool(self.folder) and file.startswith(self.folder) and not any(part in file for part in _LIBRARIES)


def home_of(function: Callable[..., Any]) -> Home:
    """Where a handler lives."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    file = code.co_filename if code is not None else ""
    folder = str(Path(file).parent) + "/" if file.startswith("/") else ""
    start = Place(shown(file), code.co_firstlineno if code is not None else 0, function.__qualname__)
    return Home(_package(function.__module__ or ""), folder, start)


def places_of(error: BaseException, home: Home) -> tuple[Place, ...]:
    """The author's lines that an error came through, outermost first; without any, those of what caused it."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        if found := [_place(frame, line) for frame, line in _frames(at.__traceback__) if home.has(frame)]:
            return tuple(found[-PLACES_MAX:])
        at = at.__cause__ or at.__context__
    return ()


def place_on_stack(frame: FrameType | None, home: Home) -> Place | None:
    """The innermost of the author's lines that this frame was called from."""
    while frame is not None:
        if home.has(frame):
            return _place(frame, frame.f_lineno)
        frame = frame.f_back
    return None


def place_of_waiting(work: Any, home: Home) -> Place | None:
    """The innermost of the author's lines at which a coroutine waits; None while it runs."""
    found = None
    while work is not None:
        frame = getattr(work, "cr_frame", None) or getattr(work, "gi_frame", None)
        if frame is not None and home.has(frame):
            found = _place(frame, frame.f_lineno)
        work = getattr(work, "cr_await", None) or getattr(work, "gi_yieldfrom", None)
    return found


def place_at(code: CodeType, line: int) -> Place:
    """This line of this code."""
    return Place(shown(code.co_filename), line, getattr(code, "co_qualname", code.co_name)[:FUNCTION_MAX_CHARS])


def place_of_import(error: BaseException, package: str) -> Place | None:
    """Where the import of a package failed: its innermost line, or the line that a syntax error names."""
    if isinstance(error, SyntaxError) and error.filename:
        return Place(shown(error.filename), error.lineno or 0, "<module>")
    inside = [
        (frame, line)
        for frame, line in _frames(error.__traceback__)
        if _package(str(frame.f_globals.get("__name__", ""))) == package
    ]
    return _place(*inside[-1]) if inside else None


def told_import(error: BaseException, modules: Iterable[str], most: int) -> str:
    """Why modules of these names could not be imported, in one line of at most so many characters, with the author's
    file and line where it broke. What an author's code raises may hold what it connects with: secrets are masked; and
    it may not be shown at all."""
    places = (place_of_import(error, module.partition(":")[0].partition(".")[0]) for module in modules)
    place = next((one for one in places if one is not None), None)
    try:
        said = str(error.msg if isinstance(error, SyntaxError) else error)
    except Exception as odd:  # noqa: BLE001 - its text is the author's own code
        said = f"cannot be shown: {type(odd).__name__}"
    at = f" (at {place.file}:{place.line})" if place is not None else ""
    return f"{type(error).__name__}: {scrub(said)}"[: most - len(at)].replace("\n", " ") + at


def told(places: Iterable[Place]) -> str:
    """Places as one line of text, as the ledger keeps them: the innermost first."""
    return " < ".join(str(place) for place in reversed(tuple(places)))


def shown(file: str) -> str:
    """A file as an author knows it: below the folder of the process, or of the installed packages."""
    for part in _LIBRARIES:
        if part in file:
            return file.rpartition(part)[2][-FILE_MAX_CHARS:]
    here = str(Path.cwd()) + "/"
    return file.removeprefix(here)[-FILE_MAX_CHARS:]


def _frames(trace: TracebackType | None) -> Iterable[tuple[FrameType, int]]:
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _place(frame: FrameType, line: int) -> Place:
    return place_at(frame.f_code, line)


def _package(module: str) -> str:
    top = module.partition(".")[0]
    return top if top not in sys.stdlib_module_names else ""
