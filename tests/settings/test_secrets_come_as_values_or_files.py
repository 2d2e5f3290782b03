"""Secrets: as values or in files, one or two, and the layout of signatures they are for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from consumer.payments import Credentials
from consumer.settings import Role, load_settings
from tests.settings.reading import CREDENTIALS, SECRET, problems


def test_one_or_two_secrets_are_taken() -> None:
    # case: S2, S12
    one = load_settings(CREDENTIALS, Role.SYNC).applications[0]
    two = load_settings({**CREDENTIALS, "SVC_APP_SECRET": "svc_sk_live_a, svc_sk_live_b"}, Role.SYNC).applications[0]
    assert [secret.get_secret_value() for secret in one.app_secrets] == ["svc_sk_live_one"]
    assert [secret.get_secret_value() for secret in two.app_secrets] == ["svc_sk_live_a", "svc_sk_live_b"]


def test_a_secret_may_come_from_a_file_by_the_same_rules(tmp_path: Path) -> None:
    # case: S4
    path = tmp_path / "secret"
    path.write_text("svc_sk_live_a\n")
    environ = {"SVC_BASE_URL": "https://x.example", "SVC_APP_ID": "svc_app_1", "SVC_APP_SECRET_FILE": str(path)}
    [application] = load_settings(environ, Role.SYNC).applications
    assert application.secret_file == path
    assert application.has_credentials
    path.write_text("svc_sk_live_b\nsvc_sk_live_c")
    [application] = load_settings(environ, Role.SYNC).applications
    assert [secret.get_secret_value() for secret in application.app_secrets] == ["svc_sk_live_b", "svc_sk_live_c"]
    for text, reason in (
        ("", "empty"),
        ("other", "must begin"),
        ("svc_sk_live_1,svc_sk_live_2,svc_sk_live_3", "at most"),
    ):
        path.write_text(text)
        [problem, *_] = problems(environ, Role.SYNC)
        assert problem.startswith("SVC_APP_SECRET_FILE: ")
        assert reason in problem


def test_white_space_around_a_value_is_no_part_of_it() -> None:
    """A line's end in a token refused every caller, one behind an address gave `//v1/events`, a blank behind a
    database's file another, empty ledger. A password may have some."""
    environ = {"CONSUMER_API_TOKEN": "a-token\n", "CONSUMER_DATABASE_URL": " sqlite+aiosqlite:////tmp/x.db ",
               "CONSUMER_KAFKA_SASL_PASSWORD": " p ", "CONSUMER_KAFKA_SASL_USERNAME": "ann"}  # fmt: skip
    settings = load_settings(CREDENTIALS | environ | {"SVC_BASE_URL": "https://api.example.com/\n"}, Role.SYNC)
    assert settings.api_token is not None
    assert settings.kafka_sasl_password is not None
    assert settings.api_token.get_secret_value() == "a-token"
    assert settings.database_url.get_secret_value() == "sqlite+aiosqlite:////tmp/x.db"
    assert settings.applications[0].base_url == "https://api.example.com"
    assert settings.kafka_sasl_password.get_secret_value() == " p "


def test_the_mark_that_an_editor_puts_before_a_text_is_no_part_of_it(tmp_path: Path) -> None:
    """With it, a secret is another one: every signature would be refused, and every caller of the query API."""
    mark = "\N{ZERO WIDTH NO-BREAK SPACE}"
    (tmp_path / "token").write_text(f"{mark}a-token\n", encoding="utf-8")
    (tmp_path / "secret").write_text(f"{mark}svc_sk_live_a\n", encoding="utf-8")
    (tmp_path / "toml").write_text(f"{mark}CONSUMER_PORT = 8081\n", encoding="utf-8")
    environ = {
        "SVC_BASE_URL": "https://x.example",
        "SVC_APP_ID": "svc_app_1",
        "SVC_APP_SECRET_FILE": str(tmp_path / "secret"),
        "CONSUMER_API_TOKEN_FILE": str(tmp_path / "token"),
        "CONSUMER_CONFIG": str(tmp_path / "toml"),
    }
    settings = load_settings(environ, Role.SYNC)
    assert settings.api_token is not None
    assert (settings.api_token.get_secret_value(), settings.port) == ("a-token", 8081)
    assert [secret.get_secret_value() for secret in settings.applications[0].app_secrets] == ["svc_sk_live_a"]
    assert Credentials("svc_app_1", secret_file=tmp_path / "secret").look() is None


def test_a_secret_given_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("svc_sk_live_a")
    found = problems({**CREDENTIALS, "SVC_APP_SECRET_FILE": str(path)}, Role.SYNC)
    assert found == ["SVC_APP_SECRET: is given twice: as a value and as a file; give one of them"]


def test_other_secrets_may_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgresql+asyncpg://u:p@db/x\n")
    (tmp_path / "hooks").write_text(f"{SECRET}\n{SECRET}\n")
    environ = {
        "CONSUMER_DATABASE_URL_FILE": str(tmp_path / "url"),
        "CONSUMER_WEBHOOK_SECRETS_FILE": str(tmp_path / "hooks"),
        "CONSUMER_AUTHENTICITY": "signature",
    }
    settings = load_settings(environ, Role.SERVE)
    assert settings.database_url.get_secret_value() == "postgresql+asyncpg://u:p@db/x"
    assert len(settings.applications[0].webhook_secrets) == 2
    environ["CONSUMER_DATABASE_URL_FILE"] = str(tmp_path / "none")
    assert problems(environ, Role.SERVE) == [
        "CONSUMER_DATABASE_URL_FILE: the file cannot be read: No such file or directory"
    ]


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"CONSUMER_SIGNATURE_HEADER": "x-sig"}, ["CONSUMER_SIGNATURE_HEADER: has no effect"]),
        (
            {"CONSUMER_SIGNATURE_SCHEME": "hmac"},
            ["CONSUMER_SIGNATURE_HEADER: missing", "CONSUMER_SIGNATURE_TIMESTAMP:"],
        ),
        (
            {
                "CONSUMER_SIGNATURE_SCHEME": "hmac",
                "CONSUMER_SIGNATURE_HEADER": "x-sig",
                "CONSUMER_SIGNATURE_CONTENT": "{bodi}",
            },
            ["CONSUMER_SIGNATURE_CONTENT: must hold {body} once"],
        ),
        (
            {
                "CONSUMER_SIGNATURE_SCHEME": "hmac",
                "CONSUMER_SIGNATURE_HEADER": "x-sig",
                "CONSUMER_SIGNATURE_TIMESTAMP": "x-ts",
                "CONSUMER_SIGNATURE_CONTENT": "{body}",
            },
            ["CONSUMER_SIGNATURE_TIMESTAMP: is not signed"],
        ),
    ],
)
def test_a_layout_of_signatures_is_whole_or_refused(extra: Mapping[str, str], expected: list[str]) -> None:
    found = problems(extra)
    assert len(found) == len(expected)
    assert all(line.startswith(start) for line, start in zip(found, expected, strict=True))


def test_another_layout_of_signatures_takes_plain_secrets() -> None:
    environ = {
        "CONSUMER_AUTHENTICITY": "signature",
        "CONSUMER_WEBHOOK_SECRETS": "any text of 18 B-1",
        "CONSUMER_SIGNATURE_SCHEME": "hmac",
        "CONSUMER_SIGNATURE_HEADER": "X-Signature",
        "CONSUMER_SIGNATURE_TIMESTAMP": "X-At",
        "CONSUMER_SIGNATURE_CONTENT": "{header:x-at}.{header:x-id}.{body}",
    }
    assert load_settings(environ, Role.SERVE).signature_header == "x-signature"
