"""The certificates that a broker is trusted by may be a whole bundle, as the system's own; a secret stays small."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumer.errors import SettingsError
from consumer.settings import Role, load_settings

SECURE = {
    "CONSUMER_BROKER_URL": "kafka://127.0.0.1:9092",
    "CONSUMER_KAFKA_SECURITY_PROTOCOL": "SSL",
}


@pytest.mark.parametrize(("size", "is_taken"), [(300_000, True), (5_000_000, False)])
def test_within_bounds(tmp_path: Path, size: int, is_taken: bool) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("x" * size)
    environ = {**SECURE, "CONSUMER_KAFKA_CA_FILE": str(path)}
    if is_taken:
        assert load_settings(environ, Role.OPERATE).kafka_ca_file == path
        return
    with pytest.raises(SettingsError) as refused:
        load_settings(environ, Role.OPERATE)
    assert any("CONSUMER_KAFKA_CA_FILE" in problem for problem in refused.value.problems)
