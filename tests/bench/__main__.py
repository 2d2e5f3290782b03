"""`make bench`: ratios against baselines measured in the same run, each with its bar; exit 1 below a bar.

Machines are noisy, so each pair is measured in alternating rounds and the median round counts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.bench import backlog, effects, latency, looking, main_job, receiving, replaying, working
from tests.bench.ratio import Ratio, table
from tests.support.kafka import kafka_server
from tests.support.postgres import postgres_server

PARTS = ("receive", "work", "main", "effects", "looking", "backlog", "replay", "latency")


def main() -> int:
    """Measure and print; the exit code."""
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("only", nargs="*", choices=[*PARTS, []], help="measure these only")
    chosen = parser.parse_args().only or PARTS
    ratios: list[Ratio] = []
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        for name, part in (("main", main_job), ("effects", effects), ("looking", looking), ("backlog", backlog)):
            if name in chosen:
                with postgres_server() as postgres:
                    ratios += part.measure(Path(folder), postgres)
        if "replay" in chosen:
            ratios += replaying.measure(Path(folder))
        if {"receive", "work", "latency"} & set(chosen):
            ratios += _with_kafka(Path(folder), chosen)
    sys.stdout.write(table(ratios))
    return 0 if all(ratio.good for ratio in ratios) else 1


def _with_kafka(folder: Path, chosen: Sequence[str]) -> list[Ratio]:
    ratios: list[Ratio] = []
    with kafka_server(folder / "kafka") as kafka:
        if "receive" in chosen:
            ratios.append(receiving.measure(folder, kafka.url))
        if "work" in chosen:
            with postgres_server() as postgres:
                ratios.append(working.measure(kafka.url, postgres))
        if "latency" in chosen:
            with postgres_server() as postgres:
                ratios += latency.measure(folder, postgres, kafka.url)
    return ratios


if __name__ == "__main__":
    sys.exit(main())
