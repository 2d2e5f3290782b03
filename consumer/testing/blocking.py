"""Blocking: finds a handler that holds its event loop, by driving it step by step beside a thread that looks on."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from consumer.work.place import Home, Place, place_on_stack

HELD_S = 0.4
LOOK_S = 0.05
LOOKS_MIN = 5
"""So often the onlooker must have had its turn meanwhile: else it is the machine that stands still, not the handler."""


class Steps:
    """Awaits a handler's coroutine; `held` is where a step took too long, and how long so far."""

    def __init__(self, work: Coroutine[Any, Any, Any], home: Home, found: Callable[[Place, float], None]) -> None:
        self._work = work
        self._home = home
        self._found = found
        self._began: float | None = None
        self._over = threading.Event()

    def __await__(self) -> Generator[Any, Any, Any]:
        threading.Thread(target=self._look, args=(threading.get_ident(),), name="kit-onlooker", daemon=True).start()
        try:
            return (yield from self._drive())
        finally:
            self._over.set()

    def _drive(self) -> Generator[Any, Any, Any]:
        error: BaseException | None = None
        while True:
            self._began = time.monotonic()
            try:
                wanted = self._work.send(None) if error is None else self._work.throw(error)
            except StopIteration as end:
                return end.value
            finally:
                self._began = None
            error = None
            try:
                yield wanted
            except BaseException as raised:  # noqa: BLE001 - a cancellation goes to the handler, as without us
                error = raised

    def _look(self, thread: int) -> None:
        step, looks = None, 0
        while not self._over.wait(LOOK_S):
            began = self._began
            looks = looks + 1 if began is not None and began == step else 0
            step = began
            if began is None or looks < LOOKS_MIN or time.monotonic() - began < HELD_S:
                continue
            place = place_on_stack(sys._current_frames().get(thread), self._home)
            self._found(place or self._home.start, time.monotonic() - began)
            return
