"""Without a token only programs of this machine are answered: no page of another site, by whatever name it
calls, and nobody through a proxy on this machine."""

from __future__ import annotations

import pytest

from tests.console.conftest import TOKEN, Client, Open

BODY = b'{"order_id": "A1", "customer": "mallory"}'
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:9090"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "[::1"},
        {"Host": "127.0.0.1:99999"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"X-Forwarded-For": "203.0.113.9"},
        {"Host": "127.0.0.1:9090", "Via": "1.1 proxy"},
    ],
)
async def test_a_foreign_page_is_refused(api: Client, headers: dict[str, str]) -> None:
    # case: S9
    answers = [
        await api.put("/api/checkouts/s1", data=BODY, headers={**JSON, **headers}),
        await api.post("/api/orders/A1/read", headers=headers),
        await api.get("/api/orders/A1", headers=headers),
    ]
    assert [answer.status for answer in answers] == [403] * 3
    assert (await answers[0].json())["error"]["code"] == "loopback_only"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
async def test_what_a_form_can_send_is_refused(api: Client, kind: str) -> None:
    assert (await api.put("/api/checkouts/s1", data=BODY, headers={"Content-Type": kind})).status == 415
    assert (await api.post("/api/orders/A1/read", headers={"Content-Type": kind})).status == 415


@pytest.mark.parametrize("host", ["localhost:9090", "127.0.0.1", "[::1]:9090"])
async def test_programs_of_this_machine_are_answered(api: Client, host: str) -> None:
    own = {"Host": host, **JSON}
    assert (await api.put("/api/checkouts/s1", data=BODY, headers=own)).status == 200
    assert (await api.post("/api/orders/A1/read", headers={"Host": host, "Origin": f"http://{host}"})).status == 202


async def test_a_token_is_asked_for_by_any_name(open_api: Open) -> None:
    api = await open_api(token=TOKEN)
    asked = {"Host": "console.internal", "Authorization": f"Bearer {TOKEN}"}
    assert (await api.get("/api/orders/none", headers=asked)).status == 404
    assert (await api.get("/api/orders/none", headers={"Host": "console.internal"})).status == 401


async def test_an_id_with_any_character_is_found(api: Client) -> None:
    # case: F26
    from yarl import URL

    for id_ in ("a%0Ab", "a%0D%0Ab%00"[:-3], "%E2%80%A8", "a%2Fb"):
        url = URL(f"/api/orders/{id_}/read", encoded=True)
        assert (await api.post(url)).status == 202, id_
