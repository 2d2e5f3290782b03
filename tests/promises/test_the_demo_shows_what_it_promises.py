"""`consumer demo`: every outcome as expected, exit 0, within its time."""

from __future__ import annotations

import json
import time

import pytest

from tests.support.process import command


@pytest.mark.slow
def test_every_outcome_is_as_expected_in_under_30_s() -> None:
    began = time.monotonic()
    done = command("demo", "--json", environ={}, within_s=120)
    seconds = time.monotonic() - began
    found = json.loads(done.stdout)
    assert [check for check in found["checks"] if not check["good"]] == []
    assert done.returncode == 0, done.stderr
    assert len(found["checks"]) >= 18
    assert seconds < 30
