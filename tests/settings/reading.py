"""Reading: settings that are enough for most roles, and what is wrong with others."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from consumer.errors import SettingsError
from consumer.settings import Role, load_settings

SECRET = "whsec_" + "c2VjcmV0LW9mLXRoZS1tZXJjaGFudA=="
CREDENTIALS = {
    "SVC_BASE_URL": "https://api.example.com/",
    "SVC_APP_ID": "svc_app_1",
    "SVC_APP_SECRET": "svc_sk_live_one",
}


def problems(environ: Mapping[str, str], role: Role = Role.WORK) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(environ, role)
    return caught.value.problems
