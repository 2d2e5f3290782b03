"""Addresses and passwords of a log are checked before a connection is tried, and no password is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumer.broker import EmbeddedBroker, KafkaBroker, KafkaSecurity, open_broker
from consumer.errors import BrokerUrlInvalid


def test_an_address_names_its_broker() -> None:
    assert isinstance(open_broker("embedded:data/log.db"), EmbeddedBroker)
    assert isinstance(open_broker("kafka://one:9092,two.example:9093,[::1]:9094"), KafkaBroker)


@pytest.mark.parametrize(
    "url",
    ["", "embedded:", "kafka:", "kafka://", "kafka://host", "kafka://host:0", "kafka://host:99999", "redis://x:1"],
)
def test_a_bad_address_is_told_with_its_code(url: str) -> None:
    with pytest.raises(BrokerUrlInvalid) as told:
        open_broker(url)
    assert told.value.line().startswith("error[broker_url_invalid]:")


def test_a_password_is_not_shown() -> None:
    security = KafkaSecurity(security_protocol="SASL_SSL", username="app", password="hidden-word")
    assert "hidden-word" not in repr(security)
    assert security.options()["sasl_plain_password"] == "hidden-word"
    assert security.options()["ssl_context"].check_hostname is True


def test_unusable_security_is_told(tmp_path: Path) -> None:
    with pytest.raises(BrokerUrlInvalid):
        KafkaSecurity(security_protocol="SASL_PLAINTEXT", username="app")
    with pytest.raises(BrokerUrlInvalid):
        KafkaSecurity(security_protocol="SSL", key_file=tmp_path / "key.pem")
    with pytest.raises(BrokerUrlInvalid):
        KafkaSecurity(security_protocol="SSL", ca_file=tmp_path / "missing.pem").options()
