"""CONSUMER_APPLICATIONS: several applications, each whole or reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumer.events import Authenticity
from consumer.settings import Role, load_settings
from tests.settings.reading import CREDENTIALS, SECRET, problems


def test_of_several_applications_one_may_be_without_credentials_but_not_half() -> None:
    # case: S7, S8
    bare = {"CONSUMER_APPLICATIONS": '[{"name": "club"}]'}
    settings = load_settings(CREDENTIALS | bare, Role.SYNC)
    assert [one.name for one in settings.applications if one.has_credentials] == ["default"]
    half = {"CONSUMER_APPLICATIONS": '[{"name": "club", "app_id": "svc_app_club"}]'}
    assert [line.partition(":")[0] for line in problems(CREDENTIALS | half, Role.SYNC)] == [
        "CONSUMER_APPLICATIONS.club.base_url",
        "CONSUMER_APPLICATIONS.club.app_secret",
    ]
    none = {"CONSUMER_APPLICATIONS": '[{"name": "club"}, {"name": "shop"}]'}
    assert len(problems(none, Role.SYNC)) == 6


@pytest.mark.parametrize("missing", ["SVC_APP_SECRET", "SVC_APP_ID", "SVC_BASE_URL"])
def test_who_only_receives_needs_no_key_of_the_api(missing: str) -> None:
    # case: S1
    given = {name: value for name, value in CREDENTIALS.items() if name != missing}
    [application] = load_settings(given, Role.SERVE).applications
    assert not application.has_credentials
    assert [line.partition(":")[0] for line in problems(given, Role.SYNC)] == [missing]


def test_several_applications_inherit_locators_and_authenticity_but_no_secret(tmp_path: Path) -> None:
    # case: I26, S13
    path = tmp_path / "consumer.toml"
    path.write_text(
        f"""
        CONSUMER_AUTHENTICITY = "signature"
        CONSUMER_LOCATE_ID = ["/x/id"]
        CONSUMER_WEBHOOK_SECRETS = "{SECRET}"
        [CONSUMER_APPLICATIONS.shop]
        base_url = "https://shop.example.com"
        app_id = "svc_app_shop"
        app_secret = "svc_sk_live_shop"
        webhook_secrets = ["{SECRET}"]
        locators = {{ order = "/data/n" }}
        [CONSUMER_APPLICATIONS.club]
        authenticity = "api"
        """
    )
    settings = load_settings({"CONSUMER_CONFIG": str(path), **CREDENTIALS}, Role.OPERATE)
    assert [application.name for application in settings.applications] == ["default", "shop", "club"]
    shop, club = settings.application("shop"), settings.application("club")
    assert shop is not None
    assert club is not None
    assert shop.authenticity is Authenticity.SIGNATURE
    assert club.authenticity is Authenticity.API
    assert (shop.locators.id, shop.locators.order) == (("/x/id",), ("/data/n",))
    assert club.webhook_secrets == ()
    assert not club.has_credentials
    assert settings.application("none") is None


def test_applications_may_be_a_list_with_names() -> None:
    environ = {"CONSUMER_APPLICATIONS": '[{"name": "shop"}, {"name": "club"}]'}
    assert [found.name for found in load_settings(environ, Role.WORK).applications] == ["shop", "club"]


def test_webhook_secrets_in_a_file_make_a_default_beside_others_as_a_value_does(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text(SECRET)
    given = {"CONSUMER_APPLICATIONS": '{"shop": {}}', "CONSUMER_WEBHOOK_SECRETS_FILE": str(tmp_path / "secrets")}
    assert [found.name for found in load_settings(given, Role.WORK).applications] == ["default", "shop"]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("{", "CONSUMER_APPLICATIONS: must be JSON"),
        ("[1]", "CONSUMER_APPLICATIONS: must be a table per application"),
        ('{"Shop!": {}}', "CONSUMER_APPLICATIONS: a name is 1 to 64 of"),
        ('[{"name": "a"}, {"name": "a"}]', "CONSUMER_APPLICATIONS: holds the same name twice"),
        ('{"default": {}}', "CONSUMER_APPLICATIONS: holds 'default'"),
        ('{"a": {"app_id": "svc_app_1"}}', "CONSUMER_APPLICATIONS: two applications have the same app_id"),
        ('{"a": {"app_idd": "x"}}', "CONSUMER_APPLICATIONS.a.app_idd: there is no such setting"),
        ('{"a": {"locators": {"idd": "/x"}}}', "CONSUMER_APPLICATIONS.a.locators.idd: there is no such fact"),
        ('{"a": {"locators": {"id": 5}}}', "CONSUMER_APPLICATIONS.a.locators.id: "),
    ],
)
def test_a_bad_table_of_applications_is_reported(raw: str, expected: str) -> None:
    found = problems({**CREDENTIALS, "CONSUMER_APPLICATIONS": raw})
    assert any(line.startswith(expected) for line in found), found
