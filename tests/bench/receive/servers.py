"""Servers beside each other: `consumer serve` and peers, each in a process of its own that is kept to the first core;
who sends, and Kafka, have the rest."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.load import SECRET
from tests.support.process import ConsumerProcess, ended


@dataclass(frozen=True)
class Server:
    """One that listens."""

    pid: int
    port: int


@contextmanager
def ours_and_bare(folder: Path, kafka_url: str) -> Iterator[tuple[Server, Server]]:
    """`serve` (signature, Kafka, acks=all), and a bare aiohttp handler that only reads the body."""
    cores = sorted(os.sched_getaffinity(0))
    with ours(folder, kafka_url) as serve, running([sys.executable, "-m", "tests.bench.receive.bare"]) as bare:
        found = serve, Server(bare.pid, int(line(bare)))
        pin(cores, *(one.pid for one in found))
        yield found


@contextmanager
def ours(folder: Path, kafka_url: str) -> Iterator[Server]:
    """`serve`, with topics of its own."""
    serve = ConsumerProcess("serve", {
        "CONSUMER_BROKER_URL": kafka_url, "CONSUMER_TOPIC_PREFIX": f"bench-{uuid.uuid4().hex[:8]}",
        "CONSUMER_AUTHENTICITY": "signature", "CONSUMER_WEBHOOK_SECRETS": SECRET,
    }, folder)  # fmt: skip
    with ended(serve):
        serve.spawn()
        asyncio.run(serve.ready())
        yield Server(serve.pid, urlsplit(serve.addresses["public_url"]).port or 0)


@contextmanager
def running(words: Sequence[str], environ: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A program in a process of its own, whose lines are read."""
    process = subprocess.Popen(words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=10)


def line(process: subprocess.Popen[str]) -> str:
    """What it says next."""
    assert process.stdout is not None
    return process.stdout.readline()


def pin(cores: Sequence[int], *processes: int) -> None:
    """Keep these to the first core, and this process to the rest."""
    if len(cores) > 1:
        for process in processes:
            os.sched_setaffinity(process, {cores[0]})
        os.sched_setaffinity(0, set(cores[1:]))
