"""`make bench`: ratios against baselines measured in the same run, each with its bar; exit 1 below a bar.

Machines are noisy, so each pair is measured in alternating rounds and the median round counts.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.bench import backlog, effects, latency, looking, main_job, receiving, replaying, working
from tests.bench.job import bare_handlers, grown
from tests.bench.peers import receiving as peers_receiving
from tests.bench.peers import working as peers_working
from tests.bench.plot.drawing import drawing
from tests.bench.processes import backlog_memory, idle, scaling
from tests.bench.ratio import Measured, table
from tests.bench.receive import half_load
from tests.support.kafka import kafka_server
from tests.support.postgres import postgres_server
from tests.support.process import start_from_nothing

ON_POSTGRES: Mapping[str, Callable[[Path, str], Sequence[Measured]]] = {
    "main": main_job.measure,
    "bare": bare_handlers.measure,
    "effects": effects.measure,
    "grown": grown.measure,
    "looking": looking.measure,
    "backlog": backlog.measure,
}
ON_BOTH: Mapping[str, Callable[[Path, str, str], Sequence[Measured]]] = {
    "idle": idle.measure,
    "memory": backlog_memory.measure,
    "latency": latency.measure,
    "peers-work": peers_working.measure,
    "scaling": scaling.measure,
    "work": working.measure,
}
ON_KAFKA: Mapping[str, Callable[[Path, str], Sequence[Measured]]] = {
    "receive": receiving.measure,
    "half-load": half_load.measure,
    "peers-receive": peers_receiving.measure,
}
PARTS = (*ON_POSTGRES, *ON_BOTH, *ON_KAFKA, "replay")


def main() -> int:
    """Measure and print; the exit code."""
    start_from_nothing()
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("only", nargs="*", choices=[*PARTS, []], help="measure these only")
    parser.add_argument("--svg", type=Path, help="draw it into this file, too")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        measured = _measured(Path(folder), asked.only or PARTS)
    sys.stdout.write(f"{table(measured)}load {', '.join(f'{load:.1f}' for load in os.getloadavg())}\n")
    if asked.svg:
        asked.svg.write_text(drawing(measured))
    return 0 if all(one.good for one in measured) else 1


def _measured(folder: Path, chosen: Sequence[str]) -> list[Measured]:
    found: list[Measured] = []
    for name, part in ON_POSTGRES.items():
        if name in chosen:
            with _all_cores(), postgres_server() as postgres:
                found += part(folder, postgres)
    if "replay" in chosen:
        found += replaying.measure(folder)
    if {*ON_KAFKA, *ON_BOTH} & set(chosen):
        with kafka_server(folder / "kafka") as kafka:
            for name, part in ON_KAFKA.items():
                if name in chosen:
                    with _all_cores():
                        found += part(folder, kafka.url)
            for name, part_of_both in ON_BOTH.items():
                if name in chosen:
                    with _all_cores(), postgres_server() as postgres:
                        found += part_of_both(folder, postgres, kafka.url)
    return found


@contextmanager
def _all_cores() -> Iterator[None]:
    """A part may keep this process to one; what the next one starts may use all of them again."""
    cores = os.sched_getaffinity(0)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


if __name__ == "__main__":
    sys.exit(main())
