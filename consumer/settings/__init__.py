"""Settings: all configuration, validated once, from the environment and one TOML file. Read by app/, cli/ and the
console's desk."""

from consumer.settings.application import ApplicationSettings
from consumer.settings.fields import Role, Settings
from consumer.settings.load import load_settings, settings_to_look

__all__ = [
    "ApplicationSettings",
    "Role",
    "Settings",
    "load_settings",
    "settings_to_look",
]
