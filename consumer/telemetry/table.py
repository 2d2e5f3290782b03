"""Table: the metrics as the Markdown that README.md holds; `python -m consumer.telemetry.table` prints it."""

from __future__ import annotations

import sys

from consumer.telemetry.metrics import Metrics


def metrics_table() -> str:
    """Every metric with its kind, labels and meaning: a Markdown table."""
    rows = (
        f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {meaning} |"
        for name, kind, labels, meaning in Metrics().listed()
    )
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *rows]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(metrics_table())
