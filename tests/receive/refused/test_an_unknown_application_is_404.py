"""An unknown application is 404: counted under one label, and nothing of it is stored."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from consumer.receive.misaddressed import FORGOTTEN_AFTER_S, TOLD_FOR_S, Misaddressed
from tests.receive.rig import Rig


@pytest.mark.parametrize(
    "path", ["/webhooks/nobody", "/webhooks/", "/", "/webhook", "/webhooks/default/x", "/webhooks/%00", "/healthz"]
)
@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_an_unknown_application_is_404(rig: Rig, path: str, method: str) -> None:
    # case: I14
    reply = await rig.send(path=path, method=method)
    assert (reply.status, reply.code) == (404, "unknown_application")
    assert rig.count("unknown_application", "unknown") == 1
    assert await rig.records("deliveries") == await rig.records("events") == []


async def test_made_up_names_make_no_new_labels(rig: Rig) -> None:
    # case: I14
    for number in range(20):
        await rig.send(path=f"/webhooks/made-up-{number}")
    assert b"made-up" not in rig.metrics.render()
    assert rig.count("unknown_application", "unknown") == 20


# case: I14, O1
async def test_what_is_posted_where_webhooks_go_is_told_by_what_could_be_an_application(rig: Rig) -> None:
    """It may be an application that left the settings: nothing else would tell that its money stands still."""
    misaddressed = rig.receiver.misaddressed
    for path in ("/", "/healthz", "/wp-login.php"):
        await rig.send(path=path)
    await rig.send(path="/webhooks/shop2", method="GET")
    assert misaddressed.told() is None
    for path in (
        "/webhooks/shop2",
        "/webhooks/shop2",
        "/webhook",
        f"/webhooks/{quote('<b>')}",
        "/webhooks/hush/secret",
    ):
        assert (await rig.send(path=path)).status == 404
    said = json.loads(misaddressed.told() or "")
    assert (said["count"], said["names"]) == (5, ["shop2"])


@pytest.mark.parametrize("path", ["//webhooks/default", "//webhooks", "/shop/webhooks/default", "/a/b/webhooks/shop2/"])
async def test_so_is_what_a_proxy_put_its_own_path_before(rig: Rig, path: str) -> None:
    """Every webhook is 404 then, though its application is there. It is named by nothing that would be set right."""
    # case: I14, O1
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}"
    assert (await rig.raw(head.encode())).startswith(b"HTTP/1.1 404 ")
    said = json.loads(rig.receiver.misaddressed.told() or "")
    assert (said["count"], said["names"]) == (1, [])


@pytest.mark.parametrize("path", ["/api/webhooks", "/shop/webhook", "/x/webhooks/a/b", "/x/webhooks/%3Cb%3E"])
async def test_what_visits_any_address_is_not_among_them(rig: Rig, path: str) -> None:
    assert (await rig.send(path=path)).status == 404
    assert rig.receiver.misaddressed.told() is None


async def test_those_of_an_application_are_not_among_them(rig: Rig) -> None:
    assert (await rig.send(headers={})).status == 401
    assert (await rig.signed()).status == 200
    assert rig.receiver.misaddressed.told() is None


def test_they_are_told_until_an_hour_after_the_last_and_counted_from_a_day_before() -> None:
    time = [100.0]
    misaddressed = Misaddressed(lambda: time[0])
    for number in range(9):
        misaddressed.note(f"/webhooks/shop-{number}")
    time[0] += 10
    assert misaddressed.told() == '{"count":9,"last_s":10.0,"names":["shop-6","shop-7","shop-8"]}'
    time[0] += TOLD_FOR_S
    assert misaddressed.told() is None
    misaddressed.note("/webhooks/shop-1")
    assert json.loads(misaddressed.told() or "")["count"] == 10
    time[0] += FORGOTTEN_AFTER_S + 1
    misaddressed.note("/webhooks/shop-1")
    assert misaddressed.told() == '{"count":1,"last_s":0.0,"names":["shop-1"]}'
