"""Desk: commands called in this process, as `consumer` would be: the same words, output and exit code, a second sooner
than a process of their own. For commands that look or repair; a role that stays up wants a process."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import structlog

from consumer.cli.entry import run


@dataclass(frozen=True)
class Called:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


class Desk:
    """Where commands are typed. Not inside a running event loop: there, `await asyncio.to_thread(desk.call, ...)`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)

    def call(self, *words: str, **more: str) -> Called:
        """Run one command to its end, with `more` settings."""
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with self._settings(more), _logging_as_it_was(), redirect_stdout(out), redirect_stderr(err):
            code = run(list(words))
        out.seek(0)
        err.seek(0)
        return Called(code, out.read(), err.read())

    def ask(self, *words: str, code: int = 0) -> Any:
        """The JSON that a command prints, or, when it should fail, what it says on stderr; it must end with `code`."""
        done = self.call(*words, "--json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if code == 0 else done.stderr

    @contextmanager
    def _settings(self, more: Mapping[str, str]) -> Iterator[None]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CONSUMER_", "SVC_"))}
        with patch.dict(os.environ, {**kept, **self._environ, **more}, clear=True):
            yield


@contextmanager
def _logging_as_it_was() -> Iterator[None]:
    """A command sets up the logging of its process; this process goes on as before."""
    root = logging.getLogger()
    handlers, level, config = root.handlers[:], root.level, structlog.get_config()
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(capture=False)
        structlog.configure(**config)
