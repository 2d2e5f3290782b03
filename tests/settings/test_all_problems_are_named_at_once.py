"""load_settings: the environment and the TOML file become one checked value, or one error with every problem."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.errors import SettingsError
from consumer.events import Authenticity, Locators
from consumer.settings import Role, Settings, load_settings
from consumer.settings.load import FIELDS, KNOWN, problems_for
from tests.settings.reading import CREDENTIALS, SECRET, problems


def test_every_default_of_the_contract_holds() -> None:
    settings = load_settings({}, Role.OPERATE)
    assert settings.database_url.get_secret_value() == "sqlite+aiosqlite:///data/consumer.db"
    assert settings.broker_url == "embedded:data/log.db"
    assert (settings.host, settings.port, settings.internal_host, settings.internal_port) == (
        "127.0.0.1",
        8080,
        "127.0.0.1",
        9090,
    )
    assert (settings.topic_prefix, settings.sync_interval_s, settings.past_due) == ("payments", 60.0, "grace:14d")
    assert settings.handlers is None
    assert settings.kafka_servers == ()
    [application] = settings.applications
    assert (application.name, application.authenticity) == ("default", Authenticity.API)
    assert application.locators == Locators()


def test_a_wrong_database_url_a_missing_secret_and_an_unknown_name_are_reported_together() -> None:
    found = problems(
        {
            "CONSUMER_DATABASE_URL": "mysql://root:hush@db/x",
            "CONSUMER_AUTHENTICITY": "signature",
            "CONSUMER_BROKER_ULR": "x",
            "CONSUMER_PORT": "eighty",
        },
        Role.SERVE,
    )
    text = "\n".join(found)
    assert len(found) == 4
    assert "CONSUMER_DATABASE_URL: must begin with" in text
    assert "CONSUMER_WEBHOOK_SECRETS: missing" in text
    assert "CONSUMER_BROKER_ULR: there is no such setting; did you mean CONSUMER_BROKER_URL?" in text
    assert "CONSUMER_PORT: " in text


def test_no_problem_repeats_a_value() -> None:
    # case: S9, S11
    hush = "hush-hush-value"
    environ = {name: f"{hush}" for name in KNOWN if name not in ("CONSUMER_CONFIG",)}
    found = problems(environ, Role.DEV)
    assert len(found) > 20
    names_a_pointer = [line for line in found if line.startswith("CONSUMER_LOCATE_")]
    assert hush not in "\n".join(line for line in found if line not in names_a_pointer)


@pytest.mark.parametrize("role", list(Role))
def test_secrets_are_in_no_repr(role: Role) -> None:
    # case: S9
    environ = {
        **CREDENTIALS,
        "SVC_APP_SECRET": "svc_sk_live_alpha,svc_sk_live_beta",
        "CONSUMER_WEBHOOK_SECRETS": SECRET,
        "CONSUMER_API_TOKEN": "token-of-the-api",
        "CONSUMER_DATABASE_URL": "postgresql+asyncpg://user:password-of-the-ledger@db/consumer",
    }
    settings = load_settings(environ, role)
    for shown in (repr(settings), str(settings), settings.model_dump_json(exclude={"applications"})):
        for hidden in ("alpha", "beta", SECRET[6:], "token-of-the-api", "password-of-the-ledger"):
            assert hidden not in shown


@pytest.mark.parametrize(
    ("role", "needs"),
    [
        (Role.DEMO, False),
        (Role.DEV, False),
        (Role.SANDBOX, False),
        (Role.OPERATE, False),
        (Role.CONSOLE, False),
        (Role.WORK, False),
        (Role.SERVE, False),
        (Role.SYNC, True),
    ],
)
def test_roles_differ_in_what_they_need(role: Role, needs: bool) -> None:
    if needs:
        assert [line.partition(":")[0] for line in problems({}, role)] == list(CREDENTIALS)
    else:
        assert load_settings({}, role).role is role


@pytest.mark.parametrize("role", sorted(Role))
def test_only_who_archives_needs_the_folder_of_the_archives(role: Role) -> None:
    found = problems_for({"CONSUMER_RETENTION": "90d"}, role)
    assert any(line.startswith("CONSUMER_ARCHIVE_DIR: missing") for line in found) is (
        role in (Role.SYNC, Role.DEV, Role.DEMO)
    )


def test_serve_with_signatures_needs_no_api_secret() -> None:
    environ = {"CONSUMER_AUTHENTICITY": "signature", "CONSUMER_WEBHOOK_SECRETS": SECRET}
    [application] = load_settings(environ, Role.SERVE).applications
    assert application.authenticity is Authenticity.SIGNATURE
    assert not application.has_credentials


def test_half_an_application_is_a_problem_for_work() -> None:
    assert problems({"SVC_APP_ID": "svc_app_1", "SVC_BASE_URL": "https://api.example.com"}) == [
        "SVC_APP_SECRET: missing; role 'work' needs it"
    ]


def test_dev_without_an_address_uses_the_sandbox_and_demo_never_uses_real_credentials() -> None:
    [dev] = load_settings({}, Role.DEV).applications
    assert (dev.app_id, dev.base_url) == ("svc_app_sandbox", "http://127.0.0.1:4010")
    [demo] = load_settings({**CREDENTIALS, "CONSUMER_WEBHOOK_SECRETS": SECRET}, Role.DEMO).applications
    assert (demo.app_id, demo.base_url) == ("svc_app_sandbox", "http://127.0.0.1:4010")
    [real] = load_settings(CREDENTIALS, Role.DEV).applications
    assert (real.app_id, real.base_url) == ("svc_app_1", "https://api.example.com")


def test_the_environment_wins_over_the_file_name_by_name(tmp_path: Path) -> None:
    path = tmp_path / "consumer.toml"
    path.write_text('CONSUMER_PORT = 1111\nCONSUMER_HOST = "::1"\nCONSUMER_HANDLERS = ["a:b", "c:d"]\n')
    settings = load_settings({"CONSUMER_CONFIG": str(path), "CONSUMER_PORT": "2222"}, Role.OPERATE)
    assert (settings.port, settings.host, settings.handlers) == (2222, "::1", ("a:b", "c:d"))


def test_unknown_keys_of_the_file_are_reported_with_the_nearest_name(tmp_path: Path) -> None:
    path = tmp_path / "consumer.toml"
    path.write_text('consumer_port = 1\nSVC_APPID = "x"\n')
    found = problems({"CONSUMER_CONFIG": str(path)}, Role.OPERATE)
    assert "consumer_port: there is no such setting; did you mean CONSUMER_PORT?" in found[0]
    assert "SVC_APPID: there is no such setting; did you mean SVC_APP_ID?" in found[1]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CONSUMER_APP_SECRET", "SVC_APP_SECRET"),
        ("CONSUMER_BASE_URL", "SVC_BASE_URL"),
        ("CONSUMER_DATABASE", "CONSUMER_DATABASE_URL"),
        ("CONSUMER_WEBHOOK_SECRET", "CONSUMER_WEBHOOK_SECRETS"),
        ("CONSUMER_KAFKA_URL", None),
        ("CONSUMER_WORKERS", None),
        ("CONSUMER_GRACE", None),
    ],
)
def test_a_name_is_like_another_by_what_is_its_own(name: str, meant: str | None) -> None:
    """All begin alike: CONSUMER_SECRET was taken for CONSUMER_EXPECT, and CONSUMER_WORKERS for CONSUMER_PORT."""
    [found] = [one for one in problems({name: "x"}, Role.OPERATE) if one.startswith(name)]
    assert found == f"{name}: there is no such setting" + (f"; did you mean {meant}?" if meant else "")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("SVC_BASEURL", "SVC_BASE_URL"),
        ("SVC_BASE_URI", "SVC_BASE_URL"),
        ("SVC_APPID", "SVC_APP_ID"),
        ("SVC_APP_SECERT", "SVC_APP_SECRET"),
        ("SVC_APP_SECRET_FIEL", "SVC_APP_SECRET_FILE"),
    ],
)
def test_a_mistyped_name_of_the_service_is_told(name: str, meant: str) -> None:
    """`dev` started the simulator, and `work` without an API."""
    [found] = problems({name: "x"}, Role.DEV)
    assert found == f"{name}: there is no such setting; did you mean {meant}?"


def test_what_others_call_by_the_same_prefix_is_theirs(tmp_path: Path) -> None:
    others = ("SVC_NAME", "SVC_REGION", "SVC_APP_DIR", "SVC_APP_ID_STAGING", "SVC_APP_SECRET_OLD", "SVC_HOST_PORT")
    assert problems_for(dict.fromkeys(others, "x"), Role.DEV) == []
    # Beside the right one nothing is missed.
    beside = {"SVC_BASE_URL": "http://127.0.0.1:1", "SVC_APP_ID": "svc_app_a", "SVC_APP_SECRET": "svc_sk_live_a"}
    assert problems_for(beside | {"SVC_BASE_URL2": "x", "SVC_APP_SECRETS": "x"}, Role.DEV) == [], (
        "the right one is there"
    )
    path = tmp_path / "consumer.toml"
    path.write_text('[CONSUMER_APPLICATIONS.default]\nbase_url = "http://127.0.0.1:1"\n')
    assert problems_for({"CONSUMER_CONFIG": str(path), "SVC_API_ID": "x"}, Role.OPERATE) == []


@pytest.mark.parametrize("content", [b"CONSUMER_API_TOKEN = hush", b"\xff\xfe"])
def test_a_file_that_is_not_toml_is_reported_without_its_text(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "consumer.toml"
    path.write_bytes(content)
    [found] = problems({"CONSUMER_CONFIG": str(path)}, Role.OPERATE)
    assert found.startswith("CONSUMER_CONFIG: the file is not TOML")
    assert "hush" not in found


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (f"x = {'[' * 5000}{']' * 5000}", "is nested too deep"),
        (f"CONSUMER_PORT = {'9' * 5000}", "holds a number of thousands of digits"),
        (f"CONSUMER_SIGNATURE_SCHEME = 0x{'F' * 5000}", "holds a number of thousands of digits"),
    ],
    ids=["nested", "a long number", "a long number in hex"],
)
def test_a_file_that_nobody_can_take_is_reported(tmp_path: Path, content: str, why: str) -> None:
    """Each was `error[internal]`, with no word about the file."""
    path = tmp_path / "consumer.toml"
    path.write_text(content)
    assert problems({"CONSUMER_CONFIG": str(path)}, Role.OPERATE) == [f"CONSUMER_CONFIG: the file {why}"]


def test_white_space_around_the_files_name_is_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "consumer.toml"
    path.write_text("CONSUMER_PORT = 1111\n")
    assert load_settings({"CONSUMER_CONFIG": f" {path}\n"}, Role.OPERATE).port == 1111


def test_a_value_that_is_no_text_is_told_by_its_name(tmp_path: Path) -> None:
    """As Python reads bytes of the environment that are not UTF-8. Roles ended with `error[internal]` as they began."""
    path = tmp_path / "consumer.toml"
    path.write_text('CONSUMER_ARCHIVE_DIR = "a\\u0000"\n')
    odd = {
        "CONSUMER_CONFIG": str(path),
        "CONSUMER_KAFKA_SASL_USERNAME": "hush\udcff",
        "SVC_BASE_URL": "https://h/\udcff",
    }
    assert sorted(problems(CREDENTIALS | odd)) == [
        f"{name}: is not UTF-8 text, or holds a NUL"
        for name in ("CONSUMER_ARCHIVE_DIR", "CONSUMER_KAFKA_SASL_USERNAME", "SVC_BASE_URL")
    ]
    assert problems_for({"CONSUMER_CONFIG": "\udcff"}, Role.OPERATE) == [
        "CONSUMER_CONFIG: is not UTF-8 text, or holds a NUL"
    ]


def test_options_that_cannot_be_written_down_are_told() -> None:
    """Each role writes its settings down, as a digest, when it begins."""
    nested = '{"a":' * 300 + "1" + "}" * 300
    [found] = problems(CREDENTIALS | {"CONSUMER_HANDLER_OPTIONS": f'{{"shop": {nested}}}'})
    assert found == "CONSUMER_HANDLER_OPTIONS: is nested too deep"


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    assert problems({"CONSUMER_CONFIG": str(tmp_path / "none")}, Role.OPERATE) == [
        "CONSUMER_CONFIG: the file cannot be read: No such file or directory"
    ]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (
            "SVC_APP_ID",
            "svc_sk_live_swapped",
            "must begin with 'svc_app_' (the value has 19 characters); it looks like",
        ),
        ("SVC_APP_ID", "svc_app_a:b", "must begin with 'svc_app_'"),
        ("SVC_APP_SECRET", "svc_app_swapped", "must begin with 'svc_sk_live_'"),
        ("SVC_APP_SECRET", "svc_sk_live_a,svc_sk_live_b,svc_sk_live_c", "holds 3 secrets; at most 2"),
        ("SVC_APP_SECRET", "", "holds an empty secret"),
        ("SVC_APP_SECRET", "svc_sk_live_a,", "holds an empty secret"),
        ("SVC_BASE_URL", "api.example.com", "must be an address"),
        ("SVC_BASE_URL", "https://user:pass@api.example.com", "must hold no credentials"),
        ("SVC_BASE_URL", "https://api.example.com?", "must hold no credentials, query or fragment"),
        ("SVC_BASE_URL", "https://api.example.com#", "must hold no credentials, query or fragment"),
        ("SVC_BASE_URL", "http://host:99999", "must be an address"),
        ("CONSUMER_WEBHOOK_SECRETS", "", "holds an empty secret"),
        ("CONSUMER_WEBHOOK_SECRETS", "whsec_", "holds an empty secret"),
        ("CONSUMER_WEBHOOK_SECRETS", "whsec_not-base64!", "holds a secret that is not base64"),
        ("CONSUMER_AUTHENTICITY", "trust-me", "input should be"),
        ("CONSUMER_LOCATE_ID", "id", "'id' is not a JSON pointer"),
        ("CONSUMER_LOCATE_ID", "/a~2", "'/a~2' is not a JSON pointer"),
        ("CONSUMER_DATABASE_URL", "postgresql://db/x", "did you mean 'postgresql+asyncpg://'?"),
        ("CONSUMER_DATABASE_URL", "sqlite:///x.db", "did you mean 'sqlite+aiosqlite:///'?"),
        ("CONSUMER_DATABASE_URL", "sqlite+aiosqlite://", "needs a file"),
        ("CONSUMER_DATABASE_URL", "sqlite+aiosqlite:///:memory:", "needs a file"),
        ("CONSUMER_DATABASE_URL", "postgresql+asyncpg:///x", "needs a host"),
        ("CONSUMER_DATABASE_URL", "postgresql+asyncpg://db/x?sslmode=require", "write 'ssl=require'"),
        ("CONSUMER_DATABASE_URL", "postgresql+asyncpg://db/x?ssl=require&pgbouncer=true", "what is not known there"),
        ("CONSUMER_DATABASE_URL", "postgresql+asyncpg://h:99999/x", "needs a host"),
        ("CONSUMER_DATABASE_URL", "postgresql+asyncpg://u:pass/word@h/x", "in a password '/' is %2F"),
        ("CONSUMER_DATABASE_URL", "postgresql+asyncpg://u:pass@word@h/x", "a '@' in the password is written %40"),
        ("CONSUMER_DATABASE_URL", "postgresql+asyncpg://u@/x?host=a&host=b:5432", "have a port each"),
        ("CONSUMER_DATABASE_URL", "postgresql+asyncpg://u@/x?host=a:1,b:2", "have a port each"),
        ("CONSUMER_DATABASE_URL", "postgresql+asyncpg://u@/x?host=a,b&port=5432", "have a port each"),
        ("CONSUMER_DATABASE_URL", "postgresql+asyncpg://u@h/x?target_session_attrs=standby", "takes writes"),
        ("CONSUMER_DATABASE_URL", "postgresql+asyncpg://u@/x?host=a:1&host=b:2", "takes writes"),
        ("CONSUMER_BROKER_URL", "amqp://host", "must be 'embedded:PATH' or 'kafka://"),
        ("CONSUMER_BROKER_URL", "embedded:", "needs a file"),
        ("CONSUMER_BROKER_URL", "kafka://", "must name its servers"),
        ("CONSUMER_BROKER_URL", "kafka://u:p@host:9092", "must not hold credentials"),
        ("CONSUMER_PAST_DUE", "grace:14", "must be 'keep', 'revoke' or 'grace:'"),
        ("CONSUMER_PAST_DUE", "grace:0d", "must be 'keep', 'revoke' or 'grace:'"),
        ("CONSUMER_HANDLER_OPTIONS", "[]", "input should be a valid dictionary"),
        ("CONSUMER_RENAMED_HANDLERS", "a=b,c", "must be pairs 'old=new'"),
        ("CONSUMER_HANDLERS", "a b", "a handler's name is printable text"),
        ("CONSUMER_PORT", "65536", "input should be less than or equal to 65535"),
        ("CONSUMER_PORT", "tcp://10.0.0.7:8080", "was set by Kubernetes for a Service"),
        ("CONSUMER_PUBLISH_TIMEOUT_S", "0", "input should be greater than 0"),
        ("CONSUMER_PUBLISH_TIMEOUT_S", "61", "input should be less than or equal to 60"),
        ("CONSUMER_SYNC_INTERVAL_S", "1e99", "input should be less than or equal to"),
        ("CONSUMER_SYNC_INTERVAL_S", "inf", "input should be a finite number"),
        ("CONSUMER_PUBLISH_TIMEOUT_S", "nan", "input should be"),
        ("CONSUMER_TOPIC_PREFIX", "pay ments", "String should match"),
        ("CONSUMER_SIGNATURE_HEADER", "a b", "must be the name of an HTTP header"),
        ("CONSUMER_LOG_LEVEL", "loud", "input should be"),
    ],
)
def test_a_bad_value_is_reported_under_its_name(name: str, value: str, expected: str) -> None:
    # case: S11, S12
    found = problems({name: value})
    assert any(line.startswith(f"{name}: ") and expected in line for line in found), found


@pytest.mark.parametrize(
    ("extra", "fine"),
    [
        ({}, True),
        ({"CONSUMER_HOST": "localhost", "SVC_BASE_URL": "http://127.0.0.1:4010"}, True),
        ({"CONSUMER_HOST": "::1"}, True),
        ({"CONSUMER_HOST": "0.0.0.0"}, False),
        ({"SVC_BASE_URL": "https://api.example.com"}, False),
        ({"SVC_BASE_URL": "https://127.0.0.1.example.com"}, False),
    ],
)
def test_authenticity_none_is_for_the_loopback_only(extra: Mapping[str, str], fine: bool) -> None:
    # case: I19
    environ = {"CONSUMER_AUTHENTICITY": "none", **extra}
    if fine:
        assert load_settings(environ, Role.SERVE).applications[0].authenticity is Authenticity.NONE
    else:
        assert any("'none' is for a sandbox only" in line for line in problems(environ, Role.SERVE))


def test_the_internal_port_beyond_loopback_needs_users_and_a_token(tmp_path: Path) -> None:
    environ = {"CONSUMER_INTERNAL_HOST": "0.0.0.0"}
    assert [line.partition(":")[0] for line in problems(environ, Role.CONSOLE)] == [
        "CONSUMER_CONSOLE_USERS",
        "CONSUMER_API_TOKEN",
    ]
    users = tmp_path / "users"
    users.write_text("ada operator $argon2id$x")
    environ |= {"CONSUMER_CONSOLE_USERS": str(users), "CONSUMER_API_TOKEN": "t" * 15}
    assert problems(environ, Role.CONSOLE)[0].startswith(
        "CONSUMER_API_TOKEN: has 15 character(s); at least 16 are needed"
    )
    assert load_settings({**environ, "CONSUMER_INTERNAL_HOST": "127.0.0.1"}, Role.CONSOLE).api_token is not None
    environ["CONSUMER_API_TOKEN"] = "t" * 16
    assert load_settings(environ, Role.CONSOLE).console_users == users
    assert load_settings({"CONSUMER_INTERNAL_HOST": "0.0.0.0"}, Role.WORK).internal_host == "0.0.0.0"


def test_past_due_becomes_the_access_plugins_option() -> None:
    assert load_settings({}, Role.WORK).handler_options == {"access": {"past_due": "grace:14d"}}
    options = '{"access": {"past_due_by_price": {"p": "keep"}}, "own": {"url": "x"}}'
    environ = {"CONSUMER_PAST_DUE": "revoke", "CONSUMER_HANDLER_OPTIONS": options}
    assert load_settings(environ, Role.WORK).handler_options == {
        "access": {"past_due": "revoke", "past_due_by_price": {"p": "keep"}},
        "own": {"url": "x"},
    }


def test_renamed_handlers_are_pairs() -> None:
    environ = {"CONSUMER_RENAMED_HANDLERS": "old.module:ship=new.module:ship, a:b=c:d"}
    expected = {"old.module:ship": "new.module:ship", "a:b": "c:d"}
    assert load_settings(environ, Role.WORK).renamed_handlers == expected


def test_variables_kubernetes_makes_for_services_are_no_problem() -> None:
    environ = {
        "CONSUMER_SERVE_SERVICE_HOST": "10.0.0.1",
        "CONSUMER_SERVE_SERVICE_PORT": "8080",
        "CONSUMER_SERVE_SERVICE_PORT_HTTP": "8080",
        "CONSUMER_SERVE_PORT": "tcp://10.0.0.1:8080",
        "CONSUMER_SERVE_PORT_8080_TCP_ADDR": "10.0.0.1",
    }
    assert load_settings(environ, Role.WORK).port == 8080


def test_kafka_servers_and_their_protection_are_checked_together(tmp_path: Path) -> None:
    base = {"CONSUMER_BROKER_URL": "kafka://a:1,b,[::1]:9"}
    assert load_settings(base, Role.WORK).kafka_servers == ("a:1", "b:9092", "[::1]:9")
    for said, opened in (("kafka://b", "kafka://b:9092"), ("kafka://a:1,[::1],/", "kafka://a:1,[::1]:9092")):
        assert load_settings({"CONSUMER_BROKER_URL": said}, Role.WORK).broker_url == opened
    assert "must name its servers" in problems({"CONSUMER_BROKER_URL": "kafka://a:65536"})[0]
    assert problems({**base, "CONSUMER_KAFKA_SECURITY_PROTOCOL": "SASL_SSL"}) == [
        "CONSUMER_KAFKA_SASL_USERNAME: missing; CONSUMER_KAFKA_SECURITY_PROTOCOL=SASL_SSL needs it",
        "CONSUMER_KAFKA_SASL_PASSWORD: missing; CONSUMER_KAFKA_SECURITY_PROTOCOL=SASL_SSL needs it",
    ]
    assert "has no effect" in problems({**base, "CONSUMER_KAFKA_SASL_PASSWORD": "x"})[0]
    found = problems(
        {**base, "CONSUMER_KAFKA_SECURITY_PROTOCOL": "SSL", "CONSUMER_KAFKA_CERT_FILE": str(tmp_path / "none")}
    )
    assert found == [
        "CONSUMER_KAFKA_CERT_FILE: the file cannot be read: No such file or directory",
        "CONSUMER_KAFKA_KEY_FILE: a client certificate and its key go together",
    ]


def test_an_accepted_body_always_fits_the_topic() -> None:
    # case: I30
    settings = load_settings({"CONSUMER_MAX_BODY_BYTES": "2000000"}, Role.OPERATE)
    assert settings.max_record_bytes > settings.max_body_bytes == 2_000_000


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().port = 1  # type: ignore[misc]  # the test is that it refuses


@given(st.dictionaries(st.sampled_from(sorted(KNOWN - {"CONSUMER_CONFIG"})), st.text(max_size=30), max_size=8))
def test_no_text_crashes_the_loading(environ: dict[str, str]) -> None:
    for role in (Role.SERVE, Role.DEV):
        try:
            load_settings(environ, role)
        except SettingsError as error:
            lines = error.problems
        else:
            lines = []
        assert all(re.match(r"[A-Z_]+(\.[^:]*)?: ", line) for line in lines)


def test_every_field_has_a_bound_name_and_meaning() -> None:
    assert all(name.startswith("CONSUMER_") and field.description for name, field in FIELDS.items())
