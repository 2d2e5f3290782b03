"""Nobody comes in who may not, a viewer moves nothing, and no page of another site presses a button."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import structlog
from aiohttp import encode_basic_auth
from argon2 import PasswordHasher

from consumer.console.pages.users import Users, as_hashed, parsed
from consumer.errors import SettingsError
from tests.console.pages.conftest import Open, Pages, press

QUICK = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
PASSWORD = "correct horse battery"
ADA = f"ada operator {QUICK.hash(PASSWORD)}"
VERA = f"vera viewer {QUICK.hash('another password')}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "users"
    found.write_text(f"# who may see the pages\n{ADA}\n\n{VERA}\n")
    return found


def exchange(file: Path, *lines: str) -> None:
    """As a secret's volume is exchanged."""
    beside = file.with_name("new")
    beside.write_text("\n".join(lines))
    beside.replace(file)


def signed(name: str, password: str) -> dict[str, str]:
    return {"Authorization": encode_basic_auth(name, password)}


async def get(pages: Pages, path: str = "/console/dead", **headers: str) -> int:
    async with pages.get(path, headers=headers, allow_redirects=False) as response:
        return response.status


async def test_name_and_password_are_asked_for(open_pages: Open, file: Path) -> None:
    # case: S9
    pages = await open_pages(Users(file))
    async with pages.get("/console/") as response:
        assert response.status == 401
        assert response.headers["WWW-Authenticate"] == 'Basic realm="consumer console", charset="UTF-8"'
    assert await get(pages, **signed("ada", PASSWORD)) == 200
    assert await get(pages, **signed("vera", "another password")) == 200
    refused = (signed("ada", "another password"), signed("nobody", PASSWORD), signed("", ""), signed("ada", "x" * 5000))
    assert [await get(pages, **headers) for headers in refused] == [401] * 4
    odd = ("Basic", "Basic !!!", "Basic YWRh", "Bearer x", "Basic " + "A" * 4000, "basic \x80")
    assert [await get(pages, Authorization=one) for one in odd] == [401] * len(odd)
    assert await get(pages, "/console/assets/console.css") == 401
    assert await get(pages, "/console/nothing") == 401, "who may not come in learns of no address"


async def test_an_umlaut_is_the_same_from_every_keyboard(open_pages: Open, tmp_path: Path) -> None:
    one, two = "\u00e4:hnlich wie", "a\u0308:hnlich wie"
    (tmp_path / "users").write_text(f"ada operator {QUICK.hash(as_hashed(two))}")
    pages = await open_pages(Users(tmp_path / "users"))
    assert [await get(pages, **signed("ada", password)) for password in (one, two)] == [200, 200]


async def test_a_right_password_is_checked_once(open_pages: Open, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    verify = PasswordHasher.verify

    def counted(self: PasswordHasher, hash_: str, password: bytes) -> bool:
        checked.append(hash_)
        return verify(self, hash_, password)

    monkeypatch.setattr(PasswordHasher, "verify", counted)
    pages = await open_pages(Users(file))
    assert [await get(pages, **signed("ada", PASSWORD)) for _ in range(3)] == [200] * 3
    assert len(checked) == 1
    assert await get(pages, **signed("ada", "wrong")) == 401
    assert await get(pages, **signed("nobody", "wrong")) == 401
    assert len(checked) == 3, "an unknown name takes as long as a wrong password"


async def test_strangers_keep_nobody_out_who_is_in(
    open_pages: Open, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = await open_pages(Users(file))
    assert await get(pages, **signed("ada", PASSWORD)) == 200
    monkeypatch.setattr("consumer.console.pages.users.WAITING_MAX", 0)  # so many wait that no more may
    assert await get(pages, **signed("ada", PASSWORD)) == 200
    async with pages.get("/console/dead", headers=signed("ada", "wrong")) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "5"
        assert "Too many sign in" in await response.text()


async def test_an_emptied_file_is_told(open_pages: Open, file: Path) -> None:
    pages = await open_pages(Users(file))
    assert await get(pages, **signed("ada", PASSWORD)) == 200
    with structlog.testing.capture_logs() as lines:
        exchange(file, "")
        assert await get(pages, **signed("ada", PASSWORD)) == 401
    assert [one["reason"] for one in lines if one["event"] == "console_users_broken"] == [
        "CONSUMER_CONSOLE_USERS: names nobody"
    ]


async def test_who_is_taken_out_of_the_file_is_out_at_once(open_pages: Open, file: Path) -> None:
    pages = await open_pages(Users(file))
    assert await get(pages, **signed("ada", PASSWORD)) == 200
    exchange(file, VERA, "ada operator no-hash")
    assert await get(pages, **signed("ada", PASSWORD)) == 401
    assert await get(pages, **signed("vera", "another password")) == 200, "a broken line is nobody else's"
    exchange(file, f"ada viewer {QUICK.hash('a new password')}", VERA)
    assert await get(pages, **signed("ada", PASSWORD)) == 401
    assert await get(pages, **signed("ada", "a new password")) == 200
    await asyncio.to_thread(file.unlink)
    assert await get(pages, **signed("ada", "a new password")) == 200, "a file that is away takes nobody out"


async def test_a_viewer_moves_nothing(open_pages: Open, file: Path, three_dead: None) -> None:
    pages = await open_pages(Users(file))
    async with pages.get("/console/dead", headers=signed("vera", "another password")) as response:
        seen = await response.text()
    assert "shop:ship" in seen
    assert ">Try again</button>" not in seen
    form = {"handler": "shop:ship", "seen": "2030-01-01T00:00:00+00:00", "reason": "curious"}
    async with pages.post("/console/act/redrive", data=form, headers=signed("vera", "another password")) as response:
        assert response.status == 403
        assert "A viewer may look only" in await response.text()
    async with pages.get("/console/dead", headers=signed("ada", PASSWORD)) as response:
        seen = await response.text()
    assert ">Try again</button>" in seen
    assert "2 × shop:ship" in seen, "they are dead still"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1"},
        {"Sec-Fetch-Site": "none"},
    ],
)
async def test_another_site_presses_no_button(open_pages: Open, file: Path, headers: dict[str, str]) -> None:
    form = {"handler": "shop:ship", "reason": "x"}
    for users in (None, Users(file)):
        pages = await open_pages(users)
        sent = {**signed("ada", PASSWORD), **headers}
        async with pages.post("/console/act/pause", data=form, headers=sent) as response:
            assert response.status == 403
            assert "a page of another site" in await response.text()
        own = {**signed("ada", PASSWORD), "Sec-Fetch-Site": "same-origin"}
        async with pages.post("/console/act/pause", data=form, headers=own) as response:
            assert response.status == 404, "of our own page it is taken: there is no such handler"


async def test_without_users_only_this_machine_is_answered(pages: Pages) -> None:
    assert [await get(pages, Host=host) for host in ("localhost:9090", "127.0.0.1", "[::1]")] == [200] * 3
    for host in ("evil.example", "127.0.0.1.evil.example", "10.0.0.7:9090"):
        assert await get(pages, Host=host) == 403, "a name that merely leads here is a rebinding attack's"
    assert await get(pages, **{"Sec-Fetch-Site": "cross-site"}) == 200, "a link in an alert leads to a page"
    assert (await press(pages, "pause", handler="shop:ship", reason="x"))[0] == 404


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP", "X-Forwarded-Host"])
async def test_without_users_nobody_comes_in_through_a_proxy(open_pages: Open, file: Path, name: str) -> None:
    """One on this machine gives everybody's request a name of this machine, as nginx and Apache do by themselves."""
    pages = await open_pages()
    passed_on = {"Host": "127.0.0.1:9090", name: "203.0.113.9", "Sec-Fetch-Site": "same-origin"}
    assert await get(pages, **passed_on) == 403
    form = {"handler": "shop:ship", "reason": "x"}
    async with pages.post("/console/act/pause", data=form, headers=passed_on) as response:
        assert response.status == 403
        assert "not through a proxy" in await response.text()
    pages = await open_pages(Users(file))
    assert await get(pages, **passed_on, **signed("ada", PASSWORD)) == 200


async def test_without_users_nginx_as_it_comes_leads_nobody_in(pages: Pages) -> None:
    """It says nothing of whom it passes on, and speaks HTTP/1.0, which no browser does."""
    reader, writer = await asyncio.open_connection("127.0.0.1", pages.make_url("/").port)
    writer.write(b"GET /console/dead HTTP/1.0\r\nHost: 127.0.0.1:9090\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(10):
        said = await reader.read()
    writer.close()
    assert said.split(b" ")[1] == b"403"


async def test_a_page_says_to_a_browser_what_it_may_do(pages: Pages) -> None:
    for path in ("/console/dead", "/console/nothing", "/console/assets/console.css"):
        async with pages.get(path) as response:
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "script-src" not in policy
            assert "frame-ancestors 'none'" in policy
            assert response.headers["X-Content-Type-Options"] == "nosniff"
    for path in ("/", "/console"):
        async with pages.get(path, allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (303, "console/")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["ada operator"], "line 1: is not `name role argon2-hash`"),
        (["ada operator x y"], "line 1: is not `name role argon2-hash`"),
        (["ada boss $argon2id$x"], "line 1: the role is none of viewer, operator"),
        (["ada operator $2b$12$abc"], "line 1: the hash is none of argon2"),
        (["# nobody"], "names nobody"),
        ([ADA, "", VERA, ADA], "line 4: names somebody a second time"),
        ([ADA.replace("ada", "a:b")], "line 1: the name has a colon"),
        ([ADA.replace("m=8,", "m=4000000,")], "line 1: the hash costs more than"),
    ],
)
def test_a_file_that_is_none_is_told_at_the_start(tmp_path: Path, lines: list[str], told: str) -> None:
    file = tmp_path / "users"
    file.write_text("\n".join(lines))
    with pytest.raises(SettingsError, match="CONSUMER_CONSOLE_USERS") as caught:
        Users(file)
    assert told in str(caught.value)
    assert "$argon2" not in str(caught.value)


def test_a_file_of_an_editor_that_marks_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(ADA, encoding="utf-8-sig")
    Users(file)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        Users(tmp_path / "none")
    (tmp_path / "large").write_text("#" * 300_000)
    with pytest.raises(SettingsError, match="more than 256 KiB"):
        Users(tmp_path / "large")


def test_the_users_of_the_example_deployment_come_in() -> None:
    found, problems = parsed(Path("deploy/kubernetes/overlays/dev/users").read_text())
    assert problems == []
    assert PasswordHasher().verify(found["dev"].hash, "dev")
