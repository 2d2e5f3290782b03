"""The tutorial, `handlers/README.md`, from its first command to its last, typed as it is written, in an empty folder.

Its Python is run by `test_face.py`, and held to mypy here, with that of the other pages. Not typed: `make setup`, since
the environment is a test's own. Changed: ports that are free, where somebody else may have the usual ones.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import aiohttp
import pytest

import consumer.plugin
from tests.plugin.test_face import code_blocks
from tests.support.merchant.terminal import Terminal
from tests.support.ports import eventually, free_port

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "handlers" / "README.md"
PAGES = ("handlers/README.md", "handlers/REFERENCE.md", "consumer/shop/README.md")
MIN_BLOCKS = 8
HANDLER = "shop_shipping:ship"
WORDS_MAX = 2000
READ_PER_MINUTE = 200


def commands() -> Iterator[str]:
    """What the tutorial types, in its order, without what it says of it."""
    for line in README.read_text().splitlines():
        if re.match(r" {4}(consumer|pip|pytest|make|export|curl) ", line):
            yield re.split(r"\s{2,}#", line.strip())[0]


# case: H11
@pytest.mark.slow
@pytest.mark.timeout(500)
async def test_every_command_does_what_is_said_of_it(tmp_path: Path) -> None:
    reader = Terminal(tmp_path)
    ports = {"4010": str(free_port()), "9090": str(free_port())}
    reader.environ["CONSUMER_INTERNAL_PORT"] = ports["9090"]
    typed = [re.sub("4010|9090", lambda usual: ports[usual[0]], line) for line in commands()]
    typed = [line for line in typed if not line.startswith("make setup")]
    first = typed.index(next(line for line in typed if line.startswith("consumer dev")))
    for line in typed[:first]:
        told = reader.types(line)
        assert "pytest" not in line or " passed" in told
    dev = reader.starts(f"{typed[first]} --sandbox-port {ports['4010']}")
    try:
        ready = partial(_is_ready, f"http://127.0.0.1:{ports['9090']}/readyz")
        await eventually(ready, within_s=120, every_s=0.2, what="dev is ready, as it says to its reader")
        await types_the_rest(reader, typed[first + 1 :])
    finally:
        dev.terminate()
        assert dev.wait(60) == 0, (tmp_path / "dev.log").read_text()[-2000:]


async def _is_ready(url: str) -> bool:
    try:
        async with aiohttp.ClientSession() as http, http.get(url) as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


async def types_the_rest(reader: Terminal, lines: list[str]) -> None:
    event_id = ""

    def shipped() -> str:
        listed = json.loads(reader.types(f"consumer events list --handler {HANDLER} --json"))["events"]
        return next((one["id"] for one in listed if one["run"] == "succeeded"), "")

    for line in lines:
        if "EVENT_ID" in line or "fixture.json" in line or "curl" in line:
            event_id = event_id or await eventually(shipped, within_s=60, every_s=0.5, what="the order was shipped")
        told = reader.types(line.replace("EVENT_ID", event_id).replace("--runs 1000", "--runs 10"))
        if "sandbox trigger" in line:
            assert "order.paid" in told
        if "_sandbox/parcels" in line:
            (parcel,) = json.loads(told)["items"]
            assert (parcel["content"], parcel["asked"]) == ({"order_id": "A-1"}, 1)
        if "api/orders" in line:
            assert '"fulfilment":"fulfilled"' in told
        if "handlers try" in line:
            assert "would call" in told
            assert "nothing was written, emitted or sent" in told
        if "handlers simulate" in line:
            assert "each left what it should" in told
    assert (reader.folder / "fixture.json").exists()


def test_it_is_read_in_ten_minutes() -> None:
    words = len(README.read_text().split())
    assert words < min(WORDS_MAX, 10 * READ_PER_MINUTE), words


def test_nothing_that_it_types_is_left_out() -> None:
    typed = list(commands())
    assert len(typed) >= 18
    assert sum(line.startswith(("export", "curl")) for line in typed) == 3
    assert sum(line.startswith("consumer handlers simulate") for line in typed) == 1


def examples() -> list[str]:
    """Every piece of Python, with what its page leaves to the reader."""
    texts = [(ROOT / page).read_text() for page in PAGES] + [consumer.plugin.__doc__ or ""]
    found = [block for text in texts for block in code_blocks(text) if "@handles" in block]
    found += [block for text in texts for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]
    return [completed(block) for block in found]


def completed(block: str) -> str:
    """The tutorial's readers have an address of their own."""
    return f'URL = "https://shop.example"\n{block}' if re.search(r"\bURL\b", block) else block


# case: H10
@pytest.mark.slow
def test_mypy_finds_nothing_in_what_is_shown_to_be_copied(tmp_path: Path) -> None:
    shown = examples()
    assert len(shown) >= MIN_BLOCKS
    for number, block in enumerate(shown):
        (tmp_path / f"example_{number}.py").write_text(block)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache"),
         *sorted(str(path) for path in tmp_path.glob("*.py"))],
        capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout == "", done.stdout + done.stderr
