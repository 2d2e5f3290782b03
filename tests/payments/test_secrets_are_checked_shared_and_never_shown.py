"""Credentials: their form, two secrets, a file that is re-read, and that they are shown nowhere."""

from __future__ import annotations

import base64
import os
import ssl
from pathlib import Path

import pytest
from aiohttp import web

from consumer.errors import SettingsError
from consumer.payments import (
    Credentials,
    PaymentsClient,
    ServiceUnreachable,
    app_id_problem,
    base_url_problem,
    secrets_problems,
)
from consumer.payments.credentials import FILE_MAX_BYTES, split_secrets
from tests.payments.support import APP_ID, OTHER_SECRET, SECRET, Bench, Reply, ScriptedService, bench

OK = Reply(200, {"id": "ord_1", "status": "PENDING"})


def write(path: Path, text: str) -> None:
    """Replace the file in one move, as a mounted secret is replaced."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


@pytest.mark.parametrize("app_id", ["", "svc_app_", "app_1", "SVC_APP_1", "svc_app_a b", "svc_app_a:b", "svc_app_é"])
def test_a_malformed_app_id_is_refused_and_masked(app_id: str) -> None:
    # case: S11
    problem = app_id_problem(app_id)
    assert problem is not None
    assert app_id.removeprefix("svc_app_") not in problem or app_id.removeprefix("svc_app_") == ""
    with pytest.raises(SettingsError):
        Credentials(app_id, [SECRET])


@pytest.mark.parametrize("secret", ["", "sk_live_hush", "svc_sk_live_", "svc_sk_test_hush", "svc_sk_live_hu sh"])
def test_a_malformed_secret_is_refused_and_not_shown(secret: str) -> None:
    # case: S11
    (problem,) = secrets_problems([secret])
    assert "hu" not in problem
    with pytest.raises(SettingsError) as caught:
        Credentials(APP_ID, [secret])
    assert "hu" not in str(caught.value)


def test_all_problems_are_told_at_once() -> None:
    # case: S11
    with pytest.raises(SettingsError) as caught:
        Credentials("nonsense", ["one", "two", "three"])
    assert len(caught.value.problems) == 5


def test_one_or_two_secrets_are_taken_a_third_is_refused() -> None:
    # case: S12
    assert secrets_problems([SECRET]) == []
    assert secrets_problems([SECRET, OTHER_SECRET]) == []
    assert "at most 2" in secrets_problems([SECRET, OTHER_SECRET, "svc_sk_live_third"])[0]
    assert "missing" in secrets_problems([])[0]


def test_secrets_are_split_at_commas_and_line_ends() -> None:
    # case: S12
    assert split_secrets(f" {SECRET} ,{OTHER_SECRET}\r\n\n{SECRET}\n") == (SECRET, OTHER_SECRET)


async def test_every_request_carries_one_basic_header(service: ScriptedService, b: Bench) -> None:
    # case: C1, C35
    service.answering = lambda _seen: OK
    await b.client.orders.retrieve("ord_1")
    await b.client.checkout_sessions.cancel("cs_1")
    for seen in service.seen:
        kind, _, pair = seen.headers["Authorization"].partition(" ")
        assert kind == "Basic"
        assert base64.b64decode(pair).decode() == f"{APP_ID}:{SECRET}"
        assert seen.headers["User-Agent"].startswith("payments-consumer/")
        assert "Cookie" not in seen.headers


@pytest.mark.parametrize(
    "base_url",
    [
        "http://api.example",
        "http://127.0.0.1.example",
        "http://localhost.example",
        "ftp://api.example",
        "api.example",
        "https://",
        "https://user:pass@api.example",
        "https://api.example?x=1",
        "https://api.example:port",
    ],
)
def test_an_insecure_base_address_is_refused(base_url: str) -> None:
    # case: C28
    assert base_url_problem(base_url) is not None
    with pytest.raises(SettingsError):
        PaymentsClient(base_url, Credentials(APP_ID, [SECRET]))


@pytest.mark.parametrize(
    "base_url",
    ["https://api.example", "https://api.example/base/", "http://127.0.0.1:4010", "http://[::1]:1", "http://localhost"],
)
def test_https_and_loopback_are_taken(base_url: str) -> None:
    # case: C28
    assert base_url_problem(base_url) is None


def test_secrets_are_in_no_repr() -> None:
    # case: S9
    credentials = Credentials(APP_ID, [SECRET, OTHER_SECRET])
    client = PaymentsClient("https://api.example", credentials)
    for text in (repr(credentials), str(credentials), repr(client), repr(vars(client))):
        assert "first" not in text
        assert "second" not in text


async def test_a_certificate_nobody_vouches_for_is_refused() -> None:
    # case: C28
    async def answer(_request: web.Request) -> web.Response:
        return web.json_response({"id": "ord_1"})

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Path(__file__).with_name("self_signed.pem"))  # for tests only, trusted by nobody
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        async with bench(f"https://127.0.0.1:{runner.addresses[0][1]}") as b:
            with pytest.raises(ServiceUnreachable, match="certificate") as caught:
                await b.client.orders.retrieve("ord_1")
            assert not caught.value.sent
    finally:
        await runner.cleanup()


async def test_secrets_are_in_no_exception(service: ScriptedService, b: Bench) -> None:
    # case: S9
    service.answering = lambda _seen: Reply(401, b"denied")
    with pytest.raises(Exception) as caught:
        await b.client.orders.retrieve("ord_1")
    error: BaseException | None = caught.value
    encoded = base64.b64encode(f"{APP_ID}:{SECRET}".encode()).decode()
    while error is not None:
        for text in (str(error), repr(error), repr(vars(error))):
            assert SECRET not in text
            assert encoded not in text
        error = error.__cause__ or error.__context__


def test_a_secret_file_is_read_at_the_start(tmp_path: Path) -> None:
    # case: S4, S12
    file = tmp_path / "secret"
    with pytest.raises(SettingsError, match="cannot be read"):
        Credentials(APP_ID, secret_file=file)
    file.write_text("nonsense")
    with pytest.raises(SettingsError, match="app secret 1"):
        Credentials(APP_ID, secret_file=file)
    file.write_text(f"{SECRET}\n{OTHER_SECRET}\nsvc_sk_live_third\n")
    with pytest.raises(SettingsError, match="at most 2"):
        Credentials(APP_ID, secret_file=file)
    file.write_text(f"{SECRET}\n{OTHER_SECRET}\n")
    assert len(Credentials(APP_ID, secret_file=file).authorizations()) == 2
    with pytest.raises(SettingsError, match="both"):
        Credentials(APP_ID, [SECRET], secret_file=file)


def test_a_damaged_secret_file_leaves_the_last_good_secrets_in_use(tmp_path: Path) -> None:
    # case: S4
    file = tmp_path / "secret"
    file.write_text(SECRET)
    credentials = Credentials(APP_ID, secret_file=file)
    before = credentials.authorizations()
    for damage in ("", "half a sec", "x" * (FILE_MAX_BYTES + 1)):
        write(file, damage)
        assert credentials.authorizations() == before
        assert credentials.problem is not None
        assert "half" not in (credentials.look() or "half")
    file.unlink()
    assert credentials.look() == "the secret file cannot be read: FileNotFoundError"
    assert credentials.authorizations() == before
    generation = credentials.generation
    write(file, OTHER_SECRET)
    assert credentials.authorizations() != before
    assert credentials.look() is None
    assert credentials.generation == generation + 1


def test_a_touched_file_with_the_same_secret_is_no_new_generation(tmp_path: Path) -> None:
    # case: S4
    file = tmp_path / "secret"
    file.write_text(SECRET)
    credentials = Credentials(APP_ID, secret_file=file)
    generation = credentials.generation
    os.utime(file, (1, 1))
    assert credentials.generation == generation


async def test_a_new_secret_in_the_file_is_used_without_restart(service: ScriptedService, tmp_path: Path) -> None:
    # case: S4
    valid = {SECRET}
    service.answering = lambda seen: OK if seen.secret in valid else Reply(401)
    file = tmp_path / "secret"
    file.write_text(SECRET)
    async with bench(service.base_url, credentials=Credentials(APP_ID, secret_file=file)) as b:
        await b.client.orders.retrieve("ord_1")
        valid = {OTHER_SECRET}
        write(file, OTHER_SECRET)
        await b.client.orders.retrieve("ord_1")
    assert [seen.secret for seen in service.seen] == [SECRET, OTHER_SECRET]


async def test_two_secrets_carry_every_operation_over_a_roll(service: ScriptedService) -> None:
    # case: S2, C14
    valid = {SECRET}
    service.answering = lambda seen: OK if seen.secret in valid else Reply(401)
    async with bench(service.base_url, secrets=(SECRET, OTHER_SECRET)) as b:
        for stage in ({SECRET}, {SECRET, OTHER_SECRET}, {OTHER_SECRET}):
            valid = stage
            for _ in range(5):
                await b.client.orders.retrieve("ord_1")
        assert b.circuit_changes == []
    refused = sum(attempt.status == 401 for attempt in b.attempts)
    assert refused == 1, "the secret that works is remembered"
