"""Simulating: histories of a handler, played by several processes; what is told does not hang on how many they are."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib import import_module
from multiprocessing.sharedctypes import Synchronized
from typing import Any, get_args

from consumer.settings.fields import LogLevel
from consumer.telemetry.logs import configure_logging
from consumer.testing.assertions import Given
from consumer.testing.ground import Ground
from consumer.testing.simulation import History, Player, histories, shrunk, simulate
from consumer.testing.workbench import Function

PROCESSES_MAX = 4
WORTH_IT = 200
"""Fewer histories are played before a second process has started."""

Name = tuple[str, str]
"""A module, and a function of it."""

_first: Synchronized[int]


def processes() -> int:
    """One for each processor that this process may use, at most four."""
    return min(PROCESSES_MAX, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def simulated(
    handler: Function, *, runs: int, seed: int, options: Mapping[str, Any], parts: int, given: Given | None = None
) -> History | None:
    """As `simulate`, in so many processes. What no other process can import is played in this one."""
    is_there = all(one is None or _imported(*_name_of(one)) is one for one in (handler, given))
    if parts == 1 or runs < WORTH_IT or not is_there:
        return simulate(handler, runs=runs, seed=seed, options=options, given=given)
    number = _first_failing(handler, runs, seed, options, parts, given)
    if number is None:
        return None
    with Ground() as ground:
        player = Player(handler, options, ground, given)
        history = list(histories(handler, runs=number + 1, seed=seed))[number]
        told = player.play(history)
        if told is None:
            # It failed in a process that had played others before: this one may fail as it did, after the same.
            return simulate(handler, runs=runs, seed=seed, options=options, given=given)
        return shrunk(player, replace(history, tells=told))


def _first_failing(
    handler: Function, runs: int, seed: int, options: Mapping[str, Any], parts: int, given: Given | None
) -> int | None:
    context = multiprocessing.get_context("spawn")
    first = context.Value("l", runs)
    level = os.environ.get("CONSUMER_LOG_LEVEL", "info").lower()
    level = level if level in get_args(LogLevel) else "info"
    with ProcessPoolExecutor(parts, mp_context=context, initializer=_begin, initargs=(first, level)) as pool:
        names = (_name_of(handler), None if given is None else _name_of(given))
        waiting = [pool.submit(_play, *names, runs, seed, dict(options), part, parts) for part in range(parts)]
        for one in waiting:
            one.result()
    return first.value if first.value < runs else None


def _begin(first: Synchronized[int], level: str) -> None:
    global _first
    _first = first
    configure_logging(level, one_shot=True)


def _play(
    name: Name, begins: Name | None, runs: int, seed: int, options: Mapping[str, Any], part: int, parts: int
) -> None:
    """Every so many-th history, until one fails, or an earlier one has failed elsewhere."""
    handler = _imported(*name)
    with Ground() as ground:
        player = Player(handler, options, ground, None if begins is None else _imported(*begins))
        for number, history in enumerate(histories(handler, runs=runs, seed=seed)):
            if number > _first.value:
                return
            if number % parts == part and player.play(history) is not None:
                with _first.get_lock():
                    _first.value = min(_first.value, number)
                return


def _imported(module: str, name: str) -> Any:
    return getattr(import_module(module), name, None)


def _name_of(function: Any) -> Name:
    return function.__module__, function.__qualname__
