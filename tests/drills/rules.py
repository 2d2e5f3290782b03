"""Rules: the alerts of `deploy/prometheus`, with every time in them divided, so that a drill takes seconds."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
SPEED = 20
QUIET_SPEED = 5
"""Where nothing is wrong: a busy machine's seconds must not count as minutes."""
RANGE_LEAST_S = 5
FOR_MOST_S = 30
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SECONDS = re.compile(r"(?<=> )(60|120|180|300|900|3600)\b|(?<=> bool )(60)\b")
"""What a threshold in seconds looks like; the others are shares and counts."""


@cache
def alerts() -> dict[str, dict[str, Any]]:
    """Every alert by its name, as the file has it."""
    groups = yaml.safe_load((RULES / "alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def write_shortened(folder: Path, speed: int = SPEED) -> list[Path]:
    """Both files, written anew there."""
    names = ("recording.yml", "alerts.yml")
    return [_written(folder / name, shortened((RULES / name).read_text(), speed)) for name in names]


def shortened(text: str, speed: int = SPEED) -> str:
    """Windows, what an alert waits for (`FOR_MOST_S` at most), and thresholds in seconds. The names of recorded rows
    stay. Pure."""
    text = re.sub(r"\[([\dsmhd:]+)\]", lambda found: f"[{_each(found[1], speed)}]", text)
    text = re.sub(r"(?<=for: )(\d+)([smhd])", lambda found: _less(found[1], found[2], speed, 1, FOR_MOST_S), text)
    return _SECONDS.sub(lambda found: str(int(found[0]) // speed), text)


def _each(windows: str, speed: int) -> str:
    return ":".join(_less(window[:-1], window[-1], speed, RANGE_LEAST_S) for window in windows.split(":"))


def _less(number: str, unit: str, speed: int, least_s: int, most_s: int | None = None) -> str:
    seconds = max(least_s, int(number) * _UNITS[unit] // speed)
    return f"{seconds if most_s is None else min(seconds, most_s)}s"


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
