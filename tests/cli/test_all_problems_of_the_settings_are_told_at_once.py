"""A wrong database URL, a missing secret, an unknown name: all reported together, exit 2, no secret repeated."""

from __future__ import annotations

from tests.support.desk import Desk

SECRET = "svc_sk_live_very-secret-indeed"


# case: S11, S9
def test_three_problems_three_lines_exit_2(desk: Desk) -> None:
    done = desk.call(
        "sync",
        CONSUMER_DATABASE_URL="mysql://root:hunter2@db/consumer",
        CONSUMER_DATABSE_URL="sqlite+aiosqlite:///x.db",
        SVC_BASE_URL="https://api.example.com",
        SVC_APP_ID="svc_app_1",
    )
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert all(line.startswith("error[settings_invalid]: ") for line in lines)
    text = done.stderr
    assert "CONSUMER_DATABASE_URL: must begin with" in text
    assert "CONSUMER_DATABSE_URL: there is no such setting; did you mean CONSUMER_DATABASE_URL?" in text
    assert "SVC_APP_SECRET: missing" in text
    assert "hunter2" not in text


# case: S9, S12, C28
def test_no_problem_repeats_a_secret(desk: Desk) -> None:
    done = desk.call(
        "sync",
        SVC_BASE_URL="http://api.example.com",
        SVC_APP_ID="nonsense-id",
        SVC_APP_SECRET=f"{SECRET},{SECRET}2,{SECRET}3",
        CONSUMER_WEBHOOK_SECRETS="whsec_hunter2!",
        CONSUMER_AUTHENTICITY="signature",
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) >= 3
    assert SECRET not in done.stderr
    assert "hunter2" not in done.stderr
