"""`consumer demo`: every outcome as expected, exit 0. (It takes about 20 s; how long is not this test's business.)"""

from __future__ import annotations

import json

import pytest

from tests.support.process import command


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_every_outcome_is_as_expected() -> None:
    done = command("demo", "--json", environ={}, within_s=180)
    found = json.loads(done.stdout)
    assert [check for check in found["checks"] if not check["good"]] == []
    assert done.returncode == 0, done.stderr
    assert len(found["checks"]) >= 18
