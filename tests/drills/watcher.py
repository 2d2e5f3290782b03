"""Watcher: a real Prometheus that asks the processes of a drill, and says which alerts fire."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from tests.drills.rules import write_shortened
from tests.support.ports import free_port
from tests.support.tools import need_program


class Watcher:
    """`targets`: where the processes are. It looks every second."""

    def __init__(self, folder: Path, url: str) -> None:
        self._targets = folder / "targets.json"
        self._url = url

    def watch(self, internal_urls: Sequence[str]) -> None:
        """These are the processes now; Prometheus notices by itself."""
        written = self._targets.with_suffix(".new")
        written.write_text(json.dumps([{"targets": [_instance(url) for url in internal_urls]}]))
        written.replace(self._targets)

    async def firing(self) -> set[str]:
        """The names of the alerts that fire now; AssertionError while it does not answer."""
        found = await self._ask("alerts")
        return {one["labels"]["alertname"] for one in found["alerts"] if one["state"] == "firing"}

    async def fires(self, alert: str, **labels: str) -> bool:
        """Whether this one fires now, with these labels; AssertionError while it does not answer."""
        found = await self._ask("alerts")
        wanted = {"alertname": alert, **labels}.items()
        return any(one["state"] == "firing" and wanted <= one["labels"].items() for one in found["alerts"])

    async def fired_since(self, since: datetime) -> set[str]:
        """The names of the alerts that fired at any moment since then, and now."""
        seconds = math.ceil((datetime.now(UTC) - since).total_seconds())
        found = await self._ask("query", query=f'last_over_time(ALERTS{{alertstate="firing"}}[{seconds}s])')
        return {one["metric"]["alertname"] for one in found["result"]}

    async def evaluated_since(self, since: datetime) -> set[str]:
        """The names of the alerts that were evaluated since then, without an error."""
        groups = (await self._ask("rules", type="alert"))["groups"]
        return {
            rule["name"]
            for group in groups
            for rule in group["rules"]
            if rule["health"] == "ok" and datetime.fromisoformat(rule["lastEvaluation"]) > since
        }

    async def sees(self, internal_url: str) -> bool:
        """Whether it has looked at this process; AssertionError while it does not answer."""
        return await self.shows(f'up{{instance="{_instance(internal_url)}"}} == 1')

    async def shows(self, query: str) -> bool:
        """Whether this PromQL has any row now; AssertionError while it does not answer."""
        return bool((await self._ask("query", query=query))["result"])

    async def _ask(self, what: str, **words: str) -> Any:
        try:
            async with aiohttp.ClientSession() as http, http.get(f"{self._url}/api/v1/{what}", params=words) as answer:
                return (await answer.json())["data"]
        except aiohttp.ClientError as error:
            raise AssertionError("Prometheus does not answer") from error


def _instance(internal_url: str) -> str:
    return internal_url.removeprefix("http://")


@contextmanager
def watching(folder: Path, speed: int) -> Iterator[Watcher]:
    """Prometheus in a process of its own, on the loopback; all times in its rules are divided by `speed`. Skips where
    there is none."""
    program = need_program("prometheus", "Debian's package prometheus")
    address = f"127.0.0.1:{free_port()}"
    rules = write_shortened(folder, speed)
    watcher = Watcher(folder, f"http://{address}")
    watcher.watch([])
    (folder / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s", "scrape_timeout": "1s"},
                "rule_files": [str(path) for path in rules],
                "scrape_configs": [
                    {"job_name": "consumer", "file_sd_configs": [{"files": [str(folder / "targets.json")]}]}
                ],
            }
        )
    )
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
             f"--web.listen-address={address}", "--query.lookback-delta=3s"],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield watcher
    finally:
        process.terminate()
        process.wait(20)
